"""Which communicator a process gets."""

from __future__ import annotations

from drumbeat.cluster.identity import Identity
from drumbeat.cluster.spec import ClusterSpec
from drumbeat.collectives.communicator import Communicator, Observer
from drumbeat.collectives.local import LocalCommunicator
from drumbeat.errors import ConfigError


def communicator(
    identity: Identity | None,
    cluster: ClusterSpec | None = None,
    observer: Observer | None = None,
) -> Communicator:
    """Connects this process to the other workers of its job.

    Args:
        identity: Who the process is; None outside `drumbeat run`.
        cluster: The cluster of TF_CONFIG with this process's task. Only the
            TensorFlow communicator needs it; tasks that don't train are left out.
        observer: Is told of every collective, the connecting first; nothing is told
            by a communicator of one worker.

    Returns:
        One that fits `identity.collectives`; without an identity, or in a job of
        one worker, one that returns its inputs and needs neither.

    Raises:
        ConfigError: The process takes no part in the training, or what the
            communicator needs is missing or contradicts the identity.
        CollectiveTimeout: The other workers did not come in time.
    """
    if identity is None or (identity.rank >= 0 and identity.world_size == 1):
        return LocalCommunicator()
    if identity.rank < 0:
        raise ConfigError(
            f"{identity.name} takes no part in the synchronous training, so it has no collectives. "
            "Only the chief and workers do."
        )
    if observer is None:
        return _connected(identity, cluster)
    observer.enter(0, "the strategy's making", "")
    try:
        made = _connected(identity, cluster)
    finally:
        observer.leave()
    made.observer = observer
    return made


def _connected(identity: Identity, cluster: ClusterSpec | None) -> Communicator:
    if identity.collectives == "mpi":
        from drumbeat.collectives.mpi import MpiCommunicator

        return MpiCommunicator.connect(
            rank=identity.rank,
            size=identity.world_size,
            timeout_s=identity.timeout_s,
            local_rank=identity.local_rank,
            local_size=identity.local_world_size,
        )
    from drumbeat.collectives.tensorflow import TensorFlowCommunicator

    return TensorFlowCommunicator.connect(_checked(identity, cluster), timeout_s=identity.timeout_s)


def _checked(identity: Identity, cluster: ClusterSpec | None) -> ClusterSpec:
    """The cluster, if it has a task for this process and gives it the rank it was told."""
    if cluster is None or cluster.task is None:
        raise ConfigError(
            "collectives are 'tensorflow', which needs the addresses of all workers, but there is "
            "no TF_CONFIG with this process's task. Start with `drumbeat run`, set TF_CONFIG, or "
            "choose --collectives mpi."
        )
    rank, size = cluster.rank_of(cluster.task), cluster.world_size
    if (rank, size) != (identity.rank, identity.world_size):
        raise ConfigError(
            f"TF_CONFIG says this process ({cluster.task}) is rank {rank} of {size}, but "
            f"DRUMBEAT_RANK and DRUMBEAT_WORLD_SIZE say rank {identity.rank} of "
            f"{identity.world_size}. Start workers with `drumbeat run` alone, which sets both."
        )
    return cluster
