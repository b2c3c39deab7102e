"""Decodes and augments pictures with Pillow, for the peers without tf.data."""

from __future__ import annotations

import numpy as np
from PIL import Image
from workloads import SEEN, crop_of


def picture(path: str, number: int) -> np.ndarray:
    """A decoded, cropped, mirrored and scaled picture; float32 of shape (64, 64, 3)."""
    crop = crop_of(number)
    with Image.open(path) as file:
        box = (crop.left, crop.top, crop.left + crop.side, crop.top + crop.side)
        # Without antialiasing, as tf.image.resize: `reducing_gap` and a filter would cost more.
        image = file.convert("RGB").transform(
            (SEEN, SEEN), Image.Transform.EXTENT, box, Image.Resampling.BILINEAR
        )
    pixels = np.asarray(image, np.float32) / 255
    return pixels[:, ::-1].copy() if crop.mirrored else pixels
