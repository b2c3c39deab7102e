"""One stream of random numbers for what all workers must draw alike.

Shuffles, generators and initial weights must come out the same on every worker,
or the workers would cut different global batches.
"""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat import keras_internals as touch
from drumbeat.collectives.communicator import Communicator
from drumbeat.tf_internals import (
    global_generator,
    global_seed,
    operation_seeds,
    put_back_operation_seeds,
)


def state() -> tuple[Any, ...]:
    """Where the streams of random numbers of Python, NumPy, TensorFlow and Keras are.

    For TensorFlow that is what gives its eager operations, and its datasets, their seeds,
    and its global generator, as Keras's, if there is one.
    """
    generators = (touch.global_seed_generator(), global_generator())
    return (
        random.getstate(),
        np.random.get_state(legacy=True),
        operation_seeds(),
        [
            None if each is None else np.asarray(tf.convert_to_tensor(each.state)).copy()
            for each in generators
        ],
    )


def put_back(kept: tuple[Any, ...]) -> None:
    """Go on from what `state` returned."""
    python, numpy, tensorflow, (of_keras, of_tensorflow) = kept
    # Made here, it draws its first state.
    if of_keras is not None:
        touch.use_global_seed_generator().state.assign(of_keras)
    if of_tensorflow is not None:
        tf.random.get_global_generator().state.assign(of_tensorflow)
    random.setstate(python)
    np.random.set_state(numpy)
    put_back_operation_seeds(*tensorflow)


def agree(communicator: Communicator) -> None:
    """Give this worker the chief's random state of Python, NumPy and TensorFlow, if it differs.

    Nothing changes where the states already agree, as they do when the script draws
    and seeds alike on all workers: a seeded run keeps the numbers it has on one
    worker.
    """
    state = _snapshot()
    digest = np.frombuffer(hashlib.sha256(state.tobytes()).digest()[:8], np.int64)
    low = communicator.all_reduce_numpy(digest, "min")
    high = communicator.all_reduce_numpy(digest, "max")
    if low[0] != high[0]:
        _restore(communicator.broadcast_numpy(state))
    if global_seed() is None:
        seed = np.array([random.getrandbits(31)], np.int64)
        tf.random.set_seed(int(communicator.broadcast_numpy(seed)[0]))


def _snapshot() -> np.ndarray:
    """The random states as one int64 vector of fixed length."""
    version, words, gauss = random.getstate()
    del version
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    del name
    seed = global_seed()
    floats = np.array([0.0 if gauss is None else gauss, cached], np.float64).view(np.int64)
    numbers: list[Any] = [*words, gauss is not None, *keys, position, has_gauss]
    numbers += [seed is not None, seed or 0]
    return np.concatenate([np.array(numbers, np.int64), floats])


def _restore(state: np.ndarray) -> None:
    words, rest = state[:625].tolist(), state[625:].tolist()
    has_gauss, keys, position, np_has_gauss, seeded, seed = (
        rest[0],
        rest[1:625],
        rest[625],
        rest[626],
        rest[627],
        rest[628],
    )
    gauss, cached = state[-2:].view(np.float64)
    random.setstate((3, tuple(words), float(gauss) if has_gauss else None))
    np.random.set_state(
        ("MT19937", np.array(keys, np.uint32), position, np_has_gauss, float(cached))
    )
    if seeded and seed != global_seed():
        tf.random.set_seed(seed)
