"""One seed for what a script draws with Python and NumPy, on all workers and over restarts."""

from __future__ import annotations

import functools
import itertools
import random
from typing import Any

import numpy as np


def sow(seed: int) -> None:
    """Seed Python's and NumPy's generators, and those that `np.random.default_rng()` makes.

    Without a seed it would take fresh entropy of the system, other in each process. The n-th call
    without one gets the n-th seed that comes of `seed`.

    Args:
        seed: A whole number, 0 or more.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    original = np.random.default_rng
    own, calls = seed, itertools.count()

    @functools.wraps(original)
    def default_rng(seed: Any = None) -> np.random.Generator:
        if seed is None:
            seed = np.random.SeedSequence(own, spawn_key=(next(calls),))
        return original(seed)

    np.random.default_rng = default_rng
