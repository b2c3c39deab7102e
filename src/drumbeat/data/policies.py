"""What `tf.data.Options().experimental_distribute.auto_shard_policy` means here.

The policies are TensorFlow's
(https://www.tensorflow.org/api_docs/python/tf/data/experimental/AutoShardPolicy);
AUTO differs in one point, named below.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable

import tensorflow as tf

from drumbeat.data.distributed import split_batches
from drumbeat.errors import DataError
from drumbeat.tf_internals import auto_shard

logger = logging.getLogger("drumbeat")
Policy = tf.data.experimental.AutoShardPolicy


def shard(
    dataset: tf.data.Dataset, rank: int, world_size: int, all_agree: Callable[[bool], bool]
) -> tf.data.Dataset | None:
    """This worker's own part of `dataset`, by its auto-shard policy.

    - AUTO and DATA: None, for "every worker runs the pipeline and takes its rows of
      each global batch". TensorFlow's AUTO would share out files where it finds any;
      that makes the global batches depend on the number of workers.
    - FILE: worker i reads every `world_size`-th file from the i-th on. With fewer
      files than workers some would have nothing to read: a note is logged and DATA
      is used, by all of them.
    - HINT: `shard(SHARD_HINT, SHARD_HINT)` in the pipeline gets the real numbers.
    - OFF: the pipeline has been sharded by the user, or is to be read in full by
      each worker.

    With FILE, HINT and OFF a batch of the pipeline is a global batch of the
    worker's own data: a step takes `1 / world_size` of its rows from each worker.

    Args:
        dataset: A dataset of global batches.
        rank: This worker.
        world_size: Number of workers.
        all_agree: Tells the other workers a bool and returns whether all said True.

    Raises:
        DataError: A HINT pipeline without a hint.
    """
    policy = dataset.options().experimental_distribute.auto_shard_policy
    if policy in (Policy.AUTO, Policy.DATA):
        return None
    if policy == Policy.OFF:
        _note_order(policy.name, rank)
        return split_batches(dataset, world_size)
    problem = sharded = None
    try:
        sharded = auto_shard(dataset, world_size, rank)
        # Only the first element tells whether the files are enough.
        for _ in sharded.take(1):
            pass
    except (tf.errors.InvalidArgumentError, tf.errors.NotFoundError) as error:
        problem = error.message.splitlines()[0]
    if all_agree(problem is None) and sharded is not None:
        _note_order(policy.name, rank)
        return split_batches(sharded, world_size)
    if policy == Policy.HINT:
        raise DataError(
            f"AutoShardPolicy.HINT can't shard this dataset: {problem or 'see the other workers'}. "
            "Expected dataset.shard(tf.data.experimental.SHARD_HINT, "
            "tf.data.experimental.SHARD_HINT) in the pipeline, and rows for every worker."
        )
    logger.warning(
        "AutoShardPolicy.FILE can't share the files of this dataset among %d workers (%s); "
        "each worker reads all of them and takes its rows of each batch (DATA).",
        world_size,
        problem or "too few files for another worker",
    )
    return None


@functools.cache  # once for a process, however many datasets it shards
def _note_order(policy: str, rank: int) -> None:
    if rank == 0:
        logger.warning(
            "With AutoShardPolicy.%s each worker has data of its own, so which examples share a "
            "batch depends on the number of workers. With AUTO or DATA it doesn't.",
            policy,
        )
