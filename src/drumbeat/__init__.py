"""Train the Keras script you have on many workers: the same model, faster.

`drumbeat run -n 4 train.py` needs nothing of this module; `drumbeat.strategy()`
is the explicit spelling for scripts of their own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

from drumbeat import data, state
from drumbeat.state import loops
from drumbeat.state.anonymous import FDS_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    import tensorflow as tf

    from drumbeat.state.loops import Keeper, Resumable

    StrategyName = Literal[
        "auto", "one-device", "mirrored", "central-storage", "multi-worker", "parameter-server"
    ]

__version__ = "0.1.0"
__all__ = ["__version__", "average_weights", "data", "state", "strategy"]


def _keeper(progress: Resumable) -> Keeper | None:
    """What keeps a loop's state under `drumbeat run`; elsewhere TensorFlow isn't even imported."""
    if FDS_VARIABLE not in os.environ:
        return None
    from drumbeat.training.loops import keeper

    return keeper(progress)


loops.keepers.append(_keeper)


def strategy(
    name: StrategyName | None = None,
    *,
    exact: int | None = None,
    shares: Sequence[int] | Literal["auto"] | None = None,
    compress: str | None = None,
    sync_every: int | None = None,
    outer: str | None = None,
    jit: Literal["auto", "on", "off"] | None = None,
    min_shard_bytes: int | None = None,
) -> tf.distribute.Strategy:
    """The strategy that fits this process's cluster.

    By itself it takes parameter servers where the cluster (of `drumbeat run`, or of
    TF_CONFIG) has any, synchronous data-parallel training with several workers, all devices
    of a single worker that has several, and else TensorFlow's default strategy. All of them are
    a `tf.distribute.Strategy`, with `scope()`, `run()` and the rest of that class's methods.

    Args:
        name: "one-device", "mirrored", "central-storage", "multi-worker" or
            "parameter-server" for this one; None or "auto" for the one that fits.
            `drumbeat run --strategy` wins over it.
        exact: Exact mode: weights have the same bytes for every number of workers that
            divides this number of virtual shards, into which each global batch is cut.
            `num_replicas_in_sync` is this number then. Also for one process alone.
            None: as `drumbeat run --exact` says, or not.
        shares: How many rows of each global batch each worker takes, in relation to the
            others: [2, 1] gives the first worker twice as many as the second, "auto"
            measures the workers' speed while they train. The batches stay the same, so
            does the result. None: as `drumbeat run --shares` says, or equal parts.
        compress: Send smaller gradients, for slow networks: "bf16", "fp16", "int8",
            "powersgd:4" (the rank), "topk:0.01" (the part that is sent), or "auto" to
            measure which makes steps shorter. It changes the training a little (see
            docs/performance.md). None: as `drumbeat run --compress` says, or not.
        sync_every: Local SGD: so many steps each worker makes by itself, by the gradients of
            its own rows; then they average their weights. Another algorithm, for networks on
            which exchanging gradients in every step takes too long (see docs/strategies.md).
            None: as `drumbeat run --sync-every` says, or gradients are summed in every step.
        outer: With `sync_every`: "nesterov", or "nesterov:0.7,0.9" with learning rate and
            momentum, for the outer optimizer of Douillard et al. 2023 (DiLoCo). None: as
            `drumbeat run --outer` says, or the average is taken as it is.
        jit: Let XLA compile the forward and backward part and the update of `fit`'s steps:
            "on", "off", or "auto" to measure before the first step whether that is faster.
            None: as `drumbeat run --jit` says, or "auto".
        min_shard_bytes: With parameter servers: cut large variables over the ps tasks, into
            parts of at least so many bytes (see docs/strategies.md); at the first call. Other
            strategies take no notice of it.

    Returns:
        The same strategy at every call in a process.

    Raises:
        drumbeat.errors.ConfigError: TF_CONFIG, the Keras backend or an argument can't
            be used, or the cluster can't have the strategy; says what is missing.
        drumbeat.errors.CollectiveError: The other workers can't be reached.
    """
    from drumbeat.cluster.averaging import Averaging
    from drumbeat.strategies import choose
    from drumbeat.training.integrate import integrate

    integrate()
    given = sync_every is not None or outer is not None
    averaging = Averaging.of(sync_every, outer) if given else None
    return choose.strategy(
        name,
        exact=exact,
        shares=shares,
        compress=compress,
        averaging=averaging,
        jit=jit,
        min_shard_bytes=min_shard_bytes,
    )


def average_weights(*trained: object) -> None:
    """With `sync_every`, makes weights of all workers their average now; else does nothing.

    For training loops of your own, before weights are used: `fit`, `evaluate` and `predict`
    do it themselves, at their begin and at the end of every epoch. The next round of steps
    begins after it. To be called by all workers, outside of `strategy.run`.

    Args:
        trained: Optimizers, or models with theirs.

    Raises:
        drumbeat.errors.CollectiveError: The other workers can't be reached.
    """
    from drumbeat.training import local_sgd

    local_sgd.average_weights(*trained)
