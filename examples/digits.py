"""The data of the examples: handwritten digits, at hand without a download.

scikit-learn ships 1,797 real digits of 8x8 pixels, which a small network learns in seconds. MNIST
(70,000 of 28x28) is used only where the machine has it already: examples must run offline.
"""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np

Examples = tuple[np.ndarray, np.ndarray]

NAMES = ("digits", "mnist")
MNIST_FILE = Path("~/.keras/datasets/mnist.npz")
TEST_SHARE = 0.2
SPLIT_SEED = 7


def load(data: str = "digits", *, mnist_file: Path = MNIST_FILE) -> tuple[Examples, Examples]:
    """Load a data set, split into training and test examples, the same split every time.

    Args:
        data: "digits" or "mnist".
        mnist_file: Where Keras keeps MNIST.

    Returns:
        `((x_train, y_train), (x_test, y_test))`. Images are float32 in [0, 1] of shape
        `(n, 8, 8, 1)` or `(n, 28, 28, 1)`, labels int64 of shape `(n,)`.

    Raises:
        SystemExit: There is no such data set, or it is not on this machine. The message says what
            to do.
    """
    if data == "digits":
        return _load_digits()
    if data == "mnist":
        return _load_mnist(mnist_file.expanduser())
    raise SystemExit(f"There is no data set {data!r}; expected one of: {', '.join(NAMES)}.")


def _load_digits() -> tuple[Examples, Examples]:
    try:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ImportError:
        raise SystemExit(
            "The digits come with scikit-learn, which is not installed. "
            "Run: pip install 'drumbeat[examples]'"
        ) from None
    images, labels = load_digits(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels, test_size=TEST_SHARE, random_state=SPLIT_SEED, stratify=labels
    )
    return _prepared(x_train, y_train, 8, 16), _prepared(x_test, y_test, 8, 16)


def _load_mnist(path: Path) -> tuple[Examples, Examples]:
    if not path.exists():
        raise SystemExit(
            f"MNIST is not on this machine: expected {path}, and the examples download nothing. "
            "Use --data digits, or fetch it once with: "
            "python -c 'import keras; keras.datasets.mnist.load_data()'"
        )
    try:
        with np.load(path) as arrays:
            train = _prepared(arrays["x_train"], arrays["y_train"], 28, 255)
            test = _prepared(arrays["x_test"], arrays["y_test"], 28, 255)
    except (OSError, ValueError, KeyError, EOFError, BadZipFile) as error:
        raise SystemExit(
            f"{path} is not MNIST as Keras stores it ({error}). Delete it and fetch it anew."
        ) from None
    return train, test


def _prepared(images: np.ndarray, labels: np.ndarray, side: int, white: int) -> Examples:
    pixels = images.reshape(-1, side, side, 1).astype(np.float32) / white
    return pixels, labels.astype(np.int64)
