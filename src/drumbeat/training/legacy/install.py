"""Has Keras take the names of old."""

from __future__ import annotations

from drumbeat.training.legacy import arguments, files, methods, modules, notebook, notice, refused


def install(*, tells: bool = True) -> None:
    """Apply all of `drumbeat.legacy_names`; to be called once.

    Args:
        tells: This process shows the notices.
    """
    if not tells:
        notice.mute()
    for part in (modules, methods, arguments, files, notebook, refused):
        part.install()
