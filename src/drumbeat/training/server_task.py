"""What a worker or ps of a job with parameter servers runs: a server for the chief, no script.

Run as `__main__` in a process of `drumbeat run`, which ends it with SIGTERM once the chief has
ended.
"""

from __future__ import annotations

import os
import signal

import tensorflow as tf

from drumbeat.cluster.spec import ClusterSpec


def main() -> None:
    """Serves the task that TF_CONFIG names until SIGTERM, then ends with code 0."""
    # Blocked before the server makes its threads, so that only `sigwait` takes it: TensorFlow's
    # own `Server.join` would wait for ever, deaf to signals.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    cluster = ClusterSpec.from_env(os.environ)
    assert cluster is not None, "the agent sets TF_CONFIG"  # noqa: S101
    assert cluster.task is not None  # noqa: S101
    server = tf.distribute.Server(
        tf.train.ClusterSpec({job: dict(at) for job, at in cluster.jobs.items()}),
        job_name=cluster.task.type,
        task_index=cluster.task.index,
        protocol=cluster.rpc_layer or "grpc",
        config=config_of(cluster),
    )
    signal.sigwait({signal.SIGTERM})
    del server
    os._exit(0)  # its destructor may wait for calls that nobody will answer


def config_of(cluster: ClusterSpec) -> tf.compat.v1.ConfigProto:
    """How many operations a server runs at a time.

    A function on a worker waits for variables on a ps, and that for the calls of all
    workers: with a thread less than there are callers, all may wait for each other. So
    TensorFlow's guide to parameter servers has it, too.
    """
    callers = len(cluster.jobs.get("worker", ())) + 1
    return tf.compat.v1.ConfigProto(
        inter_op_parallelism_threads=max(callers + 1, os.cpu_count() or 1)
    )


if __name__ == "__main__":
    main()
