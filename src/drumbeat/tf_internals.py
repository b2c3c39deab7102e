"""Every touch of TensorFlow's internals: what drumbeat uses of `tensorflow.python`.

Supported: TensorFlow 2.21. tests/test_tf_internals.py says what broke when one
of these moves.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.data.experimental.ops.distribute import _AutoShardDataset
from tensorflow.python.data.ops.iterator_ops import IteratorSpec, OwnedIterator
from tensorflow.python.distribute.distribute_lib import StrategyExtendedV1, UpdateContext

__all__ = ["IteratorSpec", "OwnedIterator", "StrategyExtendedV1", "UpdateContext", "auto_shard"]


def auto_shard(dataset: tf.data.Dataset, num_workers: int, index: int) -> tf.data.Dataset:
    """`dataset` rewritten by its own auto-shard policy (FILE or HINT) for worker `index`.

    Raises:
        tf.errors.NotFoundError, tf.errors.InvalidArgumentError: The policy doesn't
            fit: too few files, no file source, or no hint.
    """
    sharded: Any = _AutoShardDataset(dataset, num_workers, index, num_workers)
    return sharded
