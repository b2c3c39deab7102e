"""The pods of manifests as processes: each variable as Kubernetes and the operators set it."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.cluster import launched_by
from drumbeat.cluster.spec import ClusterSpec
from drumbeat.errors import ConfigError
from drumbeat.platforms import registry
from drumbeat.platforms.kubernetes.manifests.pod import expand

TFJOB = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: tfmw, namespace: team}
spec:
  tfReplicaSpecs:
    Worker:
      replicas: 2
      template: &template
        metadata: {labels: {app: a}}
        spec:
          containers:
            - name: sidecar
              image: x:1
            - name: tensorflow
              image: x:1
              command: [drumbeat, run, train.py]
              args: ["--name", "$(POD)"]
              env:
                - {name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
                - {name: DRUMBEAT_TOKEN, valueFrom: {secretKeyRef: {name: s, key: t}}}
"""
OTHERS = """
    Chief: {template: *template}
    PS: {replicas: 1, template: *template}
    Evaluator: {template: *template}
"""
INDEXED = """
apiVersion: v1
kind: Service
metadata: {name: svc}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {job-name: tfmw}}
---
apiVersion: batch/v1
kind: Job
metadata: {name: tfmw}
spec:
  completionMode: Indexed
  completions: 2
  parallelism: 2
  template:
    spec:
      subdomain: svc
      restartPolicy: Never
      containers:
        - name: train
          image: x:1
          command: [python, train.py]
          env:
            - name: TASK
              valueFrom: {fieldRef: {fieldPath: "metadata.annotations['%s']"}}
            - name: TF_CONFIG
              value: >-
                {"cluster": {"worker": ["tfmw-0.svc:2222", "tfmw-1.svc.default.svc:2222"]},
                "task": {"type": "worker", "index": $(TASK)}}
"""
INDEXED %= "batch.kubernetes.io/job-completion-index"


@pytest.fixture
def processes(manifest, places):
    def make(text: str):
        found = manifest(text)
        return registry.recognise(found).rehearse(found, places)

    return make


def tf_config(process) -> dict:
    return json.loads(process.env["TF_CONFIG"])


class TestTFJob:
    def test_two_workers_have_exactly_what_the_operator_sets(self, processes):
        rehearsal = processes(TFJOB)
        assert [each.name for each in rehearsal.processes] == ["worker-0", "worker-1"]
        second = rehearsal.processes[1]
        token = second.env["DRUMBEAT_TOKEN"]
        assert dict(second.env) == {
            "HOSTNAME": "tfmw-worker-1",
            "POD": "tfmw-worker-1",
            "DRUMBEAT_TOKEN": token,
            "TF_CONFIG": '{"cluster":{"worker":["127.0.0.1:4001","127.0.0.1:4002"]},'
            '"task":{"type":"worker","index":1},"environment":"cloud"}',
        }
        assert token == rehearsal.processes[0].env["DRUMBEAT_TOKEN"]
        assert len(token) >= 32
        assert second.command == ("drumbeat", "run", "train.py", "--name", "tfmw-worker-1")

    def test_all_replica_types_are_in_the_cluster(self, processes):
        found = processes(TFJOB + OTHERS).processes
        assert [each.name for each in found] == [
            "chief-0",
            "worker-0",
            "worker-1",
            "ps-0",
            "evaluator-0",
        ]
        cluster = {
            "chief": ["127.0.0.1:4001"],
            "evaluator": ["127.0.0.1:4002"],
            "ps": ["127.0.0.1:4003"],
            "worker": ["127.0.0.1:4004", "127.0.0.1:4005"],
        }
        for each in found:
            kind, index = each.name.split("-")
            config = tf_config(each)
            assert config == {
                "cluster": cluster,
                "task": {"type": kind, "index": int(index)},
                "environment": "cloud",
            }
            assert ClusterSpec.from_env(each.env) is not None

    def test_with_ps_the_chief_s_end_is_the_end(self, processes):
        found = processes(TFJOB + OTHERS).processes
        assert [each.name for each in found if each.is_main] == ["chief-0"]
        found = processes(TFJOB + "    Chief: {template: *template}\n").processes
        assert all(each.is_main for each in found)

    @pytest.mark.parametrize("spelled", ["worker", "WORKER"])
    def test_replica_types_in_any_case(self, spelled, processes):
        found = processes(TFJOB.replace("Worker", spelled)).processes
        assert tf_config(found[0])["task"]["type"] == "worker"

    def test_one_replica_has_no_tf_config(self, processes):
        rehearsal = processes(TFJOB.replace("replicas: 2", "replicas: 1"))
        assert "TF_CONFIG" not in rehearsal.processes[0].env
        assert any("no TF_CONFIG" in each for each in rehearsal.differences)

    def test_the_operator_s_tf_config_wins_over_the_template_s(self, processes):
        text = TFJOB.replace("env:\n", "env:\n                - {name: TF_CONFIG, value: mine}\n")
        assert tf_config(processes(text).processes[0])["environment"] == "cloud"

    def test_port_as_the_template_has_it(self, manifest):
        from drumbeat.platforms.kubernetes.manifests.tfjob import pods_of

        ports = "args: []\n              ports: [{name: tfjob-port, containerPort: 77}]\n"
        text = re.sub(r"args: .*\n", ports, TFJOB)
        pod = pods_of(manifest(text).documents[0].value)[0]
        assert "tfmw-worker-1.team.svc:77" in pod.appended["TF_CONFIG"]
        assert pod.labels["training.kubeflow.org/job-role"] == "master"
        assert pod.labels["app"] == "a"

    def test_dynamic_workers_see_themselves_and_the_ps(self, processes):
        text = TFJOB.replace("spec:\n  tf", "spec:\n  enableDynamicWorker: true\n  tf", 1)
        found = processes(text + OTHERS).processes
        by_name = {each.name: tf_config(each) for each in found}
        assert by_name["worker-1"]["cluster"].keys() == {"worker", "ps"}
        assert list(by_name["worker-1"]["cluster"]["worker"]) == ["1"]
        assert len(by_name["worker-1"]["cluster"]["ps"]) == 1
        assert by_name["ps-0"]["cluster"]["worker"] == {}
        assert "environment" not in by_name["ps-0"]
        # Without ps, Go writes the list that nobody made as null.
        assert tf_config(processes(text).processes[0])["cluster"]["ps"] is None

    def test_what_would_be_different(self, processes):
        text = TFJOB.replace(
            "containers:\n",
            "nodeSelector: {pool: gpu}\n          serviceAccountName: trainer\n"
            "          securityContext: {runAsUser: 1000}\n"
            "          initContainers: [{name: fetch, image: y}]\n          containers:\n",
        ).replace(
            "command: [drum",
            "resources: {limits: {nvidia.com/gpu: 1}}\n              workingDir: /app\n"
            "              envFrom: [{secretRef: {name: more}}]\n"
            "              volumeMounts: [{name: d, mountPath: /data}]\n"
            "              command: [drum",
        )
        said = " ".join(processes(text).differences)
        for word in (
            "x:1",
            "nvidia.com/gpu: 1",
            "pool: gpu",
            "service account trainer",
            "the user 1000",
            "sidecar",
            "fetch",
            "/app",
            "more (envFrom)",
            "/data is not mounted",
            "DRUMBEAT_TOKEN is made up; there it comes from the Secret s",
        ):
            assert word in said

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (("command: [drumbeat, run, train.py]", ""), "has no command"),
            (("name: tensorflow", "name: main"), "no container called tensorflow"),
            (("replicas: 2", "replicas: 1000000000"), "expected 1 to 4096"),
            (("replicas: 2", "replicas: 0"), "expected 1 to 4096"),
        ],
    )
    def test_what_can_t_be_rehearsed(self, change, message, processes):
        with pytest.raises(ConfigError, match=message):
            processes(TFJOB.replace(*change))

    def test_two_in_a_file(self, processes):
        with pytest.raises(ConfigError, match="2 TFJobs"):
            processes(TFJOB + "---" + TFJOB)


class TestJobs:
    def test_indexed_job(self, processes):
        first, second = processes(INDEXED).processes
        assert dict(second.env) == {
            "HOSTNAME": "tfmw-1",
            "TASK": "1",
            "JOB_COMPLETION_INDEX": "1",
            "TF_CONFIG": '{"cluster": {"worker": ["127.0.0.1:4001", "127.0.0.1:4002"]}, '
            '"task": {"type": "worker", "index": 1}}',
        }
        assert tf_config(first)["task"]["index"] == 0

    def test_the_index_is_appended_and_so_not_expanded(self, processes):
        text = INDEXED.replace("$(TASK)", "$(JOB_COMPLETION_INDEX)")
        assert "$(JOB_COMPLETION_INDEX)" in processes(text).processes[0].env["TF_CONFIG"]

    def test_an_index_of_the_author_s_own_stays(self, processes):
        text = INDEXED.replace("name: TASK", "name: JOB_COMPLETION_INDEX")
        found = processes(text.replace("$(TASK)", "$(JOB_COMPLETION_INDEX)")).processes[1]
        assert found.env["JOB_COMPLETION_INDEX"] == "1"
        assert tf_config(found)["task"]["index"] == 1

    def test_a_job_without_indices(self, processes):
        found = processes(INDEXED.replace("completionMode: Indexed", "")).processes
        assert all("JOB_COMPLETION_INDEX" not in each.env for each in found)
        assert found[0].env["TASK"] == ""

    def test_jobset_as_rendered(self, processes, job):
        rendered = registry.get("jobset").render(job(kubernetes={"namespace": "team"}))
        first, second = processes(rendered.main).processes
        token = first.env["DRUMBEAT_TOKEN"]
        assert dict(second.env) == {
            "HOSTNAME": "digits-worker-0-1",
            "JOB_COMPLETION_INDEX": "1",
            "DRUMBEAT_NODES": "2",
            "DRUMBEAT_SUBDOMAIN": "digits",
            "DRUMBEAT_RENDEZVOUS": "127.0.0.1:4001",
            "DRUMBEAT_TOKEN": token,
        }
        found = launched_by.find(second.env)
        assert found is not None
        assert (found.node_rank, found.nodes, found.port) == (1, 2, 4001)

    def test_replicated_jobs_one_after_the_other(self, processes, job):
        text = registry.get("jobset").render(job()).main.replace("replicas: 1", "replicas: 2")
        text = text.replace("      - worker\n", "      - other\n")
        found = processes(text).processes
        assert [each.name for each in found] == [
            "worker-0-0",
            "worker-0-1",
            "worker-1-0",
            "worker-1-1",
        ]
        assert found[2].env["HOSTNAME"] == "digits-worker-1-0"
        assert not any(each.is_main for each in found)

    def test_trainjob_as_rendered(self, processes, job):
        found = processes(registry.get("trainjob").render(job(environment={"A": "1"})).main)
        second = found.processes[1]
        assert second.name == "node-1"
        assert dict(second.env) == {
            "HOSTNAME": "digits-node-0-1",
            "JOB_COMPLETION_INDEX": "1",
            "A": "1",
            "DRUMBEAT_NODES": "2",
            "DRUMBEAT_SUBDOMAIN": "digits",
            "DRUMBEAT_RENDEZVOUS": "127.0.0.1:4001",
            "DRUMBEAT_TOKEN": second.env["DRUMBEAT_TOKEN"],
        }
        assert second.command == ("drumbeat", "run", "train.py")


TRAINJOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: tf}
spec:
  mlPolicy: {numNodes: 3}
  template:
    spec:
      replicatedJobs:
        - {name: fetch, template: {spec: {template: {spec: {containers: [{name: a}]}}}}}
        - name: node
          template:
            metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
            spec:
              template:
                spec:
                  containers:
                    - name: node
                      image: tf:1
                      command: [python, old.py]
                      env: [{name: A, value: a}, {name: B, value: $(A)-b}]
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tfmw}
spec:
  runtimeRef: {name: tf, kind: TrainingRuntime}
  trainer:
    command: [python, -m, trainer.task]
    args: [--peer, tfmw-node-0-1.tfmw]
    env:
      - {name: A, value: new}
      - {name: C, value: "$(B), $(LATER)"}
      - {name: LATER, value: x}
"""


class TestTrainJob:
    def test_runtime_and_job_are_merged(self, processes):
        rehearsal = processes(TRAINJOB)
        assert len(rehearsal.processes) == 3
        first = rehearsal.processes[0]
        assert first.command == ("python", "-m", "trainer.task", "--peer", "127.0.0.1")
        # Variables of the runtime keep their place, and so what refers to them.
        assert dict(first.env) == {
            "HOSTNAME": "tfmw-node-0-0",
            "A": "new",
            "B": "new-b",
            "C": "new-b, $(LATER)",
            "LATER": "x",
            "JOB_COMPLETION_INDEX": "0",
        }
        assert any("fetch" in each for each in rehearsal.differences)

    def test_the_job_decides_how_many(self, processes):
        text = TRAINJOB.replace("  trainer:\n", "  trainer:\n    numNodes: 2\n", 1)
        assert len(processes(text.replace("numNodes: 3", "numNodes: 7", 1)).processes) == 2

    def test_a_runtime_that_only_the_cluster_has(self, processes):
        rehearsal = processes(TRAINJOB.partition("---")[2].replace("name: tf,", "name: other,"))
        assert len(rehearsal.processes) == 1
        assert any("the runtime other adds" in each for each in rehearsal.differences)

    def test_a_policy_of_another_framework(self, processes):
        rehearsal = processes(TRAINJOB.replace("numNodes: 3", "numNodes: 3, torch: {}"))
        assert any("policy torch" in each for each in rehearsal.differences)


@pytest.mark.parametrize(
    ("written", "made"),
    [
        ("$(A)", "1"),
        ("x$(A)y$(B)", "x1y2"),
        ("$$(A)", "$(A)"),
        ("$$$(A)", "$1"),
        ("$(C)", "$(C)"),
        ("$(A", "$(A"),
        ("$A ${A} $", "$A ${A} $"),
        ("$()", "$()"),
        ("", ""),
    ],
)
def test_expansion_is_kubernetes_own(written, made):
    assert expand(written, {"A": "1", "B": "2"}) == made


@given(st.text("$()AB x", max_size=20))
def test_text_without_references_stays(written):
    assert expand(written.replace("$", ""), {"A": "1"}) == written.replace("$", "")
    assert expand(expand(written, {}).replace("$", "$$"), {}) == expand(written, {})


def test_addresses_are_replaced_wherever_they_stand(manifest, places):
    from drumbeat.platforms.kubernetes.manifests.hosts import Hosts
    from drumbeat.platforms.kubernetes.manifests.tfjob import pods_of

    hosts = Hosts(pods_of(manifest(TFJOB).documents[0].value), places)
    first = hosts.here("tfmw-worker-0:2222")
    assert first == "127.0.0.1:4001"
    for same in (
        "tfmw-worker-0.team:2222",
        "tfmw-worker-0.team.svc:2222",
        "tfmw-worker-0.team.svc.cluster.local:2222",
    ):
        assert hosts.here(f"grpc://{same},x") == f"grpc://{first},x"
    assert hosts.here("tfmw-worker-0:8080") == "127.0.0.1:4002"
    assert hosts.here("ping tfmw-worker-1.team.svc") == "ping 127.0.0.1"
    for other in ("gs://b/tfmw-worker-0/x", "tfmw-worker-0.log", "tfmw-worker-01:2222", "atfmw-"):
        assert hosts.here(other) == other
