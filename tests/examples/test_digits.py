from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture
def digits(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import digits

    yield digits
    del sys.modules["digits"]


def check_format(images: np.ndarray, labels: np.ndarray, side: int) -> None:
    assert images.dtype == np.float32
    assert images.shape == (len(labels), side, side, 1)
    assert images.min() == 0
    assert images.max() == 1
    assert labels.dtype == np.int64
    assert set(labels) == set(range(10))


def test_digits_are_whole_and_in_range(digits) -> None:
    (x_train, y_train), (x_test, y_test) = digits.load()
    check_format(x_train, y_train, 8)
    check_format(x_test, y_test, 8)
    assert (len(y_train), len(y_test)) == (1437, 360)


def test_split_is_stratified_and_the_same_every_time(digits) -> None:
    (x_train, y_train), (x_test, y_test) = digits.load()
    (x_again, _), (_, y_test_again) = digits.load("digits")
    np.testing.assert_array_equal(x_train, x_again)
    np.testing.assert_array_equal(y_test, y_test_again)
    shares = np.bincount(y_test) / np.bincount(np.concatenate([y_train, y_test]))
    np.testing.assert_allclose(shares, 0.2, atol=0.01)


def write_mnist(path: Path, **changes) -> None:
    labels = np.arange(20, dtype=np.uint8) % 10
    images = np.zeros((20, 28, 28), np.uint8)
    images[:, 3, 4] = 255
    parts = {"x_train": images, "y_train": labels, "x_test": images[:10], "y_test": labels[:10]}
    np.savez(path, **{key: value for key, value in (parts | changes).items() if value is not None})


def test_mnist_on_the_machine_is_used(digits, tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    write_mnist(path)
    (x_train, y_train), (x_test, y_test) = digits.load("mnist", mnist_file=path)
    check_format(x_train, y_train, 28)
    check_format(x_test, y_test, 28)
    assert x_train[0, 3, 4, 0] == 1


def test_missing_mnist_says_what_to_do(digits, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="--data digits") as stopped:
        digits.load("mnist", mnist_file=tmp_path / "mnist.npz")
    assert str(tmp_path / "mnist.npz") in str(stopped.value)


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x03\x04cut off"])
def test_damaged_mnist_is_named(digits, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "mnist.npz"
    path.write_bytes(content)
    with pytest.raises(SystemExit, match="is not MNIST as Keras stores it"):
        digits.load("mnist", mnist_file=path)


def test_mnist_without_labels_is_named(digits, tmp_path: Path) -> None:
    path = tmp_path / "mnist.npz"
    write_mnist(path, y_test=None)
    with pytest.raises(SystemExit, match="y_test"):
        digits.load("mnist", mnist_file=path)


def test_unknown_name_lists_the_known_ones(digits) -> None:
    with pytest.raises(SystemExit, match="'minst'; expected one of: digits, mnist"):
        digits.load("minst")
