"""What every worker script measures, and how it tells the comparison."""

from __future__ import annotations

import argparse
import json
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

SAMPLE_TIMEOUT_S = 20


def arguments() -> argparse.Namespace:
    """The command line that all worker scripts have."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True, help="folder for results")
    parser.add_argument("--workload", required=True)
    parser.add_argument("--workers", type=int, default=2, help="sizes the global batch")
    parser.add_argument("--epochs", type=int, default=5, help="the first of them is a warm-up")
    parser.add_argument("--steps", type=int, help="in an epoch (default: the workload's)")
    parser.add_argument("--pictures", type=Path, help="folder of the pictures")
    parser.add_argument("--sleep-ms", type=float, default=100, help="of the workload sleep")
    parser.add_argument("--number", type=int, default=0, help="of jobs that run at once")
    parser.add_argument("--batch-hook", action="store_true", help="a callback for each batch")
    return parser.parse_args()


class Clock:
    """Times epochs of one worker.

    Args:
        options: The command line.
        rank: Of this worker.
        counters: What else to read at the end of each epoch, as numbers that only grow.
    """

    def __init__(
        self,
        options: argparse.Namespace,
        rank: int,
        counters: Callable[[], dict[str, float]] = dict,
    ) -> None:
        self._options = options
        self._rank = rank
        self._counters = counters
        self._ends: list[tuple[float, float, dict[str, float]]] = []
        self._figures: dict[str, Any] = {}

    def first_step(self, loss: float) -> None:
        """To be called after the first step, which has this loss."""
        started_s = float(os.environ["BENCH_STARTED_S"])
        self._figures |= {"first_step_s": time.time() - started_s, "first_loss": loss}
        self.epoch()

    def epoch(self) -> None:
        """To be called at the end of each epoch."""
        self._ends.append((time.perf_counter(), time.process_time(), self._counters()))

    def write(self, *, steps: int, rows: int, losses: list[float], **more: Any) -> None:
        """Writes all figures, and waits until the comparison has looked at the memory.

        Args:
            steps: In an epoch.
            rows: Of a global batch.
            losses: The mean of each epoch.
            **more: Numbers and words of the peer's own.
        """
        walls = [end[0] for end in self._ends]
        epochs = [later - sooner for sooner, later in zip(walls, walls[1:], strict=False)]
        first, last = self._ends[1], self._ends[-1]
        self._figures |= {
            "rank": self._rank,
            "steps": steps,
            "rows": rows,
            "epoch_s": epochs[1:],
            "measured_s": last[0] - first[0],
            "cpu_s": last[1] - first[1],
            "counters": {name: last[2][name] - first[2][name] for name in last[2]},
            "losses": losses,
            "peak_rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            **more,
        }
        path = self._options.out / f"result-{self._rank}.json"
        partial = path.with_suffix(".partial")
        partial.write_text(json.dumps(self._figures))
        partial.rename(path)
        deadline = time.monotonic() + SAMPLE_TIMEOUT_S
        while not (self._options.out / "sampled").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
