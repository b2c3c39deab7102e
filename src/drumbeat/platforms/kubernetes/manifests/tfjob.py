"""Kubeflow's TFJob: its pods, and what its operator refuses.

Source: kubeflow/training-operator v1.9 (pkg/controller.v1/tensorflow, pkg/webhooks/tensorflow).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.kubernetes.manifests import checking
from drumbeat.platforms.kubernetes.manifests.names import MAX_LABEL, no_mappings, unknown_keys
from drumbeat.platforms.kubernetes.manifests.pod import MAX_PODS, Pod
from drumbeat.platforms.kubernetes.manifests.reading import (
    inside,
    mapping,
    objects,
    only_object,
    sequence,
    text,
    texts,
    whole,
)
from drumbeat.platforms.kubernetes.manifests.rehearsing import rehearsal
from drumbeat.platforms.platform import Advice, Manifest, Places, Rehearsal

API, KIND = "kubeflow.org/v1", "TFJob"
CONTAINER, PORT_NAME, PORT = "tensorflow", "tfjob-port", 2222
TYPES = ("Chief", "Master", "Worker", "PS", "Evaluator")
"""By rank: the first two are one task, and a job has one of them at most."""
_LABEL = "training.kubeflow.org/"
_SPEC = ("tfReplicaSpecs", "runPolicy", "successPolicy", "enableDynamicWorker")
_REPLICA = ("replicas", "template", "restartPolicy")
_RUN_POLICY = (
    "cleanPodPolicy",
    "ttlSecondsAfterFinished",
    "activeDeadlineSeconds",
    "backoffLimit",
    "schedulingPolicy",
    "suspend",
    "managedBy",
)
_RESTARTS = ("Always", "OnFailure", "Never", "ExitCode")
_ALONE = "It has one replica, so no TF_CONFIG is set: it trains alone, there, too."
_SPARSE = (
    "enableDynamicWorker: TF_CONFIG lists only the pod's own worker, which is meant for "
    "TensorFlow's parameter servers; drumbeat run refuses it, and a worker of "
    "MultiWorkerMirroredStrategy would train alone or fail."
)


def recognises(manifest: Manifest) -> bool:
    """Whether one of its objects is a TFJob."""
    return bool(objects(manifest, KIND))


def problems(manifest: Manifest) -> list[str]:
    """What the operator would refuse in its TFJobs, or do otherwise than meant."""
    return checking.collected(_problems, manifest)


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The pods of its TFJob as processes, with TF_CONFIG as the operator writes it.

    Raises:
        ConfigError: There are several TFJobs, or what a pod runs isn't known here.
    """
    pods = pods_of(only_object(manifest, KIND))
    notes = [_ALONE] if len(pods) == 1 else []
    return rehearsal("tfjob", pods, places, notes)


def pods_of(job: Mapping[str, Any]) -> list[Pod]:
    """The pods of a TFJob, by rank, then those without one.

    Raises:
        ConfigError: It has none, or too many, or no container that trains.
    """
    name = text(inside(job, "metadata", "name")) or "job"
    namespace = text(inside(job, "metadata", "namespace")) or "default"
    replicas = _replicas(job)
    counts = {kind: whole(spec.get("replicas"), 1) for kind, spec in replicas.items()}
    if not 0 < sum(counts.values()) <= MAX_PODS:
        raise ConfigError(
            f"The TFJob {name} has {sum(counts.values())} replicas; expected 1 to {MAX_PODS}."
        )
    containers = {kind: _container(kind, spec) for kind, spec in replicas.items()}
    cluster = {
        kind.lower(): [
            f"{name}-{kind.lower()}-{index}.{namespace}.svc:{_port(containers[kind])}"
            for index in range(count)
        ]
        for kind, count in sorted(counts.items())
    }
    written = _json(cluster)  # once: with many replicas it is long

    def config(kind: str, index: int) -> str | None:
        if sum(counts.values()) == 1:
            return None
        if inside(job, "spec", "enableDynamicWorker") is True:
            return _sparse(cluster, kind.lower(), index)
        return f'{{"cluster":{written},"task":{_task(kind, index)},"environment":"cloud"}}'

    return [
        _pod(
            (name, namespace),
            (kind, index),
            replicas,
            containers[kind],
            config(kind, index),
        )
        for kind, count in counts.items()
        for index in range(count)
    ]


def _pod(
    job: tuple[str, str],
    task: tuple[str, int],
    replicas: Mapping[str, Mapping[str, Any]],
    container: Mapping[str, Any],
    tf_config: str | None,
) -> Pod:
    (name, namespace), (kind, index) = job, task
    template = replicas[kind].get("template")
    pod_name = f"{name}-{kind.lower()}-{index}"
    labels = {
        "operator-name": "tfjob-controller",
        "job-name": name,
        "replica-type": kind.lower(),
        "replica-index": str(index),
    }
    if kind in ("Chief", "Master") or (_leads(replicas) == kind and index == 0):
        labels["job-role"] = "master"
    return Pod(
        name=f"{kind.lower()}-{index}",
        pod_name=pod_name,
        hostname=pod_name,
        namespace=namespace,
        hosts=(pod_name,),
        spec=mapping(inside(template, "spec")),
        container=container,
        labels=texts(inside(template, "metadata", "labels"))
        | {_LABEL + key: value for key, value in labels.items()},
        annotations=texts(inside(template, "metadata", "annotations")),
        appended={"TF_CONFIG": tf_config} if tf_config is not None else {},
        is_main=_is_main(kind, replicas),
        meets=kind != "Evaluator",
    )


def _leads(replicas: Mapping[str, object]) -> str:
    return next((kind for kind in ("Chief", "Master") if kind in replicas), "Worker")


def _is_main(kind: str, replicas: Mapping[str, object]) -> bool:
    """Of a cluster with ps the chief's end is the job's; TensorFlow's servers never end."""
    if "PS" in replicas and _leads(replicas) != "Worker":
        return kind in ("Chief", "Master")
    return kind in ("Chief", "Master", "Worker")


def _task(kind: str, index: int) -> str:
    return _json({"type": kind.lower(), "index": index})


def _sparse(cluster: Mapping[str, list[str]], kind: str, index: int) -> str:
    """TF_CONFIG with enableDynamicWorker: a worker sees itself and the ps, a ps itself."""
    seen: dict[str, Any] = {"worker": {}, "ps": []}
    if kind == "worker":
        # Go writes a list that nobody made as null.
        seen = {"worker": {str(index): cluster[kind][index]}, "ps": cluster.get("ps")}
    elif kind == "ps":
        seen["ps"] = [cluster[kind][index]]
    return f'{{"cluster":{_json(seen)},"task":{_task(kind, index)}}}'


def _json(value: object) -> str:
    """As Go writes it."""
    return json.dumps(value, separators=(",", ":"))


def _replicas(job: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The replica specs by their type as the operator spells it, those of no type left out."""
    given = mapping(inside(job, "spec", "tfReplicaSpecs"))
    spelled = {name.lower(): name for name in TYPES}
    found = {
        spelled[key.lower()]: mapping(each) for key, each in given.items() if key.lower() in spelled
    }
    return {kind: found[kind] for kind in TYPES if kind in found}


def _container(kind: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    containers = map(mapping, sequence(inside(spec, "template", "spec", "containers")))
    found = next((each for each in containers if each.get("name") == CONTAINER), None)
    if found is None:
        raise ConfigError(f"{kind} has no container called {CONTAINER}; the operator expects one.")
    return found


def _port(container: Mapping[str, Any]) -> int:
    for port in map(mapping, sequence(container.get("ports"))):
        if port.get("name") == PORT_NAME:
            return whole(port.get("containerPort"), PORT)
    return PORT


def _problems(manifest: Manifest) -> Iterator[str]:
    for job in objects(manifest, KIND):
        yield from _job_problems(job)
        if _replicas(job):
            yield from checking.identity_problems(pods_of(job))


def _job_problems(job: Mapping[str, Any]) -> Iterator[str]:
    name, spec = inside(job, "metadata", "name"), mapping(job.get("spec"))
    where = f"TFJob {name}" if isinstance(name, str) else "TFJob"
    yield from checking.api_problems(where, job, API)
    yield from checking.metadata_problems(where, job)
    yield from checking.name_problems(where, job)
    yield from unknown_keys(f"{where}, spec", spec, _SPEC)
    yield from no_mappings(where, spec, "tfReplicaSpecs", "runPolicy")
    yield from _policy_problems(where, spec)
    given = mapping(spec.get("tfReplicaSpecs"))
    if not given:
        yield f"{where} has no tfReplicaSpecs; expected Worker, and Chief, PS or Evaluator."
    types = {each.lower() for each in TYPES}
    for key in given:
        if key.lower() not in types:
            yield f"{where} has the replica type {shown(key)}; expected one of {listed(TYPES)}."
    replicas = _replicas(job)
    if "Chief" in replicas and "Master" in replicas:
        yield f"{where} has a Chief and a Master; the operator takes one of them."
    for kind, each in replicas.items():
        yield from _replica_problems(text(name), kind, each)
    yield from _cluster_problems(where, spec, replicas)


def _policy_problems(where: str, spec: Mapping[str, Any]) -> Iterator[str]:
    policy = mapping(spec.get("runPolicy"))
    yield from unknown_keys(f"{where}, runPolicy", policy, _RUN_POLICY)
    if (clean := policy.get("cleanPodPolicy")) not in (None, "None", "Running", "All"):
        yield f"{where}: cleanPodPolicy is {shown(clean)}; expected None, Running or All."
    if (success := spec.get("successPolicy")) not in (None, "", "AllWorkers"):
        yield f'{where}: successPolicy is {shown(success)}; expected "" or AllWorkers.'


def _replica_problems(name: str, kind: str, spec: Mapping[str, Any]) -> Iterator[str]:
    yield from unknown_keys(kind, spec, _REPLICA)
    count, longest = spec.get("replicas", 1), whole(spec.get("replicas"), 1)
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        yield (
            f"{kind}: replicas is {shown(count)}; expected a number from 1, or no {kind} at all: "
            "an empty list in TF_CONFIG crashes TensorFlow."
        )
    if kind in ("Chief", "Master", "Evaluator") and longest > 1:
        yield f"{kind}: replicas is {longest}; TensorFlow takes one at most."
    last = f"{name}-{kind.lower()}-{max(longest - 1, 0)}"
    if name and len(last) > MAX_LABEL:
        yield (
            f"The pod and Service {last} would have {len(last)} characters in their name; expected "
            f"at most {MAX_LABEL}. Give the TFJob a shorter name."
        )
    policy = spec.get("restartPolicy")
    if policy not in (None, *_RESTARTS):
        yield f"{kind}: restartPolicy is {shown(policy)}; expected one of {listed(_RESTARTS)}."
    template = spec.get("template")
    own = inside(template, "spec", "restartPolicy")
    if own and own != (policy or "Never"):
        yield Advice(
            f"{kind}: the template's restartPolicy {shown(own)} is overwritten by the replica's, "
            f"{policy or 'Never'}; write it beside replicas."
        )
    yield from checking.template_problems(kind, template, CONTAINER)
    for container in map(mapping, sequence(inside(template, "spec", "containers"))):
        if container.get("name") == CONTAINER:
            yield from _trainer_problems(kind, policy, container)


def _trainer_problems(kind: str, policy: object, container: Mapping[str, Any]) -> Iterator[str]:
    names = {text(mapping(each).get("name")) for each in sequence(container.get("env"))}
    if "TF_CONFIG" in names:
        yield Advice(
            f"{kind}: the template has TF_CONFIG, and the operator adds another one, which wins; "
            "leave it out."
        )
    if container.get("readinessProbe") is not None:
        yield Advice(
            f"{kind}: until the readinessProbe succeeds, the others can't find the pod by its "
            "name; leave it out."
        )
    if policy == "ExitCode" and checking.runs_drumbeat(container):
        yield Advice(
            f"{kind}: restartPolicy ExitCode takes codes under 128 for the end, so also 75 of "
            "drumbeat run, which has saved its state and wants to be started again; expected "
            "OnFailure."
        )


def _cluster_problems(
    where: str, spec: Mapping[str, Any], replicas: Mapping[str, Mapping[str, Any]]
) -> Iterator[str]:
    ours = any(
        checking.runs_drumbeat(mapping(container))
        for each in replicas.values()
        for container in sequence(inside(each, "template", "spec", "containers"))
    )
    if replicas and not {"Chief", "Master", "Worker"} & replicas.keys():
        yield f"{where} has neither a Chief nor Workers; expected some that train."
    # Scripts of TensorFlow 1 take all of this, and what an image runs isn't known.
    said = str if ours else Advice
    if "Master" in replicas and not ours:
        yield said(f"{where} has a Master, which TensorFlow 2 does not know; write Chief.")
    if "PS" in replicas and _leads(replicas) == "Worker":
        yield said(
            f"{where} has PS but no Chief, which in TensorFlow 2 coordinates the others with "
            "parameter servers (and with MultiWorkerMirroredStrategy, all would wait for ever); "
            "add a Chief, or leave PS out."
        )
    if spec.get("enableDynamicWorker") is True:
        yield said(f"{where}: {_SPARSE}")
