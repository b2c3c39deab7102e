"""Files without a name, by which processes share memory.

Apart from what is kept in them: `import drumbeat` must not take the time to import NumPy.
"""

from __future__ import annotations

import os
import tempfile

FDS_VARIABLE = "DRUMBEAT_MEMORY_FDS"
"""Tells a worker the descriptors of its node's snapshots, see `drumbeat.state.memory`."""


def anonymous(name: str) -> int:
    """Descriptor of a new file that has no name on any disk; `name` is for /proc."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(f"drumbeat-{name}")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
