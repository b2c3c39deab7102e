"""Whether XLA compiles the steps of a `fit`: asked for, or measured before its first step.

Measured is on a batch of zeros, with nothing of other workers in it; variables and random
numbers are put back afterwards, so that the training is the same whatever came out. All
workers use what came out for all of them. See docs/performance.md for the figures behind
the rule.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.cluster.identity import Identity
from drumbeat.strategies.data_parallel import DataParallelStrategy
from drumbeat.training import compiled
from drumbeat.training.compiled import NOTHING, NotCompilable, Parts
from drumbeat.training.jit_record import Record
from drumbeat.training.jit_trial import Timed, Trial

logger = logging.getLogger("drumbeat")

MOST_SAVED = 0.3
"""The largest part of a step that XLA was seen to save: a dense network with Adam."""
LONGEST_COMPILING = 15
"""The most first calls that compiling was seen to take: a CNN with two convolutions."""
LEAST_STEPS = 250
"""With fewer it can't pay, as a first call takes as long as 2.6 steps or more."""


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
    asked = "on" if ahead.asked else strategy.extended.jit
    if strategy.extended.exact or asked == "off":
        if ahead.asked:
            _say(strategy, asked, "exact mode promises bytes that XLA would change")
        compiled.use(model, NOTHING)
    elif asked == "on":
        compiled.use(model, _all_of_it(model, strategy, ahead))
    else:
        compiled.use(model, _measured(model, strategy, ahead))


def _all_of_it(model: Any, strategy: DataParallelStrategy, ahead: Ahead) -> Parts:
    reason = ""
    try:
        _check_model(model)
        # The number of rows makes no difference to what XLA can compile.
        Trial(model, strategy, _batch(ahead.spec, _local_rows(strategy, ahead) or 2)).check()
    except NotCompilable as error:
        reason = str(error)
    _, worst = _extremes(strategy, float(bool(reason)))
    if not worst:
        return Parts(gradients=True, update=True)
    _say(strategy, "on", reason or "another worker can't")
    return NOTHING


def _measured(model: Any, strategy: DataParallelStrategy, ahead: Ahead) -> Parts:
    """What was chosen before, or what turns out to be faster now."""
    keys = _Keys(model, strategy, ahead)
    record = Record.from_env(os.environ)
    known = _known(record, keys, strategy)
    parts, tried = known, False
    if parts is None:
        parts, tried = _tried(model, strategy, ahead)
    record.keep(keys.of_job, parts)
    if tried and strategy.is_chief:
        record.keep_for_user(keys.of_user, parts)
    return parts


def _tried(model: Any, strategy: DataParallelStrategy, ahead: Ahead) -> tuple[Parts, bool]:
    """What is faster, and whether that was measured."""
    rows, reason = _local_rows(strategy, ahead), ""
    trial = None
    try:
        _check_model(model)
        if ahead.steps < LEAST_STEPS:
            raise NotCompilable(f"{ahead.steps} steps are too few for it to pay")
        if not rows:
            raise NotCompilable("the number of rows of a batch isn't known")
        trial = Trial(model, strategy, _batch(ahead.spec, rows))
    except NotCompilable as error:
        reason = str(error)
    if _extremes(strategy, float(trial is None))[1] or trial is None:
        _say(strategy, "auto", reason or "another worker can't")
        return NOTHING, False
    return _timed_choice(trial, strategy, ahead.steps)


def _timed_choice(trial: Trial, strategy: DataParallelStrategy, steps: int) -> tuple[Parts, bool]:
    communicator = strategy.communicator
    with_gradients = _is_on_one_machine() and _can(trial, strategy)
    plain = {"update": trial.update(jit=False).slowest(communicator)}
    if with_gradients:
        plain["gradients"] = trial.gradients(jit=False).slowest(communicator)
    worth = [name for name, timed in plain.items() if may_pay(timed, steps)]
    if not worth:
        _say(strategy, "auto", f"{steps} steps are too few for it to pay")
        return NOTHING, False
    jit = {}
    for name in worth:
        trying = trial.update if name == "update" else trial.gradients
        jit[name] = trying(jit=True).slowest(communicator)
    chosen = {name: pays(plain[name], jit[name], steps) for name in worth}
    if strategy.is_chief:
        for name in worth:
            logger.info(_told(name, plain[name], jit[name], chosen=chosen[name]))
    return Parts(**chosen), True


def may_pay(plain: Timed, steps: int) -> bool:
    """Whether XLA could save as much as compiling takes, which is done here and in the step.

    Args:
        plain: A part of the step, uncompiled.
        steps: How many lie ahead.
    """
    return steps * MOST_SAVED * plain.usual_s > 2 * LONGEST_COMPILING * plain.first_s


def pays(plain: Timed, jit: Timed, steps: int) -> bool:
    """Whether a part of the step is faster when it is compiled, and long enough for that.

    The slowest compiled call has to be faster than the fastest other one.

    Args:
        plain: The part, uncompiled.
        jit: The same, compiled.
        steps: How many lie ahead, for which it has to be compiled once more.
    """
    if max(jit.more_s) >= min(plain.more_s):
        return False
    return steps * (plain.usual_s - jit.usual_s) > jit.first_s


def _can(trial: Trial, strategy: DataParallelStrategy) -> bool:
    """Whether the forward and backward part can be compiled, on all workers."""
    reason = ""
    try:
        trial.check()
    except NotCompilable as error:
        reason = str(error)
    if not _extremes(strategy, float(bool(reason)))[1]:
        return True
    _say(strategy, "auto", f"its gradients can't be: {reason or 'another worker says so'}")
    return False


def _check_model(model: Any) -> None:
    if model.run_eagerly:
        raise NotCompilable("it runs eagerly")
    if not touch.has_keras_train_step(model):
        raise NotCompilable("its train_step is its own")
    if not touch.supports_jit(model):
        raise NotCompilable("a layer says that it doesn't support XLA")
    if model.optimizer is None or not model.optimizer.built or not model.trainable_weights:
        raise NotCompilable("it has nothing to train")


def _batch(spec: Any, rows: int) -> Any:
    """A batch of zeros."""

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


def _is_on_one_machine() -> bool:
    """Between machines sums of gradients begin before all are there, which compiling ends."""
    identity = Identity.from_env(os.environ)
    return identity is not None and identity.local_world_size == identity.world_size


def _extremes(strategy: DataParallelStrategy, mine: float) -> tuple[float, float]:
    """The smallest and the largest of all workers' numbers."""
    both = strategy.communicator.all_reduce_numpy(np.array([-mine, mine]), "max", name="jit")
    return -float(both[0]), float(both[1])


def _say(strategy: DataParallelStrategy, asked: str, reason: str) -> None:
    if strategy.is_chief:
        level = logging.WARNING if asked == "on" else logging.DEBUG
        logger.log(level, "jit %s: XLA doesn't compile the steps of this model: %s.", asked, reason)


def _told(name: str, plain: Timed, jit: Timed, *, chosen: bool) -> str:
    part = {"update": "the update", "gradients": "forward and backward"}[name]
    times = f"{1e3 * jit.usual_s:.3g} ms compiled by XLA, {1e3 * plain.usual_s:.3g} as it is"
    return f"jit auto: {part} takes {times}; {'compiled' if chosen else 'not compiled'}."


# What was found before ------------------------------------------------------------


class _Keys:
    """Names of what a choice is for.

    Attributes:
        of_job: The model and its global batch.
        of_user: The same with all else that decides how fast a step is.
    """

    def __init__(self, model: Any, strategy: DataParallelStrategy, ahead: Ahead) -> None:
        variables = [
            (tuple(v.shape), str(v.dtype), bool(v.trainable))
            for v in (*model.variables, *(model.optimizer.variables if model.optimizer else ()))
        ]
        optimizer = type(model.optimizer).__name__
        about = [touch.layer_names(model), variables, optimizer, str(ahead.spec), ahead.rows]
        machine = [_cpu(), os.sched_getaffinity(0).__len__(), tf.__version__, keras.__version__]
        machine += [tf.config.threading.get_intra_op_parallelism_threads()]
        machine += [os.environ.get("TF_ENABLE_ONEDNN_OPTS", ""), strategy.extended.shares.units]
        self.of_job = _digest(about)
        self.of_user = _digest([about, machine])


def _digest(parts: Any) -> str:
    return hashlib.blake2b(repr(parts).encode(), digest_size=12).hexdigest()


def _cpu() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            return next((line for line in file if line.startswith("model name")), "")
    except OSError:
        return platform.processor()


def _known(record: Record, keys: _Keys, strategy: DataParallelStrategy) -> Parts | None:
    """What the job, or else the chief's machine, has chosen before."""
    of_job = record.in_job(keys.of_job)
    of_user = record.of_user(keys.of_user) if strategy.is_chief else None
    mine = _JOBS_FIRST + _code(of_job) if of_job is not None else _code(of_user)
    found = int(_extremes(strategy, float(mine))[1]) % _JOBS_FIRST
    return None if found == 0 else Parts(gradients=bool(found & 2), update=bool(found & 1))


_JOBS_FIRST = 8


def _code(parts: Parts | None) -> int:
    return 0 if parts is None else 4 + 2 * parts.gradients + parts.update
