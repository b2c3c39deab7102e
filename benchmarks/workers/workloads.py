"""The workloads: sizes, data and first weights, with NumPy alone, for all peers' scripts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SEED = 1
# The transformer.
VOCABULARY, LENGTH, WIDTH, HEADS, BLOCKS = 1000, 64, 128, 4, 4
# The recommender: one table for each feature.
FEATURES, TABLE_ROWS, TABLE_WIDTH = 8, 50_000, 32
# Pictures: as stored, and as the network sees them.
STORED, SEEN, PICTURES = 256, 64, 1024
# ResNet-50: filters, blocks and the first block's stride of each stage.
STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True, kw_only=True)
class Workload:
    """A network, its data and its optimizer.

    Attributes:
        title: For tables.
        rows: Of a batch, for each worker.
        steps: In an epoch.
        parameters: Trainable; checked for every peer.
        optimizer: "sgd", "momentum" (0.9) or "adam".
        rate: Learning rate.
        gradient_bytes: What a worker has to tell the others in a step, at least.
        make: Examples and labels; None where files hold them.
    """

    title: str
    rows: int
    steps: int
    parameters: int
    optimizer: str = "sgd"
    rate: float = 0.01
    gradient_bytes: int = 0
    make: Callable[[int], Arrays] | None = None

    def examples(self, workers: int) -> Arrays:
        """One epoch's, for so many workers."""
        assert self.make is not None
        return self.make(self.rows * workers * self.steps)


def digits_like(count: int) -> Arrays:
    """Images of noise, labelled by a random linear map: a network can learn them."""
    random = np.random.default_rng(SEED)
    images = random.random((count, 28, 28, 1), np.float32)
    scores = (images.reshape(count, -1) - 0.5) @ random.normal(size=(784, 10))
    return images, scores.argmax(axis=1).astype(np.int64)


def colour_images(count: int) -> Arrays:
    """Coloured tiles of 64 × 64 pixels, with 1,000 classes.

    Not noise: of that a deep network makes much the same for all, and batch normalisation
    then blows up what rounding has left of the differences.
    """
    random = np.random.default_rng(SEED)
    tiles = random.random((count, 4, 4, 3), np.float32)
    images = tiles.repeat(SEEN // 4, axis=1).repeat(SEEN // 4, axis=2)
    return images, random.integers(0, 1000, count)


def sentences(count: int) -> Arrays:
    """Numbers of which each but the first follows from the one before by a fixed map."""
    random = np.random.default_rng(SEED)
    after = random.permutation(VOCABULARY)
    words = np.empty((count, LENGTH + 1), np.int64)
    words[:, 0] = random.integers(0, VOCABULARY, count)
    for place in range(LENGTH):
        words[:, place + 1] = after[words[:, place]]
    return words[:, :-1].astype(np.int32), words[:, 1:]


def visits(count: int) -> Arrays:
    """Categories, a few of them much more frequent than others, and a yes or no."""
    random = np.random.default_rng(SEED)
    drawn = random.zipf(1.2, (count, FEATURES)) % TABLE_ROWS
    liked = (drawn.sum(axis=1) % 7 < 3).astype(np.float32)[:, None]
    return drawn.astype(np.int32), liked


WORKLOADS = {
    "cnn": Workload(
        title="(a) MNIST CNN of TensorFlow's tutorial",
        rows=256,
        steps=40,
        parameters=54_170,
        gradient_bytes=4 * 54_170,
        make=digits_like,
    ),
    "dense": Workload(
        title="(b) dense network, 100 MB of gradients",
        rows=32,
        steps=5,
        parameters=24_925_082,
        gradient_bytes=4 * 24_925_082,
        make=digits_like,
    ),
    "resnet": Workload(
        title="(c) ResNet-50, 64 × 64 pixels",
        rows=16,
        steps=4,
        parameters=25_557_032,
        optimizer="momentum",
        rate=1e-5,  # at more it overshoots, and rounding decides where to
        gradient_bytes=4 * 25_557_032,
        make=colour_images,
    ),
    "transformer": Workload(
        title="(d) transformer, 4 blocks of width 128",
        rows=16,
        steps=10,
        parameters=1_058_536,
        optimizer="adam",
        rate=0.001,
        gradient_bytes=4 * 1_058_536,
        make=sentences,
    ),
    "recommender": Workload(
        title="(e) recommender, 8 tables with sparse gradients",
        rows=512,
        steps=20,
        parameters=FEATURES * TABLE_ROWS * TABLE_WIDTH + (256 * 64 + 64) + (64 + 1),
        rate=0.1,
        gradient_bytes=512 * FEATURES * (4 * TABLE_WIDTH + 8) + 4 * (257 * 64 + 65),
        make=visits,
    ),
    "images": Workload(
        title="(f) JPEG files, decoded and augmented",
        rows=32,
        steps=16,
        parameters=(3 * 9 * 16 + 16) + (16 * 9 * 32 + 32) + (32 * 10 + 10),
        gradient_bytes=4 * 5_418,
    ),
    "sleep": Workload(
        title="(h) a sleep instead of the computation",
        rows=4,
        steps=20,
        parameters=1_010,
        gradient_bytes=4 * 1_010,
        make=lambda count: (np.ones((count, 100), np.float32), np.zeros(count, np.int64)),
    ),
}


class FirstWeights:
    """Draws the weights that training begins with, in the layout of Keras, one by one."""

    def __init__(self) -> None:
        self._random = np.random.default_rng(SEED)

    def next(self, shape: tuple[int, ...]) -> np.ndarray:
        """Of the next kernel or table; biases are zero, scales one, and not drawn."""
        scale = 1 / math.sqrt(math.prod(shape[:-1]))
        return (self._random.standard_normal(shape, np.float32) * scale).astype(np.float32)


@dataclass(frozen=True, kw_only=True)
class Crop:
    """How a picture is augmented: drawn from its number, so that all peers do the same."""

    top: int
    left: int
    side: int
    mirrored: bool


def crop_of(number: int) -> Crop:
    """The crop of a picture."""
    mixed = (number * 2_654_435_761) % 2**32
    side = 192 + mixed % 64
    room = STORED - side + 1
    return Crop(
        top=(mixed >> 8) % room,
        left=(mixed >> 16) % room,
        side=side,
        mirrored=bool(mixed >> 31),
    )


def pictures(folder: Path) -> list[str]:
    """Paths of the stored pictures, in order."""
    return [str(folder / f"{number:05}.jpg") for number in range(PICTURES)]


def labels_of_pictures() -> np.ndarray:
    return np.random.default_rng(SEED).integers(0, 10, PICTURES)


def pixels_of(number: int) -> np.ndarray:
    """A picture as it is stored: smooth shapes with some grain, as JPEG is made for."""
    random = np.random.default_rng((SEED, number))
    coarse = random.random((17, 17, 3))
    rows = np.linspace(0, 15.99, STORED)
    whole, part = rows.astype(int), (rows % 1)[:, None]
    tall = coarse[whole] * (1 - part[..., None]) + coarse[whole + 1] * part[..., None]
    part = part[None]
    wide = tall[:, whole] * (1 - part) + tall[:, whole + 1] * part
    grain = random.normal(0, 0.04, (STORED, STORED, 1))
    return (np.clip(wide + grain, 0, 1) * 255).astype(np.uint8)
