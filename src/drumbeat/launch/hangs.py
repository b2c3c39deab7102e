"""Finds workers of this node that hang, and those that have ended while others wait for them.

An agent judges only its own workers, by what they write to their progress pages. What it
needs to know of other nodes is little and told seldom: who has ended, and who waits in
a collective for very long.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from drumbeat.control import hang
from drumbeat.control.hang import Finding, Limits, Place, Reading
from drumbeat.launch import stacks
from drumbeat.launch.failures import Failure
from drumbeat.launch.meeting import Meeting
from drumbeat.launch.processes import ParentProcess
from drumbeat.launch.settings import RunSettings
from drumbeat.state.progress import Activity, Progress
from drumbeat.state.waiting import Waiting, WaitingNote

if TYPE_CHECKING:
    from drumbeat.launch.watch import Worker

POLL_S = 0.5
# Between two looks so much later than the other, this process was stopped or the machine
# asleep, and so perhaps the workers were.
_GAP_S = 5.0
# Waits of less than this are nobody's business on other nodes.
_TOLD_AFTER_S = 2.0
_IN_WORDS = {
    Activity.STARTING: "runs its script",
    Activity.TRAINING: "trains",
    Activity.BETWEEN_EPOCHS: "is between two epochs",
    Activity.EVALUATING: "evaluates",
    Activity.PREDICTING: "predicts",
    Activity.SCRIPT: "runs its script",
    Activity.ENDED: "is about to end",
    Activity.SAVING: "saves its model",
}
# Not "t": a debugger holds that one.
_STOPPED = "T"


class HangWatch:
    """Looks after the workers of one attempt. `run` is called once, after all `add`s.

    Args:
        settings: With the deadlines.
        parent: Knows the workers' processes.
        meeting: The other nodes.
        note: Shows a line of the log.
        patience: See `drumbeat.control.hang.patience`.

    Attributes:
        killed: Names of the workers that have been killed because they hang.
    """

    def __init__(
        self,
        settings: RunSettings,
        parent: ParentProcess,
        meeting: Meeting,
        note: Callable[[str], None],
        patience: float,
    ) -> None:
        self._limits = Limits(
            hang_s=settings.hang_timeout_s,
            collective_s=settings.collective_timeout_s,
            patience=patience,
        )
        self._parent = parent
        self._meeting = meeting
        self._note = note
        self._workers: dict[str, Worker] = {}
        self._waiting: dict[str, WaitingNote] = {}
        self._before: dict[str, tuple[Progress, float, bool]] = {}
        self._pause_s: dict[str, float] = {}
        self._start_s: dict[str, float] = {}
        self.killed: set[str] = set()
        self._lost: set[str] = set()
        self._down: set[str] = set()
        self._servers: set[str] = set()
        self._stopped_since_s: dict[str, float] = {}
        self._look = asyncio.Event()
        self._base_s = 0.0
        # What other nodes have told, by their workers' names, and what they have been told.
        self._remote: dict[str, Reading] = {}
        self._hosts: dict[str, str] = {}
        self._told: dict[str, dict[str, Any]] = {}

    def add(self, worker: Worker) -> None:
        """Looks after one more worker, if it takes part in the training or serves it."""
        if worker.task.is_server:
            self._servers.add(worker.task.name)
        if worker.task.rank >= 0:
            self._workers[worker.task.name] = worker
            self._waiting[worker.task.name] = WaitingNote(worker.progress.fd)

    def down(self, name: str, is_down: bool) -> None:
        """Notes that a server is gone, or back: meanwhile, its coordinator may wait for it."""
        (self._down.add if is_down else self._down.discard)(name)
        self._base_s = time.monotonic()

    def heard(self, event: Mapping[str, Any]) -> None:
        """Takes in how a worker of another node stands."""
        name, number = str(event.get("name")), event.get("number")
        waited_s = event.get("waited_s")
        if not isinstance(number, int) or not isinstance(waited_s, int | float):
            return
        self._hosts[name] = str(event.get("host", "another node"))
        self._remote[name] = Reading(
            name=name,
            number=number,
            waits=event.get("waits") is True,
            since_s=time.monotonic() - waited_s,
            where=str(event.get("where", "")),
            ended=event.get("ended") is True,
            remote=True,
        )

    def lost(self, name: str) -> None:
        """Notes that a worker has failed because a collective did: somebody is missing there."""
        self._lost.add(name)
        self._look.set()

    async def run(self) -> list[Failure]:
        """Returns when workers of this node hang, or have ended while others wait for them.

        Returns:
            One failure for each. Those that hang have been killed.
        """
        self._base_s = last_s = time.monotonic()
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._look.wait(), POLL_S)
            self._look.clear()
            now_s = time.monotonic()
            if now_s - last_s > _GAP_S or self._down:
                self._base_s = now_s
            last_s = now_s
            self._end_stopped_servers(now_s)
            readings = [self._read(worker) for worker in self._workers.values()]
            await self._tell(readings, now_s)
            if any(worker.progress.requests() for worker in self._workers.values()):
                continue  # they save their state and stop, within a grace of its own
            found = hang.find([*readings, *self._remote.values()], self._limits, now_s)
            if found:
                self.report()
                return [await self._failure(finding) for finding in found]

    def _end_stopped_servers(self, now_s: float) -> None:
        """Kills servers that stand still, as a coordinator would wait for them for ever.

        One that is idle sleeps, which nobody can tell from one that hangs in a call.
        """
        hang_s = self._limits.hang_s
        limit_s = hang.SHORTEST_LIMIT_S if hang_s is None else hang_s
        for name in self._servers:
            if _state_of(self._parent.pid_of(name)) != _STOPPED:
                self._stopped_since_s.pop(name, None)
            elif now_s - self._stopped_since_s.setdefault(name, now_s) >= limit_s > 0:
                self._note(f"{name} stands still (SIGSTOP) for {limit_s:g} s and is killed.")
                self._parent.signal_worker(name, signal.SIGKILL)

    def report(self) -> None:
        """Shows where each worker of this node is."""
        now_s = time.monotonic()
        for name, worker in self._workers.items():
            progress, waiting = worker.progress.read(), self._waiting[name].read()
            ended = self._parent.code_of(name) is not None
            self._note(f"{name}: {whereabouts(progress, waiting, now_s, ended=ended)}.")

    def _read(self, worker: Worker) -> Reading:
        name = worker.task.name
        progress, waiting = worker.progress.read(), self._waiting[name].read()
        alive_s = max(progress.alive_s, waiting.since_s)
        place = place_of(progress)
        self._time(name, progress, alive_s, waits=waiting.waits)
        code = self._parent.code_of(name)
        return Reading(
            name=name,
            place=place,
            alive_s=max(alive_s, self._base_s),
            slowest_step_s=progress.slowest_step_s,
            longest_pause_s=self._pause_s.get(name, 0.0),
            longest_start_s=self._start_s.get(name, 0.0),
            number=waiting.number,
            waits=waiting.waits and code is None,
            since_s=max(waiting.since_s, self._base_s),
            where=waiting.text,
            stopped=_state_of(self._parent.pid_of(name)) == _STOPPED,
            ended=code == 0,
            lost=name in self._lost,
        )

    def _time(self, name: str, progress: Progress, alive_s: float, *, waits: bool) -> None:
        """Keeps the longest times without a sign of life where these are no steps."""
        before, before_s, waited = self._before.get(name, (progress, alive_s, waits))
        self._before[name] = progress, alive_s, waits
        if waited or place_of(before) is not Place.PHASE or before_s < self._base_s:
            return
        pause_s = alive_s - before_s
        self._pause_s[name] = max(self._pause_s.get(name, 0.0), pause_s)
        if before.activity is Activity.TRAINING:
            self._start_s[name] = max(self._start_s.get(name, 0.0), pause_s)

    async def _tell(self, readings: Sequence[Reading], now_s: float) -> None:
        """Tells the other nodes who has ended or waits for long, and when a wait is over."""
        for reading in readings:
            long_s = max(self._limits.of(reading) / 2, _TOLD_AFTER_S)
            waits = reading.waits and now_s - reading.since_s >= long_s
            told = self._told.get(reading.name, {"waits": False, "ended": False})
            state = {"waits": waits, "ended": reading.ended}
            if state == told:
                continue
            self._told[reading.name] = state
            await self._meeting.tell(
                {
                    "type": "worker",
                    "name": reading.name,
                    "host": socket.gethostname(),
                    "number": reading.number,
                    "where": reading.where,
                    "waited_s": now_s - reading.since_s,
                    **state,
                }
            )

    async def _failure(self, finding: Finding) -> Failure:
        worker = self._workers.get(finding.name)
        text = finding.why
        progress = None if worker is None else worker.progress.read()
        if worker is not None and not finding.ended:
            text = f"{text}\n{await self._stacks(worker)}"
            self.killed.add(finding.name)
            self._parent.signal_worker(finding.name, signal.SIGKILL)
        return Failure(
            name=finding.name,
            host=self._hosts.get(finding.name, socket.gethostname()),
            code=1,
            text=text,
            how=finding.how,
            kind=finding.kind,
            # Without the seconds, which differ from one time to the next.
            what="has ended too early" if finding.ended else "made no progress",
            step=progress.step if progress else 0,
            epoch=progress.epoch if progress else 0,
        )

    async def _stacks(self, worker: Worker) -> str:
        """Where the worker is in its Python code, in words if it does not answer."""
        pid = self._parent.pid_of(worker.task.name)
        if pid is None:
            return ""
        state = _state_of(pid)
        dump = await stacks.ask(pid, worker.progress.fd)
        shown = stacks.readable(dump)
        if not shown:
            blocked = ", it waits for a disk or a network file system" if state == "D" else ""
            return f"It gave no Python stack (state of the process: {state or 'gone'}{blocked})."
        path = worker.failure_path.with_name("stacks.txt")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dump, encoding="utf-8")
        except OSError:
            return shown
        return f"{shown}\nThe stacks of all its threads are in {path}"


def place_of(progress: Progress) -> Place:
    """Where the worker is, for the rules on hangs."""
    if progress.activity is Activity.TRAINING and progress.slowest_step_s > 0:
        return Place.STEPS
    if progress.activity in (Activity.STARTING, Activity.SCRIPT, Activity.ENDED):
        return Place.SCRIPT
    return Place.PHASE


def whereabouts(progress: Progress, waiting: Waiting, now_s: float, *, ended: bool) -> str:
    """Where a worker is, to follow its name."""
    place = "before its first step"
    if progress.step:
        place = f"after step {progress.step} (epoch {progress.epoch + 1})"
    if ended:
        return f"{place}, has ended"
    if waiting.waits:
        return f"{place}, waits in {waiting.text} for {now_s - waiting.since_s:.1f} s"
    alive_s = max(progress.alive_s, waiting.since_s)
    last = f", last sign of life {now_s - alive_s:.1f} s ago" if alive_s else ""
    return f"{place}, {_IN_WORDS[progress.activity]}{last}"


def _state_of(pid: int | None) -> str:
    """The letter proc_pid_stat(5) has for what a process is doing; "" if unknown."""
    if pid is None:
        return ""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""
