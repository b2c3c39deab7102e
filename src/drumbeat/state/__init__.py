"""State of training that outlives a worker: snapshots in memory, backups, loops that go on."""

from __future__ import annotations

from drumbeat.state.loops import Resumable, resumable

__all__ = ["Resumable", "resumable"]
