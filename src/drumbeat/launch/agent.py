"""The agent: one process on each node that starts, watches and stops its workers."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import socket
from pathlib import Path

from drumbeat.control.restart import Kind
from drumbeat.errors import PREEMPTED_CODE, DrumbeatError
from drumbeat.launch.attempt import Attempt
from drumbeat.launch.attempts import Attempts
from drumbeat.launch.console import Console
from drumbeat.launch.failures import Failure
from drumbeat.launch.forker import Forker
from drumbeat.launch.machine import Machine
from drumbeat.launch.outcome import Outcome, preempted
from drumbeat.launch.settings import RunSettings
from drumbeat.launch.watch import signal_failure

# A platform that stops the whole job has by then told the other nodes, too.
WHOLE_JOB_S = 1.0
_ASKING_EVERY_S = 0.1


class Agent:
    """Runs the part of a job that belongs to one node. `run` is called once.

    Args:
        settings: What to run.
        machine: Where.
        run_dir: Folder for logs; exists.
        forker: Has the process that forks the workers; begun.
        console: Where output goes.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        machine: Machine,
        run_dir: Path,
        forker: Forker,
        console: Console,
    ) -> None:
        self._settings = settings
        self._console = console
        self._hurry = asyncio.Event()
        self._attempts = Attempts(
            settings,
            machine=machine,
            run_dir=run_dir,
            forker=forker,
            console=console,
            hurry=self._hurry,
        )
        self._signals: list[signal.Signals] = []
        self._asking: asyncio.Future[None] | None = None
        self._withdrawing = False
        self._stopped = asyncio.Event()
        self._decided: Outcome | None = None

    async def run(self) -> Outcome:
        """Runs the job to its end; nothing of it is left when this returns."""
        self._handle_signals()
        self._console.start(chief=self._shown_chief())
        for note in self._settings.notes:
            self._console.note(note)
        work = asyncio.ensure_future(self._attempts.run())
        stopped = asyncio.ensure_future(self._stopped.wait())
        try:
            await asyncio.wait({work, stopped}, return_when=asyncio.FIRST_COMPLETED)
            outcome = await self._outcome(work)
        finally:
            tasks = [work, stopped, *([self._asking] if self._asking else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._attempts.close()
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
        asks = number == signal.SIGTERM and not self._withdrawing
        if asks and (self._withdraw() or self._serve_on() or self._preempt()):
            return
        self._signals.append(number)
        self._console.note(f"Stopping the workers ({number.name}); once more to kill them at once.")
        self._stopped.set()

    def _withdraw(self) -> bool:
        """Has the job go on without this node, if it may; it is left at its next snapshot."""
        if not self._attempts.may_withdraw:
            return False
        self._withdrawing = True
        grace_s = self._settings.grace_s
        self._console.note(
            f"Leaving the job, which goes on without this node (SIGTERM; {grace_s:g} s for it); "
            "once more to leave at once."
        )
        loop = asyncio.get_running_loop()
        loop.call_later(min(WHOLE_JOB_S, grace_s / 2), self._attempts.withdraw)
        loop.call_later(grace_s, self._end_withdrawal)
        return True

    def _serve_on(self) -> bool:
        """Where there are servers only: keeps them for the grace, as the chief may need them.

        If the whole job is stopped, it saves its state meanwhile. If this node alone is, the
        others then wait for the same command to be started again.
        """
        settings = self._settings
        if not settings.has_servers or settings.node_rank == 0 or self._attempts.current is None:
            return False
        self._withdrawing = True
        self._console.note(
            f"Serving on for at most {settings.grace_s:g} s, as the chief may save its state "
            "(SIGTERM); once more to leave at once."
        )
        asyncio.get_running_loop().call_later(settings.grace_s, self._end_withdrawal)
        return True

    def _end_withdrawal(self) -> None:
        if not self._signals:
            self._leave()
            self._signals.append(signal.SIGTERM)
            self._stopped.set()

    def _leave(self) -> None:
        """Has this node leave a job that goes on."""
        if self._settings.has_servers:
            self._attempts.leave()  # nobody can stop after a common step
        else:
            self._attempts.withdraw()

    def _preempt(self) -> bool:
        """Has workers that keep backups save their state, once and within the grace."""
        current = self._attempts.current
        if self._asking or current is None or not current.ask_to_stop():
            return False
        self._asking = asyncio.ensure_future(self._keep_asking(current))
        grace_s = self._settings.grace_s
        self._console.note(
            f"Stopping after a common step and saving the state (SIGTERM; {grace_s:g} s for it); "
            "once more to stop at once."
        )
        asyncio.get_running_loop().call_later(grace_s, self._end_grace)
        return True

    async def _keep_asking(self, asked: Attempt) -> None:
        """Asks workers that take the place of failed ones, too, once they train."""
        while True:
            await asyncio.sleep(_ASKING_EVERY_S)
            current = self._attempts.current
            if current is not None and current is not asked:
                current.ask_to_stop(in_training=True)

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

    async def _stopped_by(self, number: signal.Signals) -> Outcome:
        meeting = self._attempts.meeting
        if self._withdrawing and number == signal.SIGTERM:
            self._leave()
            return Outcome(code=128 + number)
        failure = signal_failure(self._settings.node_rank, number)
        outcome = Outcome(code=128 + number)
        if number == signal.SIGTERM and self._attempts.can_be_taken_up:
            failure = dataclasses.replace(failure, code=PREEMPTED_CODE, kind=Kind.PREEMPTED)
            outcome = Outcome(code=PREEMPTED_CODE, summary=preempted(self._settings.rehearsing))
        await meeting.tell(failure.to_event())
        if number == signal.SIGINT:
            # After SIGTERM, a platform may start this node again, and the others wait for that.
            await meeting.call_off()
        return outcome

    async def _outcome(self, work: asyncio.Future[Outcome]) -> Outcome:
        if self._signals:
            return await self._stopped_by(self._signals[0])
        if self._decided is not None:
            return self._decided
        try:
            return work.result()
        except DrumbeatError as error:
            told = self._attempts.meeting.told_failure()
            if told is not None:  # another node left, or a fence failed, because of it
                return Outcome(code=told.exit_code, heading=told.heading, body=told.text)
            failure = Failure(
                name=f"node {self._settings.node_rank}",
                host=socket.gethostname(),
                code=error.exit_code,
                text=str(error),
                kind=Kind.MISTAKE,
            )
            await self._attempts.meeting.tell(failure.to_event())
            return Outcome(code=error.exit_code, heading="The run failed.", body=str(error))
