"""Writes the pictures of the image workload as JPEG files into a folder, once."""

from __future__ import annotations

import sys
from pathlib import Path

import tensorflow as tf
from workloads import PICTURES, pictures, pixels_of


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for number, path in enumerate(pictures(folder)):
        tf.io.write_file(path, tf.io.encode_jpeg(pixels_of(number), quality=90))
    (folder / "complete").write_text(f"{PICTURES}\n")


if __name__ == "__main__":
    main()
