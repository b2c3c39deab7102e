"""How the rows of a global batch are shared out: arithmetic only.

Every worker takes one contiguous run of rows, in rank order, so the workers'
slices, concatenated, are the global batch itself. A worker with twice the units
of another takes twice the rows.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def cut(part: Any, parts: Any, num_rows: Any) -> Any:
    """The first row of `part` when `num_rows` rows are cut into `parts` equal parts.

    `cut(parts, parts, num_rows)` is `num_rows`. Integers or integer tensors. Parts
    differ by at most one row, and cuts nest: part 2 of 4 starts where part 1 of 2 does.
    """
    return (part * num_rows + parts - 1) // parts


def range_of(bounds: Any, rank: int, num_rows: Any) -> tuple[Any, Any]:
    """The half-open range of rows that `rank` takes, see `Shares.rows_of`.

    Args:
        bounds: As `Shares.bounds`, or an integer tensor like it.
        rank: A worker.
        num_rows: Of the global batch, an int or an integer tensor.
    """
    parts = bounds[-1]
    return cut(bounds[rank], parts, num_rows), cut(bounds[rank + 1], parts, num_rows)


@dataclass(frozen=True)
class Shares:
    """How much of each global batch each worker takes.

    Attributes:
        units: For each rank a positive whole number, with no common divisor.
    """

    units: tuple[int, ...]

    @classmethod
    def equal(cls, world_size: int) -> Shares:
        """The same for every worker."""
        return cls((1,) * world_size)

    @classmethod
    def of(cls, units: Sequence[int]) -> Shares:
        """`units` without their common divisor."""
        divisor = math.gcd(*units)
        return cls(tuple(unit // divisor for unit in units))

    @property
    def bounds(self) -> tuple[int, ...]:
        """Where each rank's units start, counted from rank 0's; the total at the end."""
        return (0, *itertools.accumulate(self.units))

    def rows_of(self, rank: int, num_rows: Any) -> tuple[Any, Any]:
        """The half-open range `[start, stop)` of rows that `rank` takes; may be empty.

        Guarantees: the ranges of all ranks follow each other without gap or overlap
        and cover exactly `num_rows` rows. With equal units they differ in length by
        at most one.
        """
        return range_of(self.bounds, rank, num_rows)
