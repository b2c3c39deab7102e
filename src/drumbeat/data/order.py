"""The order in which an epoch reads examples, as arithmetic: no shuffle buffer, no list.

Shuffling is a permutation that is computed position by position, so a worker can
name the examples of its own rows without going through those of the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import tensorflow as tf

# With TensorFlow's usual 4, permutations of up to some 100 000 are measurably less even
# than random ones; from 8 on they can't be told from them.
_ROUNDS = 16
# TensorFlow's stubs know it by half.
_stateless_uniform: Any = tf.random.stateless_uniform


@dataclass(frozen=True)
class Order:
    """Which example stands where, and how the rows are cut into global batches.

    Attributes:
        num_examples: At least 1.
        batch_size: Rows of a global batch, at least 1.
        drop_remainder: Whether a last batch with fewer rows is left out.
        seed: Each epoch has an order of its own, drawn from this and the epoch's number;
            None keeps the order of the source.
    """

    num_examples: int
    batch_size: int
    drop_remainder: bool
    seed: int | None

    @property
    def full_batches(self) -> int:
        """Global batches of `batch_size` rows in an epoch."""
        return self.num_examples // self.batch_size

    @property
    def last_rows(self) -> int:
        """Rows of the last, shorter batch; 0 where there is none."""
        return 0 if self.drop_remainder else self.num_examples % self.batch_size

    @property
    def num_batches(self) -> int:
        """Global batches in an epoch."""
        return self.full_batches + (self.last_rows > 0)

    def examples_at(self, positions: Any, epoch: Any) -> Any:
        """The numbers of the examples at `positions` of `epoch`.

        The permutation is the keyed one of TensorFlow's `RandomIndexShuffle`, which
        tf.random.experimental.index_shuffle computes too; any number of examples takes
        no memory.

        Args:
            positions: int64 vector, each in [0, num_examples).
            epoch: int64 scalar, from 0.

        Returns:
            int64 vector; all positions of an epoch together name each example once.
        """
        if self.seed is None:
            return positions
        return tf.raw_ops.RandomIndexShuffle(
            index=positions,
            seed=self._key(epoch),
            max_index=tf.constant(self.num_examples - 1, tf.int64),
            rounds=_ROUNDS,
        )

    def seeds_of(self, examples: Any, epoch: Any) -> Any:
        """For each example two numbers for stateless random operations, int64 [n, 2].

        They differ between examples, epochs and seeds, and depend on nothing else.
        """
        own = _stateless_uniform(
            [], tf.stack([self._seed, epoch]), None, None, tf.int64, alg="philox"
        )
        return tf.stack([tf.fill(tf.shape(examples), own), examples], axis=1)

    def _key(self, epoch: Any) -> Any:
        # Numbers that follow each other, used as keys as they are, give a few orders again
        # and again: of random keys all are good.
        return _stateless_uniform(
            [3], tf.stack([self._seed, epoch]), None, None, tf.uint32, alg="philox"
        )

    @property
    def _seed(self) -> Any:
        bits = (self.seed or 0) % 2**64
        return tf.constant(bits - 2**64 if bits >= 2**63 else bits, tf.int64)
