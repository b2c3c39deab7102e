"""What the loops of both Keras have in common on many workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from drumbeat.errors import DataError
from drumbeat.training.keras_loops import all_rows

pytestmark = pytest.mark.tensorflow


def two_workers(*others: Any) -> Any:
    """A strategy of two workers, the second of which gives `others` to the collectives."""
    waiting = list(others)

    def all_gather_numpy(array: np.ndarray, name: str = "") -> np.ndarray:
        return np.concatenate([array, np.array(waiting.pop(0), array.dtype)])

    communicator = SimpleNamespace(size=2, rank=0, all_gather_numpy=all_gather_numpy)
    return SimpleNamespace(communicator=communicator)


def test_rows_come_in_the_order_of_the_data() -> None:
    strategy = two_workers([[3, 3]], [2, 1], [[12.0], [13.0], [22.0]])
    outputs = np.array([[10.0], [11.0], [20.0], [21.0]])
    found = all_rows(outputs, [2, 2], strategy)
    np.testing.assert_array_equal(found[:, 0], [10, 11, 12, 13, 20, 21, 22])


@pytest.mark.parametrize(
    ("rows", "others", "said"),
    [
        (8, [[3, 6]], r"an output has 8 rows for 4 rows of input \(on worker 0\)"),
        (4, [[3, 2]], r"an output has 2 rows for 3 rows of input \(on worker 1\)"),
    ],
)
def test_other_rows_than_those_of_the_input_are_refused(rows: int, others: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        all_rows(np.zeros([rows, 2]), [2, 2], two_workers(others))


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(DataError, match="returned a str; expected dense outputs"):
        all_rows("rows", [2, 2], two_workers())
