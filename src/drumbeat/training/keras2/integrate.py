"""Applies every change to tf_keras, once in a process.

The changes act only on models built under a `DataParallelStrategy` with more than one worker,
but for the way random layers draw; all else runs tf_keras's own code.
"""

from __future__ import annotations

import functools

from drumbeat.training.keras2 import draws, fit, gradients, metrics, resuming, saving, steps


@functools.cache
def integrate() -> None:
    """Apply the changes; calls after the first do nothing.

    Raises:
        ConfigError: The installed tf_keras is a version whose internals differ.
    """
    for part in (gradients, draws, steps, fit, metrics, saving, resuming):
        part.integrate()
