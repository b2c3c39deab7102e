"""In which collective a worker is, on its progress page.

A part of the page of its own: collectives run in TensorFlow's threads, beside the
one that writes the rest.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass

from drumbeat.state.progress import FD_VARIABLE

NEVER_JOINED = -1
_PAGE_BYTES = 4096
_AT = 1280
_TEXT_BYTES = 200
# A count that is odd while the rest is being written; number, whether it waits, since when
# in ns, length of the text, the text.
_COUNT = struct.Struct("<q")
_NOTE = struct.Struct(f"<4q{_TEXT_BYTES}s")
_NOTE_AT = _AT + _COUNT.size
_READ_TRIES = 100


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """The collective that a worker is in, or was in last.

    Attributes:
        number: How many it has begun, 0 for the making of its strategy, `NEVER_JOINED`
            before that.
        waits: It is in that one.
        since_s: `time.monotonic` when it entered or left it; 0.0 before the first.
        text: The collective in words, such as "all_reduce 'gradients' #12".
    """

    number: int
    waits: bool
    since_s: float
    text: str


class WaitingNote:
    """The part of the page. The worker calls `enter` and `leave`, the agent `read`.

    Calls of `enter` and `leave` come one at a time. Either costs about 2 µs.
    """

    def __init__(self, fd: int) -> None:
        """Args: descriptor of the progress page."""
        self._page = mmap.mmap(fd, _PAGE_BYTES)
        self._count = 0
        self._number = NEVER_JOINED
        self._text = b""

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> WaitingNote | None:
        """The page whose descriptor the agent has given to this worker, if it has."""
        text = env.get(FD_VARIABLE, "")
        return cls(int(text)) if text else None

    def close(self) -> None:
        """Gives the memory back; the descriptor is its owner's."""
        self._page.close()

    def enter(self, number: int, kind: str, name: str) -> None:
        """The worker begins a collective.

        Args:
            number: How many it has begun with this one; 0 for the making of its strategy.
            kind: Such as "all_reduce".
            name: The caller's label, may be empty.
        """
        self._number = number
        label = f" {name!r}" if name else ""
        text = f"{kind}{label} #{number}" if number else kind
        self._text = text.encode()[:_TEXT_BYTES]
        self._write(1)

    def leave(self) -> None:
        """The worker is through with it, or has given up."""
        self._write(0)

    def read(self) -> Waiting:
        """What the worker wrote last."""
        page = self._page
        values = _NOTE.unpack_from(page, _NOTE_AT)
        for _ in range(_READ_TRIES):
            (before,) = _COUNT.unpack_from(page, _AT)
            values = _NOTE.unpack_from(page, _NOTE_AT)
            if before % 2 == 0 and before == _COUNT.unpack_from(page, _AT)[0]:
                break
        number, waits, since_ns, length, text = values
        return Waiting(
            # A page that nobody has written to is all zeros.
            number=number if since_ns else NEVER_JOINED,
            waits=bool(waits),
            since_s=since_ns / 1e9,
            text=text[: max(length, 0)].decode(errors="replace"),
        )

    def _write(self, waits: int) -> None:
        page, text = self._page, self._text
        self._count += 1
        _COUNT.pack_into(page, _AT, self._count)
        now_ns = time.monotonic_ns()
        _NOTE.pack_into(page, _NOTE_AT, self._number, waits, now_ns, len(text), text)
        self._count += 1
        _COUNT.pack_into(page, _AT, self._count)
