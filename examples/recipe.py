"""What the examples share besides their data: the options, the network and who is the chief."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

import keras
import tensorflow as tf

import digits


@dataclass(frozen=True, kw_only=True)
class Options:
    """How to train.

    Attributes:
        epochs: Passes over the training data.
        batch_size: Examples of one step, over all workers together.
        data: A name that `digits.load` knows.
        model_dir: Where models, checkpoints and logs go.
        way: What an example offers besides, or an empty string.
    """

    epochs: int
    batch_size: int
    data: str
    model_dir: Path
    way: str = ""


def parse_options(script: str, *, ways: tuple[str, ...] = ()) -> Options:
    """Read the command line.

    Args:
        script: The example's `__file__`; names the default folder.
        ways: Values of `--way`, the first being the default; without any there is no such option.
    """
    # `drumbeat run` says where this run's files belong; alone, each example has its own folder.
    folder = os.environ.get("DRUMBEAT_RUN_DIR") or f"runs/{Path(script).stem}"
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=_positive, default=15)
    parser.add_argument(
        "--batch-size", type=_positive, default=64, help="examples a step, over all workers"
    )
    parser.add_argument("--data", choices=digits.NAMES, default="digits")
    parser.add_argument("--model-dir", type=Path, default=Path(folder))
    if ways:
        parser.add_argument("--way", choices=ways, default=ways[0])
    return Options(**vars(parser.parse_args()))


def _positive(text: str) -> int:
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of 1 or more")
    return number


def build_network(image_shape: tuple[int, ...]) -> keras.Model:
    """A small convolutional network: images of `image_shape` in, ten class scores out."""
    return keras.Sequential(
        [
            keras.Input(image_shape),
            keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(64, 3, padding="same", activation="relu"),
            keras.layers.MaxPooling2D(),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.4),
            keras.layers.Dense(128, activation="relu"),
            keras.layers.Dense(10),
        ]
    )


def is_chief(strategy: tf.distribute.Strategy) -> bool:
    """Whether this process writes what all workers share; true outside a cluster."""
    resolver = strategy.cluster_resolver
    if resolver is None or not resolver.task_type:
        return True
    if resolver.task_type == "worker":
        return resolver.task_id == 0 and "chief" not in resolver.cluster_spec().jobs
    return resolver.task_type == "chief"
