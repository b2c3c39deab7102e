"""Sums of gradients over the workers that travel smaller than they are."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat.cluster.compression import AUTO, NONE, Compress
from drumbeat.collectives.buckets import plan
from drumbeat.collectives.buffers import BufferPool, parts_of
from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.choice import Choice
from drumbeat.collectives.compression.machines import Machines
from drumbeat.collectives.compression.methods import make
from drumbeat.collectives.compression.residuals import Group, Owner, group

_COMPRESSED = (tf.float32, tf.bfloat16, tf.float16)


class Compression:
    """Sums gradients as `Communicator.all_reduce` does, but compresses them.

    Dense gradients of float32 and below are compressed; `tf.IndexedSlices`, float64 and
    whole numbers travel as they are. Encoding is done in NumPy, on the host.

    Guarantees: every worker gets the same bytes. What a step leaves out, later ones bring
    (see `Method`). A job that is killed and goes on comes to the same bytes, as what is
    left out is in its snapshots (`residuals`).

    Args:
        communicator: Of the workers.
        asked: What was asked for.
        choice: Decides where that is "auto".
        machines: Of the workers.
    """

    def __init__(
        self, communicator: Communicator, asked: Compress, choice: Choice, machines: Machines
    ) -> None:
        self._communicator = communicator
        self._asked = asked
        self._choice = choice
        self._machines = machines
        self._pool = BufferPool()

    @property
    def asked(self) -> Compress:
        """What was asked for."""
        return self._asked

    @tf.autograph.experimental.do_not_convert
    def acts_on(self, gradients: Sequence[Any], of: Owner) -> bool:
        """Whether any of these would be compressed.

        The first time, `auto` measures here: all workers must call this.
        """
        chosen = _chosen(gradients)
        if not chosen or self._communicator.size == 1:
            return False
        return self._group(of, chosen, _shapes(gradients, chosen)).method != NONE

    @tf.autograph.experimental.do_not_convert
    def sum(self, gradients: Sequence[Any], of: Owner) -> list[Any]:
        """The sum of each gradient over all workers, in a graph or eagerly.

        Args:
            gradients: Tensors or `tf.IndexedSlices` that it `acts_on`.
            of: Whose they are.

        Raises:
            CollectiveError: See `Communicator`.
        """
        results = list(gradients)
        chosen = _chosen(gradients)
        rest = [i for i in range(len(results)) if i not in chosen]
        sums: list[Any] = self._communicator.all_reduce([results[i] for i in rest])
        for i, total in zip(rest, sums, strict=True):
            results[i] = total

        shapes = _shapes(gradients, chosen)

        def body(scale: Any, *arrays: Any) -> list[Any]:
            # Looked for each time: a restart may have put another one in its place.
            own = self._group(of, chosen, shapes)
            own.rescale(float(scale))
            return self._summed(own, arrays)

        scale = tf.constant(1.0) if of.scale is None else tf.cast(of.scale, tf.float32)
        wide = [tf.cast(results[i], tf.float32) for i in chosen]
        specs = [tf.TensorSpec(each.shape, tf.float32) for each in wide]
        sums = self._communicator.in_order(body, [scale, *wide], specs)
        for i, total in zip(chosen, sums, strict=True):
            results[i] = tf.cast(total, results[i].dtype)
        return results

    def _group(self, of: Owner, chosen: Sequence[int], shapes: Sequence[tuple[int, ...]]) -> Group:
        """Of these gradients, with its method decided."""
        found = group(of, chosen, shapes)
        if self._asked.method != AUTO:
            found.use(str(self._asked))
        elif not found.method:
            with tf.init_scope():
                found.use(self._choice.of(found))
        return found

    def _summed(self, own: Group, arrays: Sequence[Any]) -> list[np.ndarray]:
        if own.runner is None:
            own.runner = make(self._communicator, own, self._machines)
        times = self._communicator.times
        began_s, spent_s = time.monotonic(), times.spent_s
        given = [np.asarray(array) for array in arrays]
        results = self._room(own, given)
        own.runner.sum(given, results)
        # Encoding and decoding are a part of the transfer's cost.
        times.transfer_s += time.monotonic() - began_s - (times.spent_s - spent_s)
        return results

    def _room(self, own: Group, like: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Memory for results, which TensorFlow takes over without a copy."""
        (bucket,) = plan([(a.dtype.name, a.size, a.itemsize) for a in like])
        memory = self._pool.take(own.names, bucket.size_bytes)
        return list(parts_of(memory, bucket, like).values())


def _shapes(gradients: Sequence[Any], chosen: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(gradients[i].shape.as_list()) for i in chosen]


def _chosen(gradients: Sequence[Any]) -> list[int]:
    """Which are to be compressed; of scalars and vectors alone, none."""
    chosen = [
        i
        for i, each in enumerate(gradients)
        if not isinstance(each, tf.IndexedSlices)
        and each.dtype in _COMPRESSED
        and each.shape.is_fully_defined()
    ]
    return chosen if any(gradients[i].shape.rank > 1 for i in chosen) else []
