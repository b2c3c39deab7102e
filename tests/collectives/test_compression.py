"""Compressed sums among real processes, and the rule by which `auto` chooses."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from drumbeat.cluster.compression import NONE
from drumbeat.collectives.compression.choice import STRONG, best
from drumbeat.collectives.compression.halves import Float16
from drumbeat.collectives.compression.pieces import PIECE_ELEMENTS, Piece, cut

from . import test_communicators

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(260)]

SCRIPT = Path(__file__).with_name("compression_checks.py")


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("mpi", 2),
        pytest.param("mpi", 3, marks=pytest.mark.slow),
        pytest.param("mpi", 4, marks=pytest.mark.slow),
        pytest.param("tensorflow", 2, marks=pytest.mark.slow),
        pytest.param("tensorflow", 3, marks=pytest.mark.slow),
    ],
)
def test_on_every_rank(kind: str, size: int, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(test_communicators, "SCRIPT", SCRIPT)
    run = test_communicators.Run(kind, size, tmp_path)
    for rank, report in enumerate(run.reports):
        failed = {name: reason for name, reason in report.items() if reason}
        assert not failed, f"rank {rank}: {json.dumps(failed, indent=1)}"
        assert len(report) == 26, f"rank {rank} did not come to the end:\n{run.output[-4000:]}"


@pytest.mark.parametrize(
    ("times_ms", "chosen"),
    [
        ({NONE: [9], "bf16": [5], "int8": [4], STRONG: [3]}, "int8"),
        ({NONE: [9], "bf16": [4], "int8": [5], STRONG: [2.5]}, "bf16"),
        ({NONE: [9], "bf16": [5], "int8": [4], STRONG: [1.9]}, STRONG),
        # Only if it is better in each measurement: noise decides nothing.
        ({NONE: [4, 9], "bf16": [5, 5], "int8": [1, 4], STRONG: [3, 3]}, NONE),
        ({NONE: [4, 4], "bf16": [3, 3.9], "int8": [1, 4], STRONG: [3, 3]}, "bf16"),
        ({NONE: [4, 4], "bf16": [5, 5], "int8": [5, 5], STRONG: [1.9, 1.9]}, STRONG),
        ({NONE: [1], "bf16": [2], "int8": [3], STRONG: [0.6]}, NONE),
    ],
)
def test_the_rule(times_ms: dict[str, list[float]], chosen: str) -> None:
    assert best(times_ms) == chosen


@pytest.mark.parametrize("size", [1e-9, 1e-7, 3e-5, 1.0, 3e4])
def test_float16_is_rounded_as_numpy_does(size: float) -> None:
    values = (size * np.random.default_rng(1).standard_normal(5000)).astype(np.float32)
    values[:6] = [0, -0.0, 2**-14, 2**-25, 1 + 2**-11, 1 + 3 * 2**-11]
    row, codec = np.zeros(10_048, np.uint8), Float16()
    left = values.copy()
    codec.encode([left], [5000], row)
    rounded = np.clip(values, -65504, 65504).astype(np.float16)
    assert (row.view(np.uint16)[:5000] == rounded.view(np.uint16)).all()
    np.testing.assert_array_equal(left, values - rounded.astype(np.float32))
    assert codec.is_finite(row, [5000])


@pytest.mark.parametrize("parts", [1, 2, 3, 7])
def test_parts_hold_every_element_once(parts: int) -> None:
    tensors = [(0, 5), (3, 3 * PIECE_ELEMENTS + 1), (4, 1), (7, 0), (9, 1000)]
    shared = cut(tensors, parts)
    pieces = [piece for part in shared for piece in part]
    assert all(0 < len(piece) <= PIECE_ELEMENTS for piece in pieces)
    joined: list[Piece] = []
    for piece in pieces:
        if joined and (joined[-1].tensor, joined[-1].stop) == (piece.tensor, piece.start):
            joined[-1] = Piece(piece.tensor, joined[-1].start, piece.stop)
        else:
            joined.append(piece)
    assert joined == [Piece(number, 0, size) for number, size in tensors if size]
    sizes = [sum(map(len, part)) for part in shared]
    assert len(sizes) == parts
    assert max(sizes) - min(sizes) < parts


def test_fewer_elements_than_parts_leave_some_empty() -> None:
    assert cut([(2, 2)], 4) == [[Piece(2, 0, 1)], [Piece(2, 1, 2)], [], []]
