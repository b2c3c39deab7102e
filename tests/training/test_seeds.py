"""What a script draws without a seed is alike on all workers."""

from __future__ import annotations

import numpy as np
import pytest

from drumbeat.training import seeds


def drawn(monkeypatch: pytest.MonkeyPatch, seed: int) -> list[int]:
    """By two generators without a seed, as of a process that begins."""
    with monkeypatch.context() as process:
        process.setattr(np.random, "default_rng", np.random.default_rng)
        seeds.sow(seed)
        generators = [np.random.default_rng(), np.random.default_rng(seed=None)]
        assert np.random.default_rng(7).integers(2**40) == OF_SEVEN
        assert np.random.default_rng(generators[0]) is generators[0]
        return [int(each.integers(2**40)) for each in generators]


OF_SEVEN = np.random.default_rng(7).integers(2**40)


def test_generators_without_a_seed_draw_by_that_of_the_job(monkeypatch):
    first = drawn(monkeypatch, 5)
    assert drawn(monkeypatch, 5) == first
    assert drawn(monkeypatch, 2**40) != first
    assert first[0] != first[1]
