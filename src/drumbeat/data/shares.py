"""How the rows of a global batch are shared out: arithmetic only.

Every worker takes one contiguous run of rows, in rank order, so the workers'
slices, concatenated, are the global batch itself. Where the rows don't divide
evenly, the first ranks take one row more.
"""

from __future__ import annotations


def start_of(rank: int, num_rows: int, world_size: int) -> int:
    """The first row of `rank` in a global batch of `num_rows` rows.

    `start_of(world_size, num_rows, world_size)` is `num_rows`. `num_rows` may as
    well be an integer tensor.
    """
    share, extra = num_rows // world_size, num_rows % world_size
    # min(rank, extra) earlier ranks have a row more; written with abs(), which
    # tensors know and min() doesn't.
    return rank * share + (rank + extra - abs(rank - extra)) // 2


def share_of(rank: int, num_rows: int, world_size: int) -> tuple[int, int]:
    """The half-open range `[start, stop)` of rows that `rank` takes.

    Guarantees: the ranges of ranks 0 to `world_size - 1` follow each other
    without gap or overlap, cover exactly `num_rows` rows and differ in length
    by at most one. A range may be empty.
    """
    return (
        start_of(rank, num_rows, world_size),
        start_of(rank + 1, num_rows, world_size),
    )
