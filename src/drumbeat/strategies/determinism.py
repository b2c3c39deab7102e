"""What TensorFlow needs so that the same operation gives the same bytes in every process."""

from __future__ import annotations

import os

import tensorflow as tf

from drumbeat.errors import ConfigError


def same_bytes_everywhere() -> None:
    """Make this process compute deterministically, whatever its number of cores; call it early.

    One thread for each operation: kernels that share an operation out over threads
    add up in an order that depends on how many there are. Several operations still
    run at the same time. See
    https://www.tensorflow.org/api_docs/python/tf/config/experimental/enable_op_determinism
    And no optimization of graphs: it may regroup sums, in another way where a worker
    runs more shards.

    Raises:
        ConfigError: TensorFlow has started with another number of threads.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(1)
    except RuntimeError:
        threads = tf.config.threading.get_intra_op_parallelism_threads()
        if 1 not in (threads, threads or _of_environment()):
            raise ConfigError(
                "Exact mode needs TensorFlow to use one thread for an operation, but TensorFlow "
                "has started already. Make the strategy before the first operation, or start with "
                "drumbeat run --exact."
            ) from None
    tf.config.experimental.enable_op_determinism()
    tf.config.optimizer.set_experimental_options({"disable_meta_optimizer": True})


def _of_environment() -> int:
    text = os.environ.get("TF_NUM_INTRAOP_THREADS", "")
    return int(text) if text.isdigit() else 0
