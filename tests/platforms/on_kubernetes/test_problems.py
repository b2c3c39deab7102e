"""What is wrong in anybody's manifest, in words: what webhooks refuse, and what never meets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from drumbeat.errors import ConfigError
from drumbeat.platforms import registry
from drumbeat.platforms.kubernetes.manifests import names

GPUS = "              resources: {limits: {NAME: 1, cpu: 4}}\n"
TFJOB = """
apiVersion: kubeflow.org/v1
kind: TFJob
metadata: {name: tfmw}
spec:
  tfReplicaSpecs:
    Worker:
      replicas: 2
      restartPolicy: OnFailure
      template: &template
        spec:
          containers:
            - name: tensorflow
              image: x:1
              command: [drumbeat, run, train.py]
              env: [{name: DRUMBEAT_TOKEN, valueFrom: {secretKeyRef: {name: s, key: t}}}]
"""
JOBSET = """
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: tfmw}
spec:
  replicatedJobs:
    - name: worker
      replicas: 1
      template:
        spec:
          completionMode: Indexed
          parallelism: 2
          completions: 2
          backoffLimit: 6
          template:
            spec:
              restartPolicy: Never
              containers:
                - name: worker
                  image: x:1
                  command: [drumbeat, run, --backup-dir, /b, train.py]
                  env:
                    - {name: DRUMBEAT_NODES, value: "2"}
                    - {name: DRUMBEAT_SUBDOMAIN, value: tfmw}
                    - {name: DRUMBEAT_TOKEN, valueFrom: {secretKeyRef: {name: s, key: t}}}
"""
JOB = """
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
  parallelism: 2
  completions: 2
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
              valueFrom: {fieldRef: {fieldPath: "metadata.annotations['INDEX']"}}
            - name: TF_CONFIG
              value: >-
                {"cluster": {"worker": ["tfmw-0.svc:2222", "tfmw-1.svc:2222"]},
                "task": {"type": "worker", "index": $(TASK)}}
""".replace("INDEX", "batch.kubernetes.io/job-completion-index")
TRAINJOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: tf}
spec:
  mlPolicy: {numNodes: 2}
  template:
    spec:
      replicatedJobs:
        - name: node
          template:
            metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
            spec:
              template:
                spec:
                  containers: [{name: node, image: "tf:1"}]
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: tfmw}
spec:
  runtimeRef: {name: tf, kind: TrainingRuntime}
  trainer:
    command: [drumbeat, run, train.py]
    env:
      - {name: DRUMBEAT_NODES, value: "2"}
      - {name: DRUMBEAT_SUBDOMAIN, value: tfmw}
      - {name: DRUMBEAT_TOKEN, valueFrom: {secretKeyRef: {name: s, key: t}}}
"""


@pytest.fixture
def problems(manifest):
    def find(text: str) -> list[str]:
        found = manifest(text)
        platform = registry.recognise(found)
        assert platform.problems is not None
        return platform.problems(found)

    return find


@pytest.mark.parametrize("text", [TFJOB, JOBSET, JOB, TRAINJOB])
def test_none(text, problems):
    assert problems(text) == []


NAME = "metadata: {name: tfmw}"
BROKEN = [
    (TFJOB, (NAME, "metadata: {name: 1st}"), "small letters, digits and -, a letter first"),
    (TFJOB, (NAME, "metadata: {name: Tfmw}"), "small letters"),
    (TFJOB, (NAME, "metadata: {name: %s}" % ("a" * 64)), "expected at most 63"),
    (TFJOB, (NAME, "metadata: {name: %s}" % ("a" * 60)), "-worker-1 would have 69 characters"),
    (TFJOB, (NAME, "metadata: {}"), "expected a name"),
    (TFJOB, (NAME, "metadata: {name: tfmw, labels: {a: 1}}"), "labels a are no text"),
    (TFJOB, ("org/v1", "org/v1beta1"), "expected kubeflow.org/v1"),
    (TFJOB, ("tfReplicaSpecs", "tfReplicaSpec"), "did you mean tfReplicaSpecs"),
    (TFJOB, ("tfReplicaSpecs", "tfReplicaSpec"), "has no tfReplicaSpecs"),
    (TFJOB, ("Worker:", "Workers:"), "expected one of Chief, Master, Worker, PS, Evaluator"),
    (TFJOB, ("replicas: 2", "replicas: 0"), "an empty list in TF_CONFIG crashes TensorFlow"),
    (TFJOB, ("replicas: 2", 'replicas: "2"'), "expected a number from 1"),
    (TFJOB, ("replicas: 2", "replicas: 2\n      restart: x"), "did you mean restartPolicy"),
    (TFJOB, ("restartPolicy: OnFailure", "restartPolicy: Sometimes"), "expected one of Always"),
    (TFJOB, ("restartPolicy: OnFailure", "restartPolicy: ExitCode"), "codes under 128"),
    (TFJOB, ("name: tensorflow", "name: main"), "expected one called tensorflow"),
    (TFJOB, ("image: x:1", "imagePullPolicy: Always"), "has no image"),
    (TFJOB, ("image: x:1", "image: x:1\n              comand: [a]"), "did you mean command"),
    (TFJOB, ("run, train.py]", "run, train.py, 3]"), "with numbers in quotes"),
    (TFJOB, ("env: [", "env: [{name: TF_CONFIG, value: x}, "), "the operator adds another one"),
    (TFJOB, ("env: [", "env: [{name: A, value: 1}, "), "expected text, as in quotes"),
    (TFJOB, ("env: [", "env: [{name: A, value: a}, {name: A, value: b}, "), "has A twice"),
    (TFJOB, ("env: [", "env: [{value: a}, "), "without a name"),
    (TFJOB, ("env: [", "env: [{name: A, value: $(B)}, "), "in A, $(B) stays as it is"),
    (TFJOB, ("DRUMBEAT_TOKEN", "TOKEN"), "neither DRUMBEAT_TOKEN nor DRUMBEAT_TOKEN_FILE"),
    (TFJOB, ("image: x:1", "image: x:1\n              readinessProbe: {}"), "readinessProbe"),
    (TFJOB, ("containers:", "restartPolicy: Never\n          containers:"), "is overwritten"),
    (
        TFJOB,
        ("containers:", "terminationGracePeriodSeconds: 20\n          containers:"),
        "killed 20 s after SIGTERM",
    ),
    (TFJOB, ("run, train.py", "run, --grace, '60', train.py"), "expected at least 65"),
    (TFJOB, ("image: x:1", "image: x:1\n              volumeMounts: [{name: d}]"), "volume 'd'"),
    (TFJOB, ("    Worker:", "    Chief: {template: *t}\n    Worker:"), "Chief has no containers"),
    (
        TFJOB,
        ("spec:\n  tf", "spec:\n  enableDynamicWorker: true\n  tf"),
        "lists only the pod's own",
    ),
    (TFJOB, ("spec:\n  tf", "spec:\n  successPolicy: All\n  tf"), 'expected "" or AllWorkers'),
    (
        TFJOB,
        ("spec:\n  tf", "spec:\n  runPolicy: {cleanPodPolicy: Never, backOffLimit: 1}\n  tf"),
        "did you mean backoffLimit",
    ),
    (
        TFJOB,
        ("spec:\n  tf", "spec:\n  runPolicy: {cleanPodPolicy: Never}\n  tf"),
        "expected None, Running or All",
    ),
    (JOBSET, ("v1alpha2", "v1alpha1"), "expected jobset.x-k8s.io/v1alpha2"),
    (JOBSET, (NAME, "metadata: {name: %s}" % ("a" * 50)), "JobSet a shorter name"),
    (JOBSET, ("- name: worker\n      rep", "- name: 1w\n      rep"), "a letter first"),
    (JOBSET, ("completions: 2", "completions: 4"), "expected the same, as all pods train together"),
    (JOBSET, ("completionMode: Indexed", "completionMode: NonIndexed"), "expected Indexed"),
    (JOBSET, ("restartPolicy: Never", "restartPolicy: Always"), "expected Never or OnFailure"),
    (JOBSET, ("backoffLimit: 6", "backoffLimit: 0"), "podFailurePolicy that ignores 75"),
    (JOBSET, ("backoffLimit: 6", "backOffLimit: 6"), "did you mean backoffLimit"),
    (JOBSET, ('value: "2"', 'value: "3"'), "DRUMBEAT_NODES says 3, but the job has 2 pods"),
    (JOBSET, ("DRUMBEAT_NODES", "NODES"), "each of the 2 pods would train alone"),
    (JOBSET, ("SUBDOMAIN, value: tfmw", "SUBDOMAIN, value: svc"), "found as tfmw-worker-0-0.svc"),
    (
        JOBSET,
        ("spec:\n  rep", "spec:\n  network: {enableDNSHostnames: false}\n  rep"),
        "expected a subdomain",
    ),
    (
        JOBSET,
        ("spec:\n  rep", "spec:\n  successPolicy: {targetReplicatedJobs: [w]}\n  rep"),
        "expected one of worker",
    ),
    (JOB, ("completionMode: Indexed", ""), "expected Indexed, without which no pod knows"),
    (JOB, ("restartPolicy: Never", ""), "restartPolicy is 'Always'"),
    (
        JOB,
        ("restartPolicy: Never", "restartPolicy: OnFailure"),
        None,
    ),
    (
        JOB,
        ("completions: 2", "completions: 2\n  podFailurePolicy: {}"),
        None,
    ),
    (JOB, ("$(TASK)", "$(JOB_COMPLETION_INDEX)"), "Kubernetes puts it behind the others"),
    (JOB, ("tfmw-1.svc:2222", "tfmw-1:2222"), "no pod of the job is found as tfmw-1:2222"),
    (JOB, ("tfmw-1.svc:2222", "tfmw-2.svc:2222"), "no pod of the job is found as tfmw-2.svc"),
    (JOB, ("tfmw-1.svc:2222", "tfmw-1.svc"), "has no port"),
    (JOB, ("tfmw-1.svc:2222", "tfmw-0.svc:2222"), "TF_CONFIG: "),
    (JOB, ("subdomain: svc", ""), "expected a subdomain in the pods' template"),
    (JOB, ("subdomain: svc", "subdomain: other"), "the Service other, which is not in the file"),
    (JOB, ("clusterIP: None, ", ""), "expected clusterIP: None"),
    (
        JOB,
        ("- name: TASK\n", "- {name: K_TOKEN, value: x}\n            - name: TASK\n"),
        "the value of K_TOKEN is in the file; expected a Secret's",
    ),
    (JOB, ("- name: TASK\n", "- {name: =A}\n            - name: TASK\n"), "can't be the name of a"),
    (JOB, ("publishNotReadyAddresses: true, ", ""), "expected publishNotReadyAddresses: true"),
    (JOB, ("selector: {job-name: tfmw}", "selector: {app: x}"), "does not find the Job's pods"),
    (TRAINJOB, (NAME, "metadata: {name: tf.mw}"), "small letters"),
    (TRAINJOB, ("runtimeRef: {name: tf,", "runtimeRef: {"), "has no runtimeRef.name"),
    (TRAINJOB, ("kind: TrainingRuntime}", "kind: Runtime}"), "runtimeRef.kind is 'Runtime'"),
    (TRAINJOB, ("trainer:\n", "podTemplateOverrides: []\n  trainer:\n"), "is now runtimePatches"),
    (TRAINJOB, ("trainer:\n", "trainer:\n    nodes: 2\n"), "did you mean numNodes"),
    (TRAINJOB, ("trainer:\n", "trainer:\n    numNodes: 0\n"), "expected a number from 1"),
    (TRAINJOB, ("trainer:\n", "trainer:\n    numNodes: 4\n"), "says 2, but the job has 4 pods"),
    (TRAINJOB, ("ancestor-step: trainer", "ancestor-step: a"), "none of its jobs has the label"),
    (TRAINJOB, ("[{name: node, image", "[{name: main, image"), "no container called node"),
    (TRAINJOB, ("numNodes: 2}", "numNodes: 2, torch: {}, mpi: {}}"), "mlPolicy has torch, mpi"),
    (TRAINJOB, ("SUBDOMAIN, value: tfmw", "SUBDOMAIN, value: tf"), "found as tfmw-node-0-0.tf"),
]


@pytest.mark.parametrize(("text", "change", "message"), BROKEN)
def test_each_mistake_is_found(text, change, message, problems):
    changed = (
        text.replace(*change, 1)
        if change[0] != "ancestor-step: trainer"
        else text.replace("trainjob-" + change[0], "trainjob-" + change[1])
    )
    if "*t}" in change[1]:
        changed = changed.replace("*t}", "{}}")
    assert changed != text
    found = problems(changed)
    if message is None:
        assert found == []
    else:
        assert any(message in each for each in found), found


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("    PS: {template: *template}\n", "PS but no Chief"),
        ("    Master: {template: *template}\n", None),
        ("    Master: {template: *template}\n    Chief: {template: *template}\n", "and a Master"),
        ("    Chief: {replicas: 2, template: *template}\n", "TensorFlow takes one at most"),
        ("    Evaluator: {replicas: 2, template: *template}\n", "TensorFlow takes one at most"),
        ("    Evaluator: {template: *template}\n", None),
        ("    PS: {template: *template}\n    Chief: {template: *template}\n", None),
    ],
)
def test_replica_types_together(more, message, problems):
    found = problems(TFJOB + more)
    assert (found == []) if message is None else any(message in each for each in found), found


def test_a_master_of_a_script_that_tensorflow_reads_tf_config_for(problems):
    text = TFJOB.replace("[drumbeat, run, train.py]", "[python, train.py]")
    assert any("write Chief" in p for p in problems(text + "    Master: {template: *template}\n"))


@pytest.mark.parametrize("command", ["sh, -c, 'cd /app && drumbeat run train.py'", "drumbeat, run"])
def test_drumbeat_is_seen_in_a_shell_s_line_too(command, problems):
    text = JOBSET.replace("drumbeat, run, --backup-dir, /b", command)
    assert problems(text) == []
    assert problems(text.replace("DRUMBEAT_NODES", "NODES"))


def test_what_is_no_mapping_is_no_traceback(problems):
    for text in (TFJOB, JOBSET, JOB, TRAINJOB):
        for line in text.splitlines():
            if line.endswith(":"):
                start = text.index(f"{line}\n")
                indent = len(line) - len(line.lstrip())
                rest = text[start + len(line) + 1 :].splitlines()
                inner = 0
                while inner < len(rest) and (len(rest[inner]) - len(rest[inner].lstrip()) > indent):
                    inner += 1
                broken = f"{text[:start]}{line} 1\n" + "\n".join(rest[inner:])
                assert problems(broken), broken


SCHEMAS = Path(__file__).parents[1] / "schemas"


def properties(name: str, *path: str) -> set[str]:
    schema = json.loads((SCHEMAS / f"{name}.openapi.json").read_text())
    for key in path:
        schema = schema["items"] if key == "[]" else schema["properties"][key]
    return set(schema["properties"])


class TestKnownKeys:
    """The lists of keys are those of the schemas, and so change with them."""

    JOB = ("spec", "replicatedJobs", "[]", "template", "spec")

    def test_of_kubernetes(self):
        jobset = "jobset.x-k8s.io_v1alpha2"
        pod = (*self.JOB, "template", "spec")
        assert properties(jobset, *self.JOB) == names.JOB_SPEC
        assert properties(jobset, *pod) == names.POD_SPEC
        assert properties(jobset, *pod, "containers", "[]") == names.CONTAINER

    def test_of_the_kinds(self):
        from drumbeat.platforms.kubernetes.manifests import jobs, tfjob, trainjob

        jobset, own = "jobset.x-k8s.io_v1alpha2", "trainjob.trainer.kubeflow.org_v1alpha1"
        assert properties("tfjob.kubeflow.org_v1", "spec") == set(tfjob._SPEC)
        assert properties("tfjob.kubeflow.org_v1", "spec", "runPolicy") == set(tfjob._RUN_POLICY)
        assert properties(jobset, "spec") == set(jobs._SPEC)
        assert properties(jobset, "spec", "replicatedJobs", "[]") == set(jobs._REPLICATED)
        assert properties(own, "spec") == set(trainjob._SPEC)
        assert properties(own, "spec", "trainer") == set(trainjob._TRAINER)


def test_a_file_with_jobs_of_several_kinds_is_not_half_looked_at():
    examples = Path(__file__).parents[3] / "docs" / "platforms" / "examples"
    texts = [path.read_text() for name in ("tfjob", "jobset") for path in
             (examples / name).glob("*.yaml")]  # fmt: skip
    manifest = registry.parse_manifest("\n---\n".join(texts), Path("both.yaml"))
    with pytest.raises(ConfigError, match="both.yaml has jobs for JobSet, Kubeflow TFJob; expect"):
        registry.recognise(manifest)
    beside = "---\napiVersion: v1\nkind: Service\nmetadata: {name: a}\n"
    manifest = registry.parse_manifest(texts[0] + beside, Path("one.yaml"))
    assert registry.recognise(manifest).name == "tfjob"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nvidia.com/gpus", "no 'nvidia.com/gpus', unless it was renamed there"),
        ("gpu", "Kubernetes has no resource 'gpu'"),
        ("mem", "did you mean memory?"),
        *((name, None) for name in ("nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "amd.com/gpu",
          "nvidia.com/gpu.shared", "memory", "hugepages-2Mi", "vpc.amazonaws.com/efa")),
    ],
)  # fmt: skip
def test_names_of_resources(name, said):
    text = TFJOB + GPUS.replace("NAME", name)
    found = registry.get("tfjob").problems(registry.parse_manifest(text, Path("job.yaml")))
    assert (len(found) == 1 and said in found[0]) if said else not found
