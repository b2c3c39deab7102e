"""The agent: one process on each node that starts, watches and stops its workers."""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from drumbeat.control.restart import Kind
from drumbeat.errors import DrumbeatError, Preempted
from drumbeat.launch import environment
from drumbeat.launch.attempt import Attempt, Machine
from drumbeat.launch.console import Console
from drumbeat.launch.failures import Failure, root_cause
from drumbeat.launch.meeting import Meeting
from drumbeat.launch.plan import tasks_on_node
from drumbeat.launch.processes import ParentProcess
from drumbeat.launch.settings import RunSettings
from drumbeat.launch.watch import Watch, signal_failure
from drumbeat.state.memory import SnapshotMemory

STOP_GRACE_S = 2.0
FAILURE_GRACE_S = 1.0
TELL_TIMEOUT_S = 5.0
_PREEMPTED = (
    "The workers have saved their state and stopped. The same command goes on from there "
    f"(exit code {Preempted.exit_code})."
)
SLOW_START_S = 8.0  # After this long without a sign, say what is going on.


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the run ended: the exit code, and what to show last.

    Attributes:
        code: The agent's exit code.
        heading: Who failed and how; "" if nobody did.
        body: The traceback or whatever else explains it.
        summary: One line about a success.
    """

    code: int
    heading: str = ""
    body: str = ""
    summary: str = ""


class Agent:
    """Runs the part of a job that belongs to one node. `run` is called once.

    Args:
        settings: What to run.
        machine: Where.
        run_dir: Folder for logs; exists.
        preload: Module that the parent imports.
        console: Where output goes.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        machine: Machine,
        run_dir: Path,
        preload: str,
        console: Console,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._run_dir = run_dir
        self._preload = preload
        self._console = console
        self._meeting = Meeting(settings, on_waiting=console.note)
        self._parent: ParentProcess | None = None
        self._attempt: Attempt | None = None
        self._memory = SnapshotMemory.create()
        self._signals: list[signal.Signals] = []
        self._asked = False
        self._stopped = asyncio.Event()
        self._decided: Outcome | None = None
        self._hurry = asyncio.Event()
        self._grace_s = STOP_GRACE_S
        self._began_s = 0.0

    async def run(self) -> Outcome:
        """Runs the job to its end; nothing of it is left when this returns."""
        self._began_s = time.monotonic()
        self._handle_signals()
        self._console.start(chief=self._shown_chief())
        for note in self._settings.notes:
            self._console.note(note)
        work = asyncio.ensure_future(self._work())
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            outcome = await self._outcome(work)
        finally:
            for task in (work, stopped):
                task.cancel()
            await asyncio.gather(work, stopped, return_exceptions=True)
            await self._clean_up()
        return outcome

    def stop(self, outcome: Outcome) -> None:
        """Ends the job, which `run` then returns with `outcome`. To be called in its event loop."""
        self._decided = outcome
        self._stopped.set()

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            # nohup and a shell's & have a signal ignored; that stays so.
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self._signals:
            self._hurry.set()
            return
        if number == signal.SIGTERM and self._preempt():
            return
        self._signals.append(number)
        self._console.note(f"Stopping the workers ({number.name}); once more to kill them at once.")
        self._stopped.set()

    def _preempt(self) -> bool:
        """Has workers that keep backups save their state, once and within the grace."""
        if self._asked or self._attempt is None or not self._attempt.ask_to_stop():
            return False
        self._asked = True
        grace_s = self._settings.grace_s
        self._console.note(
            f"Stopping after a common step and saving the state (SIGTERM; {grace_s:g} s for it); "
            "once more to stop at once."
        )
        asyncio.get_running_loop().call_later(grace_s, self._end_grace)
        return True

    def _end_grace(self) -> None:
        if not self._signals:
            self._console.note("The grace is over; the last backup has to do. --grace allows more.")
            self._on_signal(signal.SIGTERM)

    def _shown_chief(self) -> str:
        settings = self._settings
        if settings.lone_task:
            return str(settings.lone_task)
        if settings.node_rank != 0:
            return ""
        named = settings.ps or (settings.platform and "chief" in settings.platform.jobs)
        return "chief 0" if named else "worker 0"

    async def _outcome(self, work: asyncio.Future[Outcome]) -> Outcome:
        if self._signals:
            number = self._signals[0]
            await self._meeting.tell(signal_failure(self._settings.node_rank, number).to_event())
            return Outcome(code=128 + number)
        if self._decided is not None:
            return self._decided
        try:
            return work.result()
        except DrumbeatError as error:
            told = self._meeting.told_failure()
            if told is not None:  # another node left, or a fence failed, because of it
                return Outcome(code=told.exit_code, heading=told.heading, body=told.text)
            failure = Failure(
                name=f"node {self._settings.node_rank}",
                host=socket.gethostname(),
                code=error.exit_code,
                text=str(error),
            )
            await self._meeting.tell(failure.to_event())
            return Outcome(code=error.exit_code, heading="The run failed.", body=str(error))

    async def _work(self) -> Outcome:
        settings = self._settings
        count = tasks_on_node(settings, settings.node_rank, settings.workers)
        share = environment.share_of(self._machine.cpus, self._machine.gpus, 0, count)
        variables = environment.parent_variables(self._machine.environ, share)
        log = self._run_dir / _log_name("parent", settings.node_rank)
        self._parent = ParentProcess.start(variables, self._preload, log)
        ready = asyncio.ensure_future(self._parent.ready(settings.start_timeout_s))
        met = asyncio.ensure_future(self._meet(count))
        slow = asyncio.get_running_loop().call_later(
            SLOW_START_S, self._console.note, "Loading TensorFlow takes its time on this machine…"
        )
        ready.add_done_callback(lambda _: slow.cancel())
        try:
            await asyncio.wait({ready, met}, return_when=asyncio.FIRST_EXCEPTION)
            if not met.done():
                # The others should hear of the failed import, not wait until their deadline.
                await asyncio.wait({met}, timeout=TELL_TIMEOUT_S)
            for task in (ready, met):
                if task.done():
                    task.result()
        finally:
            for task in (ready, met):
                task.cancel()
            await asyncio.gather(ready, met, return_exceptions=True)
        # Scripts start everywhere at the same time, however long an import has taken: the
        # deadlines of collectives begin with them.
        await self._meeting.client.fence("ready", {}, self._settings.start_timeout_s)
        return await self._train(met.result())

    async def _meet(self, count: int) -> str:
        """Meets the other nodes; returns which collectives the job uses."""
        await self._meeting.start(ports=count)
        return await self._agree_on_collectives()

    async def _agree_on_collectives(self) -> str:
        machine, settings = self._machine, self._settings
        key = str(settings.node_rank)
        found = {f"gpus:{key}": str(len(machine.gpus)), f"mpi:{key}": str(int(machine.mpi))}
        everywhere = await self._meeting.client.fence("machines", found, settings.start_timeout_s)
        gpus = any(int(n) for name, n in everywhere.items() if name.startswith("gpus:"))
        mpi = all(int(n) for name, n in everywhere.items() if name.startswith("mpi:"))
        chosen, why = environment.choose_collectives(settings.collectives, gpus=gpus, mpi=mpi)
        if settings.workers + settings.ps + settings.nodes > 2:
            self._console.note(f"Collectives: {chosen} ({why}).")
        return chosen

    async def _train(self, collectives: str) -> Outcome:
        assert self._parent is not None  # noqa: S101
        watch = Watch(self._settings, self._parent, self._meeting, self._console.note)
        self._attempt = Attempt(
            self._settings,
            machine=self._machine,
            run_dir=self._run_dir,
            console=self._console,
            client=self._meeting.client,
            parent=self._parent,
            memory=self._memory,
            watch=watch,
            collectives=collectives,
            job_id=self._meeting.client.job_id,
        )
        self._meeting.release_ports()
        await self._attempt.start()
        failures = await watch.run()
        self._grace_s = FAILURE_GRACE_S
        if failures:
            cause = root_cause(failures)
            if cause.policy_kind is Kind.PREEMPTED:
                await self._attempt.let_save(self._settings.grace_s, self._hurry)
                return Outcome(code=cause.exit_code, summary=_PREEMPTED)
            return Outcome(code=cause.exit_code, heading=cause.heading, body=cause.text)
        seconds = time.monotonic() - self._began_s
        summary = f"Finished in {seconds:.1f} s. Logs are in {self._run_dir}"
        return Outcome(code=0, summary=summary)

    async def _clean_up(self) -> None:
        if self._attempt is not None:
            await self._attempt.stop(self._grace_s, self._hurry)
        if self._parent is not None:
            await self._parent.stop()
        if self._attempt is not None:
            await self._attempt.close()
        await self._meeting.close()
        self._memory.close()


def _log_name(stem: str, node_rank: int) -> str:
    return f"{stem}.log" if node_rank == 0 else f"{stem}-node-{node_rank}.log"
