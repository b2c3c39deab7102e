"""Times a few operations that stand for training, in an environment that is to be judged.

A process of its own: TensorFlow reads its environment when it is imported. It says on
stdout when it is ready, then answers each line on stdin with one of its own, and ends with
stdin or with the process that started it.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

from drumbeat.launch.parent import die_with_parent

READY = "ready"
OPERATIONS = ("convolution", "dense", "normalization", "update", "embedding")
_WARM_UPS = 2


def main(argv: list[str]) -> None:
    """Entry point: `argv` is the pid of the process that started it, and CPUs to run on."""
    die_with_parent(int(argv[0]))
    cpus = [int(number) for number in argv[1].split(",") if number]
    operations = make_operations()
    for operation in operations.values():
        for _ in range(_WARM_UPS):
            operation()
    if cpus:
        _move_to(cpus)
    _say(READY)
    for line in sys.stdin:
        counts = json.loads(line)
        _say(json.dumps({name: _time(operations[name], counts[name]) for name in counts}))


def make_operations() -> dict[str, Callable[[], Any]]:
    """Functions that each run one kind of operation to its end, by name.

    Forward and backward of a convolution, a dense layer and a batch normalization, the
    update of an optimizer, and a lookup of embeddings with its sparse gradient; about 1 to
    10 ms each on one core.
    """
    import tensorflow as tf

    draw = tf.random.Generator.from_seed(0).normal

    def gradients(loss: Callable[..., Any], *variables: Any) -> Callable[[], Any]:
        @tf.function
        def run() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(variables)
                value = loss(*variables)
            return tape.gradient(value, variables)

        return run

    images = draw([64, 28, 28, 8])
    rows = draw([256, 512])
    moments = draw([1_000_000]), draw([1_000_000])
    slopes = draw([1_000_000])
    ids = tf.random.Generator.from_seed(1).uniform([4096], 0, 20_000, tf.int32)

    def convolution(kernel: Any) -> Any:
        return tf.reduce_mean(tf.nn.relu(tf.nn.conv2d(images, kernel, 1, "SAME")))

    def dense(first: Any, second: Any) -> Any:
        return tf.reduce_mean(tf.nn.softmax(tf.nn.relu(rows @ first) @ second))

    def normalization(scale: Any, offset: Any) -> Any:
        raw: Any = tf.raw_ops.FusedBatchNormV3
        out = raw(x=images, scale=scale, offset=offset, mean=[], variance=[], is_training=True)
        return tf.reduce_mean(tf.square(out.y))

    def embedding(table: Any) -> Any:
        return tf.reduce_mean(tf.square(tf.gather(table, ids)))

    @tf.function
    def update() -> Any:
        first, second = moments
        first = first + (slopes - first) * 0.1
        second = second + (tf.square(slopes) - second) * 0.001
        return slopes - 0.001 * first / (tf.sqrt(second) + 1e-7)

    return {
        "convolution": gradients(convolution, draw([3, 3, 8, 16])),
        "dense": gradients(dense, draw([512, 512]), draw([512, 10])),
        "normalization": gradients(normalization, tf.ones([8]), tf.zeros([8])),
        "update": update,
        "embedding": gradients(embedding, draw([20_000, 32])),
    }


def _time(operation: Callable[[], Any], count: int) -> float:
    began_s = time.perf_counter()
    for _ in range(count):
        operation()
    return time.perf_counter() - began_s


def _move_to(cpus: list[int]) -> None:
    """Has all threads run there, like those of a worker."""
    if not hasattr(os, "sched_setaffinity"):
        return
    for thread in os.listdir("/proc/self/task"):
        try:
            os.sched_setaffinity(int(thread), cpus)
        except OSError:
            continue  # it has ended, or these CPUs have gone


def _say(text: str) -> None:
    print(text, flush=True)
