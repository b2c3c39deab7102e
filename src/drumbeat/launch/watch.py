"""Watches the workers of a node, and what the other nodes tell, for the first failure."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from drumbeat.cluster.wording import listed
from drumbeat.control.restart import Kind
from drumbeat.errors import Regrouped, RendezvousError
from drumbeat.launch.failures import WHAT_LIMIT, Failure, explanation
from drumbeat.launch.hangs import HangWatch
from drumbeat.launch.keeper import Keeper
from drumbeat.launch.meeting import Meeting
from drumbeat.launch.plan import LocalTask
from drumbeat.launch.processes import ParentError, ParentProcess
from drumbeat.launch.settings import RunSettings
from drumbeat.launch.streams import WorkerStream, wait_closed
from drumbeat.state.progress import Activity, ProgressPage, Request

logger = logging.getLogger("drumbeat")

# How long a failure that is only the echo of another waits for that other one.
CAUSE_WAIT_S = 0.7
_LAST_OUTPUT_S = 0.3
_EVALUATOR_POLL_S = 0.2
_STEPS_POLL_S = 0.05
# How long workers may go on after the chief where a platform has ps tasks that are not ours to
# end: in synchronous training they end by themselves, as servers of a coordinator they never do.
_LINGER_S = 5.0
_EVERY_WORKER = (
    "Every worker must make the strategy; look for code before it that depends on the rank, or "
    "takes longer on some workers."
)
_END_FENCE = "end of attempt {}"


@dataclass(frozen=True, kw_only=True)
class Worker:
    """A running process, its output, and what it says of itself."""

    task: LocalTask
    stdout: WorkerStream
    stderr: WorkerStream
    failure_path: Path
    progress: ProgressPage


class Watch:
    """Waits for the end of the job on this node. `run` is called once, after all `add`s."""

    def __init__(
        self,
        settings: RunSettings,
        parent: ParentProcess,
        meeting: Meeting,
        note: Callable[[str], None],
        patience: float = 1.0,
        on_moves: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._parent = parent
        self._meeting = meeting
        self._workers: dict[str, Worker] = {}
        self._keepers: dict[str, Keeper] = {}
        self._failures: list[Failure] = []
        self._changed = asyncio.Event()
        self._aborts: dict[str, int] = {}
        self._untold: list[Failure] = []
        self._on_moves = on_moves
        self._note = note
        self._hangs = HangWatch(settings, parent, meeting, note, patience)
        self.fired = 0
        """Faults of `--inject` that other agents have told of before they struck."""

    def add(self, worker: Worker, keeper: Keeper | None = None) -> None:
        """Watches one more worker, which `keeper` starts again if it fails, if there is one."""
        self._workers[worker.task.name] = worker
        self._hangs.add(worker)
        if keeper is not None:
            self._keepers[worker.task.name] = keeper

    async def down(self, name: str, is_down: bool) -> None:
        """Notes here and on the other nodes that a server is gone, or back."""
        self._hangs.down(name, is_down)
        await self._meeting.tell({"type": "down", "name": name, "is_down": is_down})

    def aborted(self, name: str, code: int, text: str) -> None:
        """Notes that a worker called MPI_Abort: it may be about to end, or unable to."""
        self._aborts[name] = code or 1
        failure = Failure(
            name=name,
            host=socket.gethostname(),
            code=code or 1,
            text=f"It called MPI_Abort: {text}",
            consequence=True,
        )
        self._untold.append(failure)
        self._record(failure)

    def missing(self, waiting: Sequence[str], absent: Sequence[str], ended: bool) -> None:
        """Notes that some workers wait in MPI_Init for others, which is in vain or too long.

        Args:
            waiting: Names of the workers that wait.
            absent: Names of those that never came.
            ended: The absent have ended; otherwise the deadline has passed.
        """
        timeout_s = self._settings.collective_timeout_s
        why = (
            "which ended without it"
            if ended
            else f"for {timeout_s:g} s; --collective-timeout allows more time"
        )
        failure = Failure(
            name=listed(absent),
            host=socket.gethostname(),
            code=1,
            text=(
                f"{listed(waiting)} waited for {listed(absent)} at the strategy, {why}. "
                f"{_EVERY_WORKER}"
            ),
            # Where they ended because they failed, that is the cause.
            consequence=ended,
            how="never came to its strategy",
            # A worker that ended without it does so again; one that is late may come.
            kind=Kind.EXIT if ended else Kind.ECHO,
        )
        self._untold.append(failure)
        self._record(failure)

    def cut_off(self, text: str) -> None:
        """Notes that MPI's ranks here could not meet those of other nodes."""
        failure = Failure(
            name=f"node {self._settings.node_rank}",
            host=socket.gethostname(),
            code=1,
            text=f"{text} {_EVERY_WORKER}",
            consequence=True,
            how="could not meet the other nodes in MPI",
        )
        self._untold.append(failure)
        self._record(failure)

    async def parent_lost(self, error: ParentError) -> Failure:
        """The failure that is the end of the process that starts workers; the others are told."""
        failure = Failure(
            name="The agent",
            host=socket.gethostname(),
            code=1,
            text=str(error),
            how="lost the process that starts its workers",
            kind=Kind.KILLED,
            step=max((worker.progress.read().step for worker in self._workers.values()), default=0),
        )
        await self._meeting.tell(failure.to_event())
        return failure

    async def run(self) -> list[Failure]:
        """Returns when all nodes have succeeded, or something failed anywhere.

        Returns:
            Nothing if the job succeeded. Otherwise what is known of the failure
            so far, in the order in which it became known; the workers are still
            to be stopped.
        """
        ends = {
            worker.task.name: asyncio.ensure_future(self._report_end(worker))
            for worker in self._workers.values()
        }
        events = asyncio.ensure_future(self._report_events())
        hangs = asyncio.ensure_future(self._report_hangs())
        done = asyncio.ensure_future(self._until_done(ends))
        changed = asyncio.ensure_future(self._changed.wait())
        tasks: list[asyncio.Future[Any]] = [*ends.values(), events, hangs, done, changed]
        try:
            await asyncio.wait({done, changed}, return_when=asyncio.FIRST_COMPLETED)
            await self._tell_untold()
            await self._wait_for_cause()
            await self._tell_untold()
            if not self._failures:
                done.result()
            return list(self._failures)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _tell_untold(self) -> None:
        untold, self._untold = self._untold, []
        for failure in untold:
            await self._meeting.tell(failure.to_event())

    async def _until_done(self, ends: Mapping[str, asyncio.Future[None]]) -> None:
        """Waits for the end of the job as long as nothing fails."""
        await self._until_local_end_or_steps(ends)
        if self._settings.nodes > 1 and not self._failures:
            try:
                name = _END_FENCE.format(self._meeting.attempt)
                await self._meeting.client.fence(name, {}, None)
            except RendezvousError as error:
                self._record(self._meeting.broken(error))

    async def _until_local_end_or_steps(self, ends: Mapping[str, asyncio.Future[None]]) -> None:
        """Waits for the end here, or in a rehearsal until all workers of the node have trained."""
        poll_s = _STEPS_POLL_S if self._settings.rehearsing else None
        local = asyncio.ensure_future(self._until_local_end(ends))
        try:
            while not (local.done() or self._made_steps):
                await asyncio.wait({local}, timeout=poll_s)
            if local.done():
                local.result()
        finally:
            local.cancel()
            await asyncio.gather(local, return_exceptions=True)

    @property
    def _made_steps(self) -> bool:
        """Whether the workers here have made a rehearsal's steps: they may be ended from now on.

        Servers of another node's coordinator count none, and end with that one's.
        """
        order = self._settings.rehearsing
        pages = [each.progress for each in self._workers.values() if each.task.rank >= 0]
        return order is not None and bool(pages) and min(p.made for p in pages) >= order.steps

    async def _until_local_end(self, ends: Mapping[str, asyncio.Future[None]]) -> None:
        chief = ends.get("chief 0")
        settings = self._settings
        train = [end for name, end in ends.items() if not self._workers[name].task.is_evaluator]
        if settings.has_servers or (settings.has_own_servers and settings.ps):
            if chief is not None:
                await chief
        elif settings.has_own_servers:
            if chief is not None:
                await chief
                await asyncio.wait(ends.values(), timeout=_LINGER_S)
        else:
            await asyncio.gather(*train)
        for name, worker in self._workers.items():
            if worker.task.is_evaluator and not self._failures:
                await self._last_evaluation(ends[name], name)

    async def _last_evaluation(self, end: asyncio.Future[None], name: str) -> None:
        """Has an evaluator finish: within the grace, or as long as it evaluates."""
        settings, clock = self._settings, asyncio.get_running_loop().time
        began_s = seen_s = clock()
        while not end.done() and clock() - began_s < settings.collective_timeout_s:
            page = self._workers[name].progress  # of its last life
            page.request(Request.FINISH)
            await asyncio.wait({end}, timeout=_EVALUATOR_POLL_S)
            if page.read().activity is Activity.EVALUATING:
                seen_s = clock()
            elif clock() - seen_s >= settings.grace_s:
                break
        if not end.done():
            waited_s = clock() - began_s
            self._note(f"{name} is ended: it went on for {waited_s:.0f} s after the training.")

    async def _wait_for_cause(self) -> None:
        """Gives the failure behind an echo the time to become known.

        MPI may crash when another node is lost, before the agents notice.
        """
        nodes = self._settings.nodes
        deadline = asyncio.get_running_loop().time() + CAUSE_WAIT_S
        while self._failures and all(
            failure.consequence or (failure.is_crash and nodes > 1) for failure in self._failures
        ):
            left_s = deadline - asyncio.get_running_loop().time()
            if left_s <= 0:
                return
            self._changed.clear()
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._changed.wait(), left_s)

    async def _report_end(self, worker: Worker) -> None:
        """Returns at the last end of a worker, which may be started again before."""
        keeper = self._keepers.get(worker.task.name)
        try:
            while True:
                code = await self._parent.end_of(worker.task.name)
                if worker.task.name in self._hangs.killed or self._made_steps:
                    return
                if code == 0 and not worker.task.is_server:
                    return
                failure = await self._failure_of(worker, code)
                following = failure if keeper is None else await keeper.after(failure)
                if isinstance(following, Failure):
                    break
                worker = self._workers[worker.task.name] = following
        except ParentError as error:
            self._record(await self.parent_lost(error))
            return
        if following.consequence:
            self._hangs.lost(worker.task.name)
        self._record(following)
        await self._meeting.tell(following.to_event())

    async def _failure_of(self, worker: Worker, code: int) -> Failure:
        await wait_closed((worker.stdout, worker.stderr), _LAST_OUTPUT_S)
        note, progress = _note_of(worker.failure_path), worker.progress.read()
        return Failure(
            name=worker.task.name,
            host=socket.gethostname(),
            # After MPI_Abort, MPI's own end fails and changes the exit code that was asked for.
            code=self._aborts.get(worker.task.name, code),
            text=explanation(worker.stderr.tail_text(), worker.stdout.tail_text()),
            consequence=note.get("consequence") is True,
            # A server ends without an error only if somebody has sent it SIGTERM.
            kind=_kind_of(note) if code else Kind.KILLED,
            how="" if code else "has ended by itself",
            what=f"{note['type']}: {note.get('message')}"[:WHAT_LIMIT] if "type" in note else "",
            step=progress.step,
            epoch=progress.epoch,
        )

    async def _report_hangs(self) -> None:
        try:
            failures = await self._hangs.run()
        except Exception as error:  # noqa: BLE001  (training goes on without)
            logger.warning("Nobody looks for hanging workers any more, by a bug: %r", error)
            return
        for failure in failures:
            self._record(failure)
            await self._meeting.tell(failure.to_event())

    async def _report_events(self) -> None:
        while True:
            event = await self._meeting.client.events.get()
            if self._meeting.is_old(event):
                continue
            match event.get("type"):
                case "fired":
                    self.fired |= 1 << int(event.get("fault", 0))
                case "node_joins":
                    self._meeting.joining.add(int(event["node_rank"]))
                    self._on_moves()
                case "node_leaves":
                    self._meeting.leaving.add(int(event["node_rank"]))
                    self._on_moves()
                case "worker":
                    self._hangs.heard(event)
                case "down":
                    self._hangs.down(str(event.get("name")), event.get("is_down") is True)
                case "failed":
                    failure = Failure.from_event(event)
                    if failure.kind is Kind.HANG:
                        self._hangs.report()
                    self._record(failure)
                case _:
                    failure = self._meeting.loss(event)
                    if failure is not None:
                        self._record(failure)

    def _record(self, failure: Failure) -> None:
        self._failures.append(failure)
        self._changed.set()


def signal_failure(node_rank: int, number: signal.Signals) -> Failure:
    """What the other nodes are told when this one is stopped by its user or platform."""
    return Failure(
        name=f"node {node_rank}",
        host=socket.gethostname(),
        code=128 + number,
        how=f"was stopped by {number.name}",
        kind=Kind.STOPPED,
    )


def _note_of(failure_path: Path) -> dict[str, Any]:
    """What the worker left about the exception that ended it; {} if it didn't."""
    try:
        note = json.loads(failure_path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return note if isinstance(note, dict) else {}


def _kind_of(note: Mapping[str, Any]) -> Kind | None:
    if note.get("final") is True:
        return Kind.MISTAKE
    if note.get("type") == Regrouped.__name__:
        return Kind.REGROUPED
    return Kind.EXCEPTION if "type" in note and note.get("consequence") is not True else None
