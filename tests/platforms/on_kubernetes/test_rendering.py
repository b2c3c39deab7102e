"""TFJob, TrainJob and JobSet as rendered: the schemas, strictly, and what each option becomes."""

from __future__ import annotations

import pytest
from jsonschema import ValidationError

from drumbeat.errors import ConfigError
from drumbeat.platforms import registry
from drumbeat.platforms.jobfile.documents import parse_yaml

PLATFORMS = ("tfjob", "trainjob", "jobset")
VARIANTS = {
    "two workers": {},
    "one worker": {"workers": 1},
    "one node": {"workers": 4, "devices": {"type": "gpu", "count": 4}},
    "elastic": {"workers": 8, "min_workers": 2},
    "ps": {"ps": 2},
    "one worker, ps": {"workers": 1, "ps": 1},
    "evaluator": {"evaluator": True},
    "chief": {"tfjob": {"chief": True}},
    "chief alone": {"workers": 1, "tfjob": {"chief": True}},
    "no restarts": {"restarts": 0},
    "a runtime that is there": {"trainjob": {"runtime": "tensorflow"}},
    "longest name": {"name": "a" * 40, "workers": 400},
    "everything": None,
    "everything, a runtime that is there": {"trainjob": {"runtime": "tensorflow"}},
}


@pytest.fixture
def rendered(job, everything):
    def make(platform: str, **changes) -> list[dict]:
        text = registry.get(platform).render(job(**changes)).main
        return [each.value for each in parse_yaml(text, platform)]

    return make


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_each_variant_conforms(platform, variant, rendered, everything, checks, manifest, job):
    changes = VARIANTS[variant] or {}
    if variant.startswith("everything"):
        changes = {**everything, **changes}
    for document in rendered(platform, **changes):
        checks.conforms(document)
    found = manifest(registry.get(platform).render(job(**changes)).main)
    assert registry.get(platform).problems(found) == []
    assert registry.recognise(found).name == platform


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_schemas_find_typos(platform, rendered, checks):
    document = rendered(platform)[0]
    document["spec"]["runPolicies"] = {}
    with pytest.raises(ValidationError) as caught:
        checks.conforms(document)
    assert "runPolicies" in caught.value.message  # all of it is the schema, too


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_strict_check_finds_typos_in_pods(platform, rendered, checks):
    template = checks.templates(rendered(platform)[0])[0]
    template["spec"]["containers"][0]["volumemounts"] = []
    with pytest.raises(Exception, match="volumemounts"):
        checks.is_pod(template)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_nothing_secret_and_no_tf_config(platform, rendered, everything):
    text = str(rendered(platform, **everything))
    assert "TF_CONFIG" not in text
    assert "secretKeyRef" in text
    assert "'key': 'token'" in text


@pytest.mark.parametrize("platform", PLATFORMS)
def test_an_image_is_needed(platform, rendered):
    with pytest.raises(ConfigError, match="no image"):
        rendered(platform, image=None)


@pytest.mark.parametrize("platform", PLATFORMS)
def test_where_pods_go(platform, rendered, everything):
    documents = rendered(platform, **everything)
    assert documents[-1]["metadata"]["labels"] == {
        "owner": "me",
        "kueue.x-k8s.io/queue-name": "ml",
    }
    assert all(each["metadata"]["namespace"] == "team" for each in documents)
    pod = _template(documents[0])["spec"]
    assert pod["nodeSelector"] == {
        "pool": "spot",
        "node.kubernetes.io/instance-type": "a2-highgpu-2g",
    }
    assert pod["tolerations"] == everything["kubernetes"]["tolerations"]
    assert pod["priorityClassName"] == "low"
    assert pod["serviceAccountName"] == "trainer"
    assert pod["terminationGracePeriodSeconds"] == 105
    assert {v["name"]: v for v in pod["volumes"]}["shm"]["emptyDir"]["sizeLimit"] == "2Gi"


@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_usual_grace_is_kubernetes_own(platform, rendered):
    assert "terminationGracePeriodSeconds" not in str(rendered(platform))


VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
           "projected", "secret"}  # fmt: skip


def restricted(pod: dict) -> list[str]:
    """The rules of the Pod Security Standard "restricted", and so "baseline", that a pod breaks.

    Source: kubernetes.io/docs/concepts/security/pod-security-standards.
    """
    outer = pod.get("securityContext", {})
    found = [f"{key}: {pod[key]}" for key in ("hostNetwork", "hostPID", "hostIPC") if pod.get(key)]
    found += [f"{key}: {outer[key]}" for key in ("sysctls", "seLinuxOptions") if outer.get(key)]
    found += [
        f"volume {kind}"
        for each in pod.get("volumes", [])
        for kind in set(each) - {"name"} - VOLUMES
    ]
    if outer.get("runAsUser") == 0:
        found.append("runAsUser of the pod")
    for each in (*pod["containers"], *pod.get("initContainers", [])):
        own = each.get("securityContext", {})
        both = {**outer, **own}
        capabilities = own.get("capabilities", {})
        checks = {
            "privileged": not own.get("privileged"),
            "procMount": own.get("procMount", "Default") == "Default",
            "hostPort": not any(port.get("hostPort") for port in each.get("ports", [])),
            "allowPrivilegeEscalation": own.get("allowPrivilegeEscalation") is False,
            "runAsNonRoot": both.get("runAsNonRoot") is True,
            "runAsUser": own.get("runAsUser") != 0,
            "seccompProfile": both.get("seccompProfile", {}).get("type")
            in ("RuntimeDefault", "Localhost"),
            "capabilities.drop": "ALL" in capabilities.get("drop", []),
            "capabilities.add": set(capabilities.get("add", [])) <= {"NET_BIND_SERVICE"},
        }
        found += [name for name, is_met in checks.items() if not is_met]
    return found


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("more", [{}, {"ps": 1}, {"kubernetes": {"user": 65532}}])
def test_pods_are_what_the_restricted_standard_takes(platform, rendered, checks, more):
    mounts = [{"name": "claim", "path": "/data"}]
    secrets = [{"name": "key", "path": "/keys"}]
    for document in rendered(platform, mounts=mounts, secrets=secrets, **more):
        for template in checks.templates(document):
            assert restricted(template["spec"]) == []
            user = more.get("kubernetes", {}).get("user", 1000)
            context = template["spec"]["securityContext"]
            assert [context[k] for k in ("runAsUser", "runAsGroup", "fsGroup")] == [user] * 3


@pytest.mark.parametrize("platform", PLATFORMS)
def test_an_image_may_keep_its_user_whatever_that_is(platform, rendered):
    pod = _template(rendered(platform, kubernetes={"user": "image"})[0])["spec"]
    assert pod["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    assert pod["containers"][0]["securityContext"] == {"allowPrivilegeEscalation": False}
    assert set(restricted(pod)) == {"runAsNonRoot", "capabilities.drop"}


@pytest.mark.parametrize(
    ("where", "change", "rule"),
    [
        ("pod", {"hostNetwork": True}, "hostNetwork: True"),
        ("pod", {"volumes": [{"name": "a", "hostPath": {}}]}, "volume hostPath"),
        ("pod", {"securityContext": {}}, "runAsNonRoot"),
        ("pod", {"securityContext": {"runAsNonRoot": True}}, "seccompProfile"),
        ("container", {"securityContext": {}}, "allowPrivilegeEscalation"),
        ("container", {"securityContext": {"capabilities": {}}}, "capabilities.drop"),
        ("container", {"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}},
         "capabilities.add"),
        ("container", {"securityContext": {"runAsUser": 0}}, "runAsUser"),
        ("container", {"securityContext": {"privileged": True}}, "privileged"),
        ("container", {"ports": [{"hostPort": 2222}]}, "hostPort"),
    ],
)  # fmt: skip
def test_each_rule_of_the_standard_is_looked_at(where, change, rule, rendered):
    pod = _template(rendered("jobset")[0])["spec"]
    (pod if where == "pod" else pod["containers"][0]).update(change)
    assert rule in restricted(pod)


@pytest.mark.parametrize("user", [0, -1, "root", 2**31, True])
def test_no_other_user_is_taken(user, rendered):
    with pytest.raises(ValueError, match=r"kubernetes\.user"):
        rendered("jobset", kubernetes={"user": user})


def test_a_runtime_that_is_there_is_given_the_user_too(rendered):
    (job,) = rendered("trainjob", trainjob={"runtime": "theirs"})
    patch = job["spec"]["runtimePatches"][0]["trainingRuntimeSpec"]["template"]["spec"]
    spec = patch["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert restricted(spec) == []


def _template(document: dict) -> dict:
    spec = document["spec"]
    if document["kind"] == "TFJob":
        return next(iter(spec["tfReplicaSpecs"].values()))["template"]
    jobset = spec["template"]["spec"] if document["kind"] == "TrainingRuntime" else spec
    return jobset["replicatedJobs"][0]["template"]["spec"]["template"]


class TestTFJob:
    @pytest.mark.parametrize(
        ("changes", "counts"),
        [
            ({}, {"Worker": 2}),
            ({"workers": 1}, {"Worker": 1}),
            ({"workers": 8, "devices": {"count": 4}}, {"Worker": 2}),
            ({"tfjob": {"chief": True}}, {"Chief": 1, "Worker": 1}),
            ({"workers": 1, "tfjob": {"chief": True}}, {"Chief": 1}),
            ({"ps": 3}, {"Chief": 1, "Worker": 2, "PS": 3}),
            ({"ps": 3, "tfjob": {"chief": True}}, {"Chief": 1, "Worker": 2, "PS": 3}),
            ({"evaluator": True}, {"Worker": 2}),
        ],
    )
    def test_replicas(self, changes, counts, rendered):
        specs = rendered("tfjob", **changes)[0]["spec"]["tfReplicaSpecs"]
        assert {kind: each["replicas"] for kind, each in specs.items()} == counts

    def test_every_replica_runs_the_same_command_without_ps_of_its_own(self, rendered):
        specs = rendered("tfjob", ps=1)[0]["spec"]["tfReplicaSpecs"]
        commands = [each["template"]["spec"]["containers"][0]["command"] for each in specs.values()]
        assert commands == [["drumbeat", "run", "train.py"]] * 3

    def test_a_worker_among_ps_is_one_process_with_all_its_devices(self, rendered):
        specs = rendered("tfjob", ps=1, workers=4, devices={"count": 2})[0]["spec"]
        worker = specs["tfReplicaSpecs"]["Worker"]
        assert worker["replicas"] == 2
        command = worker["template"]["spec"]["containers"][0]["command"]
        assert command == ["drumbeat", "run", "--devices-per-worker", "2", "train.py"]

    def test_gpus_are_the_workers(self, rendered):
        specs = rendered("tfjob", ps=1, devices={"type": "gpu"})[0]["spec"]["tfReplicaSpecs"]
        limits = {
            kind: each["template"]["spec"]["containers"][0]["resources"].get("limits")
            for kind, each in specs.items()
        }
        assert limits == {"Chief": None, "Worker": {"nvidia.com/gpu": 1}, "PS": None}

    def test_a_token_where_agents_meet(self, rendered):
        assert "DRUMBEAT_TOKEN" in str(rendered("tfjob"))
        assert "DRUMBEAT_TOKEN" not in str(rendered("tfjob", workers=1))
        assert "DRUMBEAT_TOKEN" in str(rendered("tfjob", workers=1, ps=1))

    def test_container_and_port_are_as_the_operator_wants_them(self, rendered):
        container = _template(rendered("tfjob")[0])["spec"]["containers"][0]
        assert container["name"] == "tensorflow"
        assert container["ports"] == [{"name": "tfjob-port", "containerPort": 2222}]

    def test_restarts_and_ends(self, rendered):
        spec = rendered("tfjob", timeouts={"total": "2h"}, kubernetes={"keep": "1h"})[0]["spec"]
        assert spec["runPolicy"] == {
            "cleanPodPolicy": "Running",
            "backoffLimit": 12,
            "activeDeadlineSeconds": 7200,
            "ttlSecondsAfterFinished": 3600,
        }
        assert spec["successPolicy"] == "AllWorkers"
        worker = spec["tfReplicaSpecs"]["Worker"]
        assert worker["restartPolicy"] == "OnFailure"
        assert "restartPolicy" not in worker["template"]["spec"]

    def test_no_restarts(self, rendered):
        spec = rendered("tfjob", restarts=0)[0]["spec"]
        assert spec["runPolicy"]["backoffLimit"] == 0
        assert spec["tfReplicaSpecs"]["Worker"]["restartPolicy"] == "Never"

    @pytest.mark.parametrize("changes", [{"tfjob": {"chief": True}}, {"min_workers": 1}])
    def test_where_not_all_workers_decide(self, changes, rendered):
        assert "successPolicy" not in rendered("tfjob", **changes)[0]["spec"]

    def test_it_says_why_there_is_a_chief(self, job):
        assert "chief" in registry.get("tfjob").render(job(ps=1)).notes[0]


class TestTrainJob:
    def test_runtime_and_job_go_together(self, rendered):
        runtime, trainjob = rendered("trainjob", workers=3)
        assert trainjob["spec"]["runtimeRef"]["name"] == runtime["metadata"]["name"]
        assert runtime["spec"]["mlPolicy"] == {"numNodes": 3}
        trainer = trainjob["spec"]["trainer"]
        assert trainer["numNodes"] == 3
        env = {each["name"]: each.get("value") for each in trainer["env"]}
        assert env == {
            "DRUMBEAT_NODES": "3",
            "DRUMBEAT_SUBDOMAIN": "digits",
            "DRUMBEAT_TOKEN": None,
        }

    def test_a_runtime_that_is_there_is_patched(self, rendered, everything, job):
        changes = {**everything, "trainjob": {"runtime": "tensorflow"}}
        (trainjob,) = rendered("trainjob", **changes)
        assert trainjob["spec"]["runtimeRef"]["name"] == "tensorflow"
        (patch,) = trainjob["spec"]["runtimePatches"]
        (node,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        pod = node["template"]["spec"]["template"]["spec"]
        assert pod["nodeSelector"]["pool"] == "spot"
        assert [each["mountPath"] for each in pod["containers"][0]["volumeMounts"]] == [
            "/dev/shm",  # noqa: S108
            "/data",
            "/nfs",
            "/host",
            "/gcp",
        ]
        notes = " ".join(registry.get("trainjob").render(job(**changes)).notes)
        assert "priority" in notes
        assert "kubernetes.keep" in notes

    def test_the_job_in_the_runtime_is_one(self, rendered, checks):
        runtime, _ = rendered("trainjob")
        spec = runtime["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"]
        checks.is_job({**spec, "completionMode": "Indexed", "parallelism": 2, "completions": 2})


class TestJobSet:
    def test_the_job_in_it_is_one(self, rendered, checks, everything):
        spec = rendered("jobset", **everything)[0]["spec"]["replicatedJobs"][0]["template"]["spec"]
        checks.is_job(spec)
        assert spec["activeDeadlineSeconds"] == 86400

    def test_what_is_no_failure(self, rendered):
        (jobset,) = rendered("jobset")
        job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
        rules = job["podFailurePolicy"]["rules"]
        by_code = {
            code: each["action"]
            for each in rules
            for code in each.get("onExitCodes", {}).get("values", [])
        }
        assert by_code == {75: "Ignore", 2: "FailJob"}
        assert rules[0]["onPodConditions"][0]["type"] == "DisruptionTarget"
        assert job["template"]["spec"]["restartPolicy"] == "Never"
        assert jobset["spec"]["failurePolicy"]["rules"][0]["action"] == "FailJobSet"

    def test_no_restarts(self, rendered):
        (jobset,) = rendered("jobset", restarts=0)
        assert jobset["spec"]["failurePolicy"] == {"maxRestarts": 0}
        assert jobset["spec"]["replicatedJobs"][0]["template"]["spec"]["backoffLimit"] == 0

    def test_one_node_needs_no_name(self, rendered):
        text = str(rendered("jobset", workers=1))
        assert "DRUMBEAT_NODES" in text
        assert "SUBDOMAIN" not in text
        assert "TOKEN" not in text

    def test_ttl(self, rendered):
        (jobset,) = rendered("jobset", kubernetes={"keep": "2h"})
        assert jobset["spec"]["ttlSecondsAfterFinished"] == 7200
