"""Has Keras take the names of old."""

from __future__ import annotations

from drumbeat.training.legacy import arguments, files, methods, modules


def install() -> None:
    """Apply all of `drumbeat.legacy_names`; to be called once, after `integrate`."""
    for part in (modules, methods, arguments, files):
        part.install()
