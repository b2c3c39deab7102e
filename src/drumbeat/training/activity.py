"""What this worker tells its agent that it is doing, where that is known from its calls."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from drumbeat.state.progress import Activity
from drumbeat.training import journal


@contextlib.contextmanager
def during(activity: Activity) -> Iterator[None]:
    """Tells the agent what goes on within this, and afterwards that it is as it was."""
    own = journal.own()
    page = None if own is None else own.page
    if page is None:
        yield
        return
    before = page.activity
    page.update(activity)
    try:
        yield
    finally:
        page.update(before)


def saving() -> contextlib.AbstractContextManager[None]:
    """A model is written: within a phase that may take longer than any step."""
    own = journal.own()
    if own is None or own.active is None:
        return contextlib.nullcontext()
    return during(Activity.SAVING)
