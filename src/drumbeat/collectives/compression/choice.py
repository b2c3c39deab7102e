"""--compress auto: which method makes steps shorter, if any; measured before the first one."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from drumbeat.cluster.compression import BFLOAT16, INT8, NONE, POWERSGD, Compress
from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.machines import Machines
from drumbeat.collectives.compression.methods import make
from drumbeat.collectives.compression.residuals import Group, zeros

logger = logging.getLogger("drumbeat")

MILD = (BFLOAT16, INT8)
"""What rounds each element. Not fp16: it sends as much as bf16 and takes longer to encode."""
STRONG = str(Compress(method=POWERSGD))
"""What leaves out all but a few directions: chosen only if it is far better."""
CANDIDATES = (*MILD, STRONG)
_FAR_BETTER = 2
_REPEATS = 3
# Longer ones are measured once: they differ by more than by noise.
_LONG_S = 0.5


def best(times_s: Mapping[str, Sequence[float]]) -> str:
    """The rule.

    One of `MILD` if its slowest measurement is below the fastest of `NONE`: of those, the
    one with the shortest median. `STRONG` only if it takes at most half as long as that.

    Args:
        times_s: For `NONE` and each candidate, how long sums took, the first left out.
    """
    median = {name: float(np.median(times)) for name, times in times_s.items()}
    better = [name for name in MILD if max(times_s[name]) < min(times_s[NONE])]
    chosen = min(better, key=lambda name: median[name], default=NONE)
    if _FAR_BETTER * max(times_s[STRONG]) < min(times_s[chosen]):
        return STRONG
    return chosen


class Choice:
    """Measures sums of random numbers in the shapes of the gradients, on all workers at once.

    That is what a method changes of a step: encoding, transfer and decoding, all of which
    come between computing the gradients and the update. The training isn't touched.

    A job's first attempt writes down what was chosen, and later ones take the same.

    Args:
        communicator: Of the workers.
        machines: Of the workers.
        path: Of a file of this job's, on the chief's node; None to keep nothing.
        attempt: Of the job, from 1.
    """

    def __init__(
        self,
        communicator: Communicator,
        machines: Machines,
        path: Path | None,
        attempt: int = 1,
    ) -> None:
        self._communicator = communicator
        self._machines = machines
        self._path = path
        self._attempt = attempt
        self._kept: dict[str, str] | None = None

    def of(self, group: Group) -> str:
        """The method for these gradients; the same on all workers, which must all call this."""
        options = (NONE, *CANDIDATES)
        key = _key(group)
        if self._kept is None:
            self._kept = self._read()
        kept = self._kept.get(key)
        known = np.array([options.index(kept) if kept in options else -1], np.int64)
        known = int(self._communicator.broadcast_numpy(known, name="compression")[0])
        if known >= 0:
            return options[known]
        times_s = {name: self._measured(name, group) for name in options}
        method = best(times_s)
        if self._communicator.rank == 0:
            self._kept[key] = method
            self._write(self._kept)
            # As a warning, because what is less is not shown unless a script asks for it.
            logger.warning(_told(method, times_s, group))
        return method

    def _measured(self, method: str, group: Group) -> list[float]:
        """Seconds of sums by `method`, those of the slowest worker."""
        run = self._runner(method, group)
        self._timed(run)
        first = self._timed(run)
        more = 0 if first > _LONG_S else _REPEATS - 1
        return [first, *(self._timed(run) for _ in range(more))]

    def _timed(self, run: Callable[[], object]) -> float:
        self._communicator.barrier("compression")
        began_s = time.perf_counter()
        run()
        mine = np.array([time.perf_counter() - began_s])
        return float(self._communicator.all_reduce_numpy(mine, "max", name="compression")[0])

    def _runner(self, method: str, group: Group) -> Callable[[], object]:
        random = np.random.default_rng(self._communicator.rank)
        gradients = [random.standard_normal(shape, np.float32) for shape in group.shapes]
        if method == NONE:
            return lambda: self._communicator.sum_arrays(gradients, name="compression")
        trial = Group(group.names, group.shapes)
        trial.use(method)
        runner = make(self._communicator, trial, self._machines)
        results = [zeros(shape) for shape in group.shapes]
        return lambda: runner.sum(gradients, results)

    def _read(self) -> dict[str, str]:
        """What earlier attempts have chosen; a file that the first one finds is another job's."""
        if self._path is None or self._attempt == 1 or self._communicator.rank != 0:
            return {}
        try:
            return dict(json.loads(self._path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            return {}

    def _write(self, chosen: Mapping[str, str]) -> None:
        if self._path is None:
            return
        try:
            new = self._path.with_suffix(".new")
            new.write_text(json.dumps(chosen), encoding="utf-8")
            os.replace(new, self._path)
        except OSError as error:
            logger.warning(
                "%s can't be written (%s): after a failure before the first snapshot, --compress "
                "auto measures again and may choose otherwise.",
                self._path,
                error,
            )


def _key(group: Group) -> str:
    text = repr((group.names, group.shapes))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _told(method: str, times_s: Mapping[str, Sequence[float]], group: Group) -> str:
    ms = {name: f"{1e3 * float(np.median(times)):.3g} ms" for name, times in times_s.items()}
    others = ", ".join(f"{name} {ms[name]}" for name in CANDIDATES if name != method)
    size_mb = 4e-6 * sum(int(np.prod(shape)) for shape in group.shapes)
    what = f"--compress auto: the sum of {size_mb:.3g} MB of gradients takes"
    if method == NONE:
        return f"{what} {ms[NONE]} as they are; compressed it is no shorter ({others})."
    return f"{what} {ms[method]} with {method}, instead of {ms[NONE]} ({others})."
