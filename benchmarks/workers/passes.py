"""Prints how many milliseconds it takes to add two float32 buffers of so many bytes."""

from __future__ import annotations

import statistics
import sys
import time

import numpy as np

MEASURED_S = 1.0


def main() -> None:
    count = max(1, int(sys.argv[1]) // 4)
    ours, theirs, total = (np.ones(count, np.float32) for _ in range(3))
    times_s, end = [], time.monotonic() + MEASURED_S
    while time.monotonic() < end or len(times_s) < 3:
        began = time.perf_counter()
        np.add(ours, theirs, out=total)
        times_s.append(time.perf_counter() - began)
    print(1e3 * statistics.median(times_s))


if __name__ == "__main__":
    main()
