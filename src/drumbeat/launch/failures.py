"""Which of several failures is the one to show, and how. Pure."""

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drumbeat.control.restart import Kind
from drumbeat.errors import PREEMPTED_CODE

TEXT_LIMIT = 16 * 1024
WHAT_LIMIT = 300
LAST_LINES = 20
NOTE_LIMIT = 200
# How native code ends when another process is suddenly gone, or by a bug of its own.
_CRASHES = tuple(-number for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS))
_BUGS = (*_CRASHES, -signal.SIGFPE, -signal.SIGILL, -signal.SIGSYS, -signal.SIGTRAP)
# Where the explanation begins in what a worker wrote to stderr.
_TRACEBACK = re.compile(r"^(Traceback \(most recent call last\):|Fatal Python error: )", re.M)
_CHAINED = (
    "The above exception was the direct cause of the following exception:",
    "During handling of the above exception, another exception occurred:",
)


@dataclass(frozen=True, kw_only=True)
class Failure:
    """How one process of a job ended badly.

    Attributes:
        name: The worker's name, or whatever failed.
        host: Where it ran.
        code: Its exit code, or minus the signal that killed it.
        text: What it wrote about it, such as a traceback.
        consequence: It only says that another worker is gone.
        how: The heading's verb, where the code does not tell the story.
        kind: What the restart policy takes it for; None to go by the code.
        what: What tells it from others of its kind; "" to go by the code.
        step: Finished training steps of the job where it failed.
        epoch: The epoch there, from 0; -1 if unknown.
    """

    name: str
    host: str
    code: int
    text: str = ""
    consequence: bool = False
    how: str = ""
    kind: Kind | None = None
    what: str = ""
    step: int = 0
    epoch: int = -1

    @property
    def policy_kind(self) -> Kind:
        """What the restart policy takes it for."""
        if self.kind is not None:
            return self.kind
        if self.consequence:
            return Kind.ECHO
        if self.code == PREEMPTED_CODE:
            return Kind.PREEMPTED
        if self.code < 0:
            return Kind.CRASH if self.code in _BUGS else Kind.KILLED
        return Kind.EXIT

    @property
    def policy_what(self) -> str:
        """What tells it from others of its kind."""
        return self.what or self.how or self._how()

    @property
    def note(self) -> str:
        """As `heading`, with the place in the training, for the log of a run that goes on."""
        epoch = f" (epoch {self.epoch + 1})" if self.epoch >= 0 else ""
        place = f" after step {self.step}{epoch}" if self.step else ""
        lines = self.what.splitlines()
        error = f": {lines[0][:NOTE_LIMIT].removesuffix('.')}" if lines else ""
        return f"{self.heading.removesuffix('.')}{place}{error}."

    @property
    def is_crash(self) -> bool:
        """Whether native code crashed, which may be the echo of a lost node."""
        return self.code in _CRASHES

    @property
    def exit_code(self) -> int:
        """What the whole job exits with: 1 to 255; 128 + the signal as shells do."""
        return 128 - self.code if self.code < 0 else min(self.code, 255) or 1

    @property
    def heading(self) -> str:
        """One line that says who failed, where, and how."""
        return f"{self.name} on {self.host} {self.how or self._how()}."

    def _how(self) -> str:
        if self.code >= 0:
            return f"failed with exit code {self.code}"
        name = signal_name(-self.code)
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"was killed by {name}{hint}"

    def to_event(self) -> dict[str, Any]:
        """The failure as a message to the other agents."""
        return {
            "type": "failed",
            "name": self.name,
            "host": self.host,
            "code": self.code,
            "text": self.text[-TEXT_LIMIT:],
            "consequence": self.consequence,
            "how": self.how,
            "kind": self.kind,
            "what": self.what[:WHAT_LIMIT],
            "step": self.step,
            "epoch": self.epoch,
        }

    @classmethod
    def from_event(cls, event: Mapping[str, Any]) -> Failure:
        """Reads what `to_event` wrote, on another machine; wrong types become text."""
        code = event.get("code")
        return cls(
            name=str(event.get("name", "a worker")),
            host=str(event.get("host", "another node")),
            code=code if isinstance(code, int) else 1,
            text=str(event.get("text", ""))[-TEXT_LIMIT:],
            consequence=event.get("consequence") is True,
            how=str(event.get("how", "")),
            kind=_kind(event.get("kind")),
            what=str(event.get("what", "")),
            step=_number(event.get("step")),
            epoch=_number(event.get("epoch"), -1),
        )


def _number(value: object, default: int = 0) -> int:
    return value if isinstance(value, int) else default


def _kind(value: object) -> Kind | None:
    try:
        return Kind(value)
    except ValueError:
        return None


def signal_name(number: int) -> str:
    """SIGKILL for 9; "signal 99" for one that has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def root_cause(failures: Sequence[Failure]) -> Failure:
    """The failure that explains the others: no echo, and a crash only if there is nothing else.

    Args:
        failures: At least one, in the order in which they became known.
    """
    assert failures, "nothing failed"  # noqa: S101
    return min(failures, key=_distance)


def _distance(failure: Failure) -> tuple[bool, bool, bool]:
    """How far it is from being a cause."""
    return failure.consequence, failure.is_crash, failure.kind is Kind.REGROUPED


def explanation(stderr: str, stdout: str) -> str:
    """The part of a worker's last output that tells why it ended.

    Its last traceback with all that was chained to it; without one, the last
    lines it wrote.
    """
    starts = [match.start() for match in _TRACEBACK.finditer(stderr)]
    while len(starts) > 1:
        between = stderr[starts[-2] : starts[-1]].rstrip()
        if not between.endswith(_CHAINED):
            break
        starts.pop()
    if starts:
        return stderr[starts[-1] :].rstrip()[-TEXT_LIMIT:]
    written = stderr if stderr.strip() else stdout
    lines = [line.rpartition("\r")[2] for line in written.rstrip().split("\n")[-LAST_LINES:]]
    return "\n".join(lines)[-TEXT_LIMIT:]
