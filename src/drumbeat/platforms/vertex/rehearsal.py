"""A CustomJob's replicas as processes of this machine, each with the variables of its place.

Source: Vertex AI, "Distributed training" (CLUSTER_SPEC on every replica, TF_CONFIG in distributed
jobs alone and without evaluators), the description of baseOutputDirectory (AIP_…), and that of
EnvVar ($(NAME) stands for a variable before it).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from drumbeat.cluster.wording import listed
from drumbeat.errors import ConfigError
from drumbeat.platforms.kubernetes.manifests.pod import expand
from drumbeat.platforms.platform import Manifest, NoCommand, Places, Process, Rehearsal
from drumbeat.platforms.vertex import rules as vertex_rules
from drumbeat.platforms.vertex import spec as vertex_spec
from drumbeat.platforms.vertex.spec import ContainerSpec, CustomJobSpec, WorkerPoolSpec

TASKS = ("chief", "worker", "ps", "evaluator")
"""What TF_CONFIG calls the replicas of each pool."""
JOB_ID = "0000000000000000000"
"""In the place of the number that the service gives."""
_MAIN = 2  # the first pools, which the job ends with


@dataclass(frozen=True)
class Replica:
    """One replica.

    Attributes:
        pool: Index of its pool.
        index: Its own, in the pool.
        address: On this machine.
    """

    pool: int
    index: int
    address: str

    @property
    def name(self) -> str:
        """As Vertex AI's logs call it."""
        return f"workerpool{self.pool}-{self.index}"


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The replicas of a CustomJob or CustomJobSpec.

    Raises:
        ConfigError: The manifest is none that Vertex AI would run, or says no command.
    """
    document = vertex_spec.document_of(manifest)
    if document is None:
        raise ConfigError(f"{manifest.path.name} is no CustomJob of Vertex AI.")
    job = vertex_spec.read(document, manifest.path.name)
    is_whole = "jobSpec" in document.value
    if wrong := vertex_rules.errors(job, is_whole=is_whole):
        raise ConfigError("\n".join(wrong))
    spec = job.jobSpec
    pools = {
        index: pool
        for index, pool in enumerate(spec.workerPoolSpecs)
        if not pool.is_empty and not vertex_rules.is_reduction_server(pool)
    }
    replicas = [
        Replica(index, each, f"127.0.0.1:{places.port()}")
        for index, pool in pools.items()
        for each in range(pool.replicaCount)
    ]
    described = document.value["jobSpec"] if is_whole else document.value
    processes = [
        Process(
            name=each.name,
            command=command_of(pools[each.pool], f"workerPoolSpecs[{each.pool}]"),
            env=_env(each, replicas, pools[each.pool], spec, described),
            is_main=each.pool < _MAIN,
        )
        for each in replicas
    ]
    return Rehearsal(
        platform="vertex", processes=tuple(processes), differences=tuple(_differences(spec))
    )


def command_of(pool: WorkerPoolSpec, where: str) -> tuple[str, ...]:
    """What a replica of the pool runs.

    Raises:
        ConfigError: Only the image knows.
    """
    task = pool.task
    if isinstance(task, ContainerSpec):
        if not task.command:
            raise NoCommand(
                f"{where}.containerSpec has no command: the image's ENTRYPOINT runs, which can't "
                "be known here. Write it as command: [drumbeat, run, train.py]."
            )
        return (*task.command, *task.args)
    assert task is not None, "checked before"  # noqa: S101
    return ("python", "-m", str(task.pythonModule), *task.args)


def cluster_spec(replicas: Sequence[Replica], me: Replica, described: Any) -> str:
    """CLUSTER_SPEC of a replica."""
    cluster: dict[str, list[str]] = {}
    for each in replicas:
        cluster.setdefault(f"workerpool{each.pool}", []).append(each.address)
    task = {"type": f"workerpool{me.pool}", "index": me.index}
    spec = {"cluster": cluster, "environment": "cloud", "task": task, "job": described}
    return json.dumps(spec)


def tf_config(
    replicas: Sequence[Replica], me: Replica, described: Any, tasks: Sequence[str] = TASKS
) -> str:
    """TF_CONFIG of a replica; its cluster has no evaluators.

    Args:
        replicas: All of them.
        me: This one.
        described: The job, as it was submitted.
        tasks: What the replicas of each pool are called.
    """
    cluster: dict[str, list[str]] = {}
    for each in replicas:
        if tasks[each.pool] != "evaluator":
            cluster.setdefault(tasks[each.pool], []).append(each.address)
    task = {"type": tasks[me.pool], "index": me.index, "cloud": "rehearsal"}
    config = {"cluster": cluster, "environment": "cloud", "task": task, "job": described}
    return json.dumps(config)


def _env(
    me: Replica,
    replicas: Sequence[Replica],
    pool: WorkerPoolSpec,
    spec: CustomJobSpec,
    described: Any,
) -> dict[str, str]:
    env = {"CLUSTER_SPEC": cluster_spec(replicas, me, described), "CLOUD_ML_JOB_ID": JOB_ID}
    if len(replicas) > 1:
        env["TF_CONFIG"] = tf_config(replicas, me, described)
    if spec.baseOutputDirectory is not None:
        folder = spec.baseOutputDirectory.outputUriPrefix.rstrip("/")
        env["AIP_MODEL_DIR"] = f"{folder}/model/"
        env["AIP_CHECKPOINT_DIR"] = f"{folder}/checkpoints/"
        env["AIP_TENSORBOARD_LOG_DIR"] = f"{folder}/logs/"
    assert pool.task is not None, "checked before"  # noqa: S101
    for each in pool.task.env:
        env[each.name] = expand(each.value, env)
    return env


def _differences(spec: CustomJobSpec) -> list[str]:
    pools = [pool for pool in spec.workerPoolSpecs if not pool.is_empty]
    images = {
        pool.containerSpec.imageUri
        if pool.containerSpec
        else pool.pythonPackageSpec and (pool.pythonPackageSpec.executorImageUri)
        for pool in pools
    }
    found = [
        f"There, the program runs in {listed(sorted(map(str, images)))}; here, in this folder and "
        "this Python.",
        "There, each replica is a machine of its own; here, all share this one.",
        "There, the agents' secret is a file beside the output; here, it is a variable.",
        "There, the job is the service account "
        f"{spec.serviceAccount or 'of Vertex AI for custom code'}; here, it has your credentials.",
    ]
    accelerators = {
        f"{pool.machineSpec.acceleratorCount} {pool.machineSpec.acceleratorType}"
        for pool in pools
        if pool.machineSpec and pool.machineSpec.acceleratorType
    }
    if accelerators:
        found.append(f"There, replicas have {listed(sorted(accelerators))}.")
    if any(vertex_rules.is_reduction_server(pool) for pool in pools):
        found.append(
            "The Reduction Server's pool is left out: its program is Google's, and takes part in "
            "NCCL's all-reduce alone."
        )
    if any(pool.pythonPackageSpec for pool in pools):
        found.append("There, packageUris are installed; here, the module is this folder's.")
    for pool in pools:
        mounts = {each.mountPoint for each in pool.nfsMounts}
        found += [f"There, {name} is mounted at /mnt/nfs/{name}." for name in sorted(mounts)]
    if spec.scheduling.strategy == "SPOT":
        found.append("There, machines are Spot: they may be taken away at any time.")
    return list(dict.fromkeys(found))
