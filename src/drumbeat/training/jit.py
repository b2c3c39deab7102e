"""Whether XLA compiles the steps of a `fit`: asked for, or measured before its first step.

Measured is on a batch of zeros, with nothing of other workers in it; variables and random
numbers are put back afterwards, so that the training is the same whatever came out. All
workers use what came out for all of them. Where a `fit` isn't known to be long enough to
make up for it, nothing is measured. See docs/performance.md for the figures behind the rule.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.cluster.identity import Identity
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import compiled, jit_trial
from drumbeat.training.compiled import NotCompilable
from drumbeat.training.jit_record import Record, Times
from drumbeat.training.jit_trial import Trial

logger = logging.getLogger("drumbeat")

MOST_SPENT = 0.02
"""Of the time of a `fit`, on finding out."""
LEAST_STEPS = 2500
"""To time a step as it is takes as long as 13 to 52 of them: that much of so many."""
MOST_COMPILING = 4
"""First compiled steps take that many times as long as others at most: seen were 1.9 to 2.5,
and 3.5 with a convolution."""
LEAST_GAIN = 0.15
"""A dense network took 0.87 to 1.12 times as long, compiled in one run or another: less than
that may be gone when it is compiled once more."""
ROUNDS = 7


@dataclass(frozen=True)
class Ahead:
    """The steps that lie ahead.

    Attributes:
        spec: Type specification of this worker's batches.
        rows: Of the global batch, in most steps; 0 where unknown.
        steps: How many there will be; 0 where unknown.
        asked: By the user for this model: it was compiled with `jit_compile=True`.
    """

    spec: Any
    rows: int
    steps: int
    asked: bool


def settle(model: Any, strategy: DataParallelStrategy, ahead: Ahead) -> None:
    """Decides for `model`, which has been built; all workers must call it."""
    asked = strategy.extended.jit
    if asked == "auto" and ahead.asked:
        asked = "on"
    reason = _ruled_out(strategy)
    if reason or asked == "off":
        if asked == "on":
            _warn(strategy, reason)
        compiled.use(model, jit=False)
    elif asked == "on":
        compiled.use(model, jit=_as_asked(model, strategy, ahead))
    else:
        compiled.use(model, jit=_as_measured(model, strategy, ahead))


def _ruled_out(strategy: DataParallelStrategy) -> str:
    """Why no model's steps are compiled, "" if they may be."""
    if strategy.extended.exact:
        return "exact mode promises bytes that it changes"
    if strategy.extended.replicas.count > 1:
        return "a process with several devices runs each step on all of them"
    return ""


def _as_asked(model: Any, strategy: DataParallelStrategy, ahead: Ahead) -> bool:
    reason = ""
    try:
        _check(model, strategy)
        # The number of rows makes no difference to what XLA can compile.
        trial = Trial(model, strategy, _zeros(ahead.spec, _local_rows(strategy, ahead) or 2))
        with trial.without_trace():
            trial.check()
    except NotCompilable as error:
        reason = str(error)
    if not _any(strategy, bool(reason)):
        return True
    _warn(strategy, reason or "another worker can't")
    return False


def _warn(strategy: DataParallelStrategy, reason: str) -> None:
    if strategy.is_chief:
        logger.warning("XLA doesn't compile the steps of this model: %s.", reason)


def _as_measured(model: Any, strategy: DataParallelStrategy, ahead: Ahead) -> bool:
    """What was chosen before in this job, or what turns out to be faster."""
    reason = ""
    try:
        if ahead.steps < LEAST_STEPS:
            raise NotCompilable(f"{ahead.steps} steps are too few for it to pay")
        _check(model, strategy)
        _check_likely(model, strategy)
        batch = _zeros(ahead.spec, _local_rows(strategy, ahead))
    except NotCompilable as error:
        batch, reason = None, str(error)
    if _any(strategy, batch is None):
        if strategy.is_chief:
            logger.debug("jit auto: not compiled: %s.", reason or "another worker can't")
        return False
    record = Record.from_env(os.environ)
    of_job, of_user = _keys(model, strategy, ahead)
    chosen = _known(record.in_job(of_job), strategy)
    if chosen is None:
        known = record.of_user(of_user) if strategy.is_chief else None
        times = _agreed(known, strategy)
        trial = Trial(model, strategy, batch)
        measured = _measured(trial, strategy, times, ahead.steps)
        chosen = pays(measured, ahead.steps)
        if strategy.is_chief:
            if measured != times:
                record.keep_for_user(of_user, measured)
            _tell(measured, ahead.steps, chosen=chosen)
    record.keep(of_job, chosen)
    return chosen


def may_pay(times: Times, steps: int) -> bool:
    """Whether so many steps take so long that it doesn't matter if compiling is tried in vain."""
    return steps * times.plain_s * MOST_SPENT > (1 + MOST_COMPILING) * times.first_s


def pays(times: Times, steps: int) -> bool:
    """Whether compiled steps are faster by enough to be worth being compiled once more."""
    if not times.first_compiled_s or times.compiled_s > (1 - LEAST_GAIN) * times.plain_s:
        return False
    return steps * (times.plain_s - times.compiled_s) > times.first_compiled_s


def _measured(
    trial: Trial, strategy: DataParallelStrategy, known: Times | None, steps: int
) -> Times:
    """Times by which `pays` can tell: those known, if they are enough, or else new ones."""
    if known is not None and (known.first_compiled_s or not may_pay(known, steps)):
        return known
    with trial.without_trace():
        plain = trial.step(jit=False)
        first_s = _slowest(strategy, [jit_trial.seconds(plain)])[0]
        if first_s == float("inf"):
            return Times(first_s, first_s)
        plain_s = [jit_trial.seconds(plain) for _ in range(ROUNDS)]
        times = Times(first_s, float(np.median(_slowest(strategy, plain_s))))
        if not may_pay(times, steps):
            return times
        jit = trial.step(jit=True)
        first_compiled_s = _slowest(strategy, [jit_trial.seconds(jit)])[0]
        if first_compiled_s == float("inf"):
            return replace(times, first_compiled_s=first_compiled_s, compiled_s=first_compiled_s)
        # In turns, so that what else goes on slows both down.
        both = [[jit_trial.seconds(plain), jit_trial.seconds(jit)] for _ in range(ROUNDS)]
    pairs = np.array(_slowest(strategy, np.ravel(both).tolist())).reshape(ROUNDS, 2)
    plain_s = float(np.median(pairs[:, 0]))
    # Three of four rounds have been better than that.
    ratio = float(np.quantile(pairs[:, 1] / pairs[:, 0], 0.75))
    return Times(first_s, plain_s, first_compiled_s, plain_s * ratio)


def _tell(times: Times, steps: int, *, chosen: bool) -> None:
    if not times.first_compiled_s or times.first_compiled_s == float("inf"):
        why = "too few for it to pay" if times.plain_s < float("inf") else "of a kind it can't"
        logger.debug("jit auto: not compiled: %d steps of %.3g s, %s.", steps, times.plain_s, why)
        return
    logger.warning(
        "--jit auto: a step takes %.3g ms when XLA compiles it (in %.1f s), %.3g as it is: %s.",
        1e3 * times.compiled_s,
        times.first_compiled_s,
        1e3 * times.plain_s,
        "compiled" if chosen else "not compiled",
    )


# What rules it out ----------------------------------------------------------------


def _check(model: Any, strategy: DataParallelStrategy) -> None:
    if tf.config.list_physical_devices("GPU"):
        raise NotCompilable("it is made for CPUs, and there is a GPU")
    if model.run_eagerly:
        raise NotCompilable("it runs eagerly")
    if not touch.has_keras_train_step(model):
        raise NotCompilable("its train_step is its own")
    if not touch.supports_jit(model):
        raise NotCompilable("a layer says that it doesn't support XLA")
    if model.optimizer is None or not model.optimizer.built or not model.trainable_weights:
        raise NotCompilable("it has nothing to train")
    if strategy.extended.inputs.rebalancer is not None:
        raise NotCompilable("with --shares auto each new number of rows is compiled for anew")


def _check_likely(model: Any, strategy: DataParallelStrategy) -> None:
    """Raises NotCompilable where it won't be faster."""
    if any("Conv" in name for name in touch.layer_names(model)):
        raise NotCompilable(jit_trial.SLOW)
    identity = Identity.from_env(os.environ)
    if identity is None or identity.local_world_size < identity.world_size:
        raise NotCompilable("between machines sums begin before all gradients are there")


def _zeros(spec: Any, rows: int) -> Any:
    """A batch."""
    if not rows:
        raise NotCompilable("the number of rows of a batch isn't known")

    def zeros(leaf: Any) -> Any:
        if leaf is None:
            return None
        known = isinstance(leaf, tf.TensorSpec) and leaf.dtype != tf.string
        if not known or leaf.shape.rank is None or None in leaf.shape[1:]:
            raise NotCompilable(f"the shapes of its data change, or aren't numbers: {leaf}")
        return tf.zeros([rows, *leaf.shape[1:]] if leaf.shape.rank else [], leaf.dtype)

    return tf.nest.map_structure(zeros, spec)


def _local_rows(strategy: DataParallelStrategy, ahead: Ahead) -> int:
    start, stop = strategy.extended.shares.rows_of(strategy.communicator.rank, ahead.rows)
    return stop - start


# What workers agree on ------------------------------------------------------------


def _slowest(strategy: DataParallelStrategy, mine: list[float]) -> list[float]:
    numbers = np.array(mine, np.float64)
    return strategy.communicator.all_reduce_numpy(numbers, "max", name="jit").tolist()


def _any(strategy: DataParallelStrategy, mine: bool) -> bool:
    return bool(_slowest(strategy, [float(mine)])[0])


def _known(mine: bool | None, strategy: DataParallelStrategy) -> bool | None:
    """What any worker knows: one whose machine is new knows nothing."""
    found = _slowest(strategy, [-1.0 if mine is None else float(mine)])[0]
    return None if found < 0 else bool(found)


def _agreed(times: Times | None, strategy: DataParallelStrategy) -> Times | None:
    """The chief's."""
    mine = [0.0] * 4
    if times is not None:
        mine = [times.first_s, times.plain_s, times.first_compiled_s, times.compiled_s]
    of_chief = strategy.communicator.broadcast_numpy(np.array(mine, np.float64))
    return Times(*of_chief.tolist()) if of_chief[0] else None


def _keys(model: Any, strategy: DataParallelStrategy, ahead: Ahead) -> tuple[str, str]:
    """Names of what a choice is for: for the job's record, and for the user's.

    The first of the model, its batches and how many there are, the second without their
    number, but with all else that decides how fast a step is.
    """
    variables = [
        (tuple(v.shape), str(v.dtype), bool(v.trainable))
        for v in (*model.variables, *model.optimizer.variables)
    ]
    optimizer = type(model.optimizer).__name__
    about = [touch.layer_names(model), variables, optimizer, str(ahead.spec), ahead.rows]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    machine = [_cpu(), cores, tf.__version__, keras.__version__]
    machine += [tf.config.threading.get_intra_op_parallelism_threads()]
    machine += [os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""), strategy.extended.shares.units]
    return _digest([about, ahead.steps]), _digest([about, machine])


def _digest(parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
