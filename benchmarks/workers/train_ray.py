"""Trains a workload with Ray Train's TensorflowTrainer: TensorFlow's strategy, started by Ray."""

from __future__ import annotations

import argparse
import json
import os
import tempfile

import clock


def train(config: dict[str, argparse.Namespace]) -> None:
    """In each of Ray's workers."""
    import tensorflow as tf
    from train_keras import train as train_keras

    rank = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    train_keras(config["options"], strategy, int(rank))


def main() -> None:
    import ray
    from ray.train import RunConfig, ScalingConfig
    from ray.train.tensorflow import TensorflowTrainer

    options = clock.arguments()
    ray.init(num_cpus=options.workers, include_dashboard=False, logging_level="warning")
    try:
        with tempfile.TemporaryDirectory(prefix="drumbeat-bench-ray-") as folder:
            TensorflowTrainer(
                train,
                train_loop_config={"options": options},
                scaling_config=ScalingConfig(num_workers=options.workers),
                run_config=RunConfig(storage_path=folder),
            ).fit()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    main()
