"""What of the workers' output is shown on the screen, and how. No I/O here.

A worker writes bytes: whole lines, bars that redraw themselves with carriage
returns, lines without an end, bytes that are no text. `LineAssembler` cuts
them into `Line`s of bounded length, `Screen` turns lines of many workers into
the text for one terminal or log. Everything goes unchanged into each worker's
own file as well; that is not decided here (see `drumbeat.launch.streams`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from rich.color import ColorSystem
from rich.style import Style

LINE_LIMIT_BYTES = 16 * 1024
WORKER_COLORS = (
    "cyan",
    "magenta",
    "green",
    "yellow",
    "blue",
    "bright_cyan",
    "bright_magenta",
    "bright_green",
    "bright_yellow",
    "bright_blue",
)
_ERASE_LINE = "\r\x1b[K"
_COLOR_CODE = re.compile(r"\x1b\[[0-9;]*m")
_OTHER_CONTROL = re.compile(
    r"\x1b\[[0-9;?]*[A-Za-ln-z]|\x1b[@-Z\\-_]|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]"
)
_VISIBLE_OR_CODE = re.compile(r"(\x1b\[[0-9;]*m)|(.)", re.DOTALL)
# What a heavy line of a table, such as the one of `model.summary()`, has and a bar does not.
_TABLE = re.compile("[┏┳┓┣╋┫┗┻┛┡╇┩]")
_PROGRESS_STARTS = frozenset("0123456789E\x1b")
_PROGRESS = re.compile(
    r"^\s*(Epoch \d+(/\d+)?\s*$|\d+/(\d+|Unknown)(\s*$|\s+[━\[=>.]|\s+-\s|\s+\d+(s|ms|us)\b))"
)


class Line(NamedTuple):
    r"""One line as a terminal would show it at its end.

    Attributes:
        text: Without line end, carriage returns and backspaces. Bytes that are
            not UTF-8 appear as `\xNN`.
        redrawn: Whether it was drawn over itself, as progress bars do.
    """

    text: str
    redrawn: bool = False

    @property
    def is_progress(self) -> bool:
        """Whether it is (part of) a progress display rather than a message."""
        if self.redrawn:
            return True
        if "━" in self.text:
            return _TABLE.search(self.text) is None
        if self.text.lstrip()[:1] not in _PROGRESS_STARTS:
            return False  # nearly all lines; workers can write very many
        return _PROGRESS.match(_COLOR_CODE.sub("", self.text)) is not None


class LineAssembler:
    """Cuts one stream of bytes into lines.

    Guarantee: keeps at most about `limit_bytes` in memory. A longer line comes
    out in pieces, and of a bar only its latest state is kept.
    """

    def __init__(self, limit_bytes: int = LINE_LIMIT_BYTES) -> None:
        self._limit_bytes = limit_bytes
        self._rest = b""
        self._redrawn = False

    def feed(self, data: bytes) -> list[Line]:
        """The lines that `data` completes, oldest first."""
        *complete, rest = (self._rest + data).split(b"\n")
        lines = []
        for raw in complete:
            lines.append(_settle(raw.removesuffix(b"\r"), self._redrawn))
            self._redrawn = False
        self._rest = self._only_latest(rest)
        while len(self._rest) > self._limit_bytes:
            cut = _character_boundary(self._rest, self._limit_bytes)
            lines.append(_settle(self._rest[:cut], self._redrawn))
            self._rest = self._rest[cut:]
        return lines

    def unfinished(self) -> Line | None:
        """The line begun but not ended yet, as it looks now; None if there is none."""
        if not self._rest:
            return None
        return _settle(self._rest.removesuffix(b"\r"), self._redrawn)

    def close(self) -> list[Line]:
        """What is left when the stream ends without a newline: no line or one."""
        line = self.unfinished()
        self._rest, self._redrawn = b"", False
        return [line] if line and line.text else []

    def _only_latest(self, rest: bytes) -> bytes:
        # A return at the very end may be half of "\r\n" or the start of a redraw.
        start = rest.rfind(b"\r", 0, max(len(rest) - 1, 0)) + 1
        if start > 0:
            self._redrawn = True
        return rest[start:]


def _settle(raw: bytes, redrawn: bool) -> Line:
    start = raw.rfind(b"\r") + 1
    text = raw[start:].decode("utf-8", "backslashreplace")
    if "\b" in text:
        return Line(text=_apply_backspaces(text), redrawn=True)
    return Line(text=text, redrawn=redrawn or start > 0)


def _apply_backspaces(text: str) -> str:
    shown: list[str] = []
    for character in text:
        if character != "\b":
            shown.append(character)
        elif shown:
            shown.pop()
    return "".join(shown)


def _character_boundary(data: bytes, position: int) -> int:
    """The last position up to `position` that does not cut a UTF-8 character."""
    for cut in range(position, max(position - 4, 0), -1):
        if data[cut] & 0xC0 != 0x80:
            return cut
    return position


def printable(text: str) -> str:
    """`text` without control codes, apart from colours and tabs.

    A worker's stray bytes must not clear the user's screen or move its cursor.
    """
    return text if text.isprintable() else _OTHER_CONTROL.sub("", text)


def clip(text: str, width: int) -> str:
    """The part of `text` that fits into `width` columns; colour codes take none."""
    if len(text) <= width:
        return text
    kept: list[str] = []
    for code, character in _VISIBLE_OR_CODE.findall(text):
        if character:
            width -= 1
        if width < 0:
            break
        kept.append(code or character)
    return "".join(kept) + "\x1b[0m"


class Screen:
    """Turns the lines of all workers into what one screen shows.

    Every line gets its worker's prefix. Progress displays appear for the chief
    alone: drawn in place when the screen is `live` (a terminal), else once, in
    their final state.

    Attributes:
        color: Whether prefixes are coloured and colour codes let through.
        live: Whether the screen understands carriage returns.
        chief: Name of the worker whose progress is shown; "" for none.
        width: Columns of the screen; asked again for every drawing.
    """

    def __init__(
        self, *, color: bool, live: bool, chief: str, width: Callable[[], int] = lambda: 80
    ) -> None:
        self._color = color
        self._live = live
        self._chief = chief
        self._width = width
        self._prefixes: dict[str, str] = {}
        self._drawn = ""

    def lines(self, name: str, lines: list[Line]) -> str:
        """The text that shows `lines`, written by the worker called `name`."""
        shown = [line for line in lines if name == self._chief or not line.is_progress]
        if not shown:
            return ""
        prefix = self.prefix(name)
        if name == self._chief:
            # Its bar has become one of these lines, or lost its place to them.
            erase, self._drawn = (_ERASE_LINE if self._drawn else ""), ""
            return erase + "".join(f"{prefix}{self._clean(line.text)}\n" for line in shown)
        return self._above("".join(f"{prefix}{self._clean(line.text)}\n" for line in shown))

    def draw(self, name: str, line: Line | None) -> str:
        """The text that draws a line that is not finished; "" where that isn't shown."""
        if not self._live or name != self._chief or line is None or not line.text:
            return ""
        self._drawn = clip(self.prefix(name) + self._clean(line.text), self._width() - 1)
        return _ERASE_LINE + self._drawn

    def note(self, text: str, *, style: str = "bold") -> str:
        """The text of a message of drumbeat's own."""
        mark = self._styled("[drumbeat] ", style)
        return self._above("".join(f"{mark}{line}\n" for line in text.splitlines()))

    def report(self, heading: str, body: str) -> str:
        """The text that explains a failure: nothing is drawn after it."""
        erase, self._drawn = (f"{self._drawn}\n" if self._drawn else ""), ""
        if erase:
            erase = _ERASE_LINE + erase
        return f"{erase}\n{self._styled(heading, 'bold red')}\n{self._clean(body).rstrip()}\n"

    def prefix(self, name: str) -> str:
        """The coloured `[worker 1] ` of a worker. Colours go round in order of first use."""
        if name not in self._prefixes:
            color = WORKER_COLORS[len(self._prefixes) % len(WORKER_COLORS)]
            self._prefixes[name] = self._styled(f"[{name}] ", color)
        return self._prefixes[name]

    def _above(self, text: str) -> str:
        if not self._drawn:
            return text
        return f"{_ERASE_LINE}{text}{self._drawn}"

    def _clean(self, text: str) -> str:
        text = printable(text)
        return text if self._color or "\x1b" not in text else _COLOR_CODE.sub("", text)

    def _styled(self, text: str, style: str) -> str:
        if not self._color:
            return text
        return Style.parse(style).render(text, color_system=ColorSystem.STANDARD)
