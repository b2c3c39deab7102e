"""The attempts of a job on one node: meet the others, agree, train, and if it failed, again."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import time
from pathlib import Path

from drumbeat.cluster.identity import JAX
from drumbeat.control import hang
from drumbeat.control.restart import GiveUp, Kind, decide
from drumbeat.errors import RendezvousError
from drumbeat.launch import agreement, environment
from drumbeat.launch.agreement import Standing
from drumbeat.launch.attempt import Attempt
from drumbeat.launch.console import Console
from drumbeat.launch.failures import Failure, root_cause
from drumbeat.launch.files import write_times
from drumbeat.launch.forker import Forker
from drumbeat.launch.machine import Machine
from drumbeat.launch.meeting import Meeting
from drumbeat.launch.notes import going_on, times
from drumbeat.launch.outcome import Outcome, preempted
from drumbeat.launch.plan import sync_sizes
from drumbeat.launch.processes import ParentError
from drumbeat.launch.rendezvous import JobOver, NodesLost
from drumbeat.launch.settings import RunSettings
from drumbeat.launch.watch import Watch
from drumbeat.state.memory import SnapshotMemory
from drumbeat.state.step_times import summary as time_use

STOP_GRACE_S = 2.0
FAILURE_GRACE_S = 1.0
TELL_TIMEOUT_S = 5.0
REJOINING_EVERY_S = 30.0  # Says so often who is missing; it can take many minutes.
REGROUP_TIMEOUT_S = 15.0  # For a node that has just asked to be let in.
WITHDRAWN_CODE = 128 + signal.SIGTERM
_FINAL = (Kind.MISTAKE, Kind.STOPPED, Kind.PREEMPTED)


class _NotBack(RendezvousError):
    """A lost node did not come back in time."""

    def __init__(self, lost: Failure, timeout_s: float, error: RendezvousError) -> None:
        super().__init__(
            f"{lost.text} Not all nodes were there again within {timeout_s:g} s "
            f"(--rejoin-timeout): {error}"
        )
        self.heading = lost.heading


class Attempts:
    """The part of a job's attempts that one node runs. `run` is called once, then `close`.

    Args:
        settings: What to run.
        machine: Where.
        run_dir: Folder for logs; exists.
        forker: Has the process that forks the workers.
        console: Where output goes.
        hurry: Set when workers are to be killed at once at the end.

    Attributes:
        meeting: This node among the others, now.
        current: The attempt that is going on, if one is.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        machine: Machine,
        run_dir: Path,
        forker: Forker,
        console: Console,
        hurry: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._run_dir = run_dir
        self._forker = forker
        self._console = console
        self._hurry = hurry
        self._memory = SnapshotMemory.create()
        self._grace_s = STOP_GRACE_S
        self._collectives = ""
        self._standing = Standing()
        self._fired = 0
        self._fences = 0
        self._withdraws = False
        self._keeps_backups = False
        self._telling: asyncio.Future[None] | None = None
        self._ready = asyncio.Event()
        self.meeting = Meeting(settings, on_waiting=console.note, ready=self._ready)
        self.current: Attempt | None = None

    async def run(self) -> Outcome:
        """Runs the job to its success, or to the failure that ends it.

        Raises:
            DrumbeatError: The nodes did not meet, TensorFlow can't be imported, ...
        """
        began_s = time.monotonic()
        while True:
            try:
                await self._come_together()
                outcome = await self._agree()
                if outcome is not None:
                    return outcome
                await self._forker.have()  # in the environment that all agree on
                failures = await self._train()
            except NodesLost as error:
                failures = [self.meeting.lost_failure(error)]
            except JobOver:
                return Outcome(code=0, summary="The job finished before this node could join it.")
            except _NotBack as error:
                return Outcome(code=1, heading=error.heading, body=str(error))
            if not failures:
                return self._success(time.monotonic() - began_s)
            cause = root_cause(failures)
            if self._withdraws and cause.policy_kind is not Kind.PREEMPTED:
                return Outcome(code=WITHDRAWN_CODE, summary="Has left the job, which goes on.")
            if self._settings.max_restarts == 0 or cause.policy_kind in _FINAL:
                self._grace_s = FAILURE_GRACE_S
                return self._failed(cause)
            await self._end_attempt(cause)

    async def close(self) -> None:
        """Ends what is still running, and leaves nothing behind."""
        if self.current is not None:
            await self.current.stop(self._grace_s, self._hurry)
        await self._forker.stop()
        if self.current is not None:
            await self.current.close()
            missed = self.current.missed
            if missed and self.meeting.succeeded:
                self._console.note(
                    f"--inject {', '.join(missed)} never struck: there was no such step. "
                    "Steps are counted in fit under the strategy, and in resumable loops."
                )
        write_times(self._run_dir, self._settings.node_rank)
        await self.meeting.close(again=self._withdraws)
        self._memory.close()

    @property
    def may_withdraw(self) -> bool:
        """Whether the job can go on without this node; not without node 0, where all meet."""
        settings, meeting = self._settings, self.meeting
        if self.current is None or settings.min_nodes == settings.nodes:
            return False
        left = set(meeting.present) - meeting.leaving - {settings.node_rank}
        return settings.node_rank != 0 and len(left) >= settings.min_nodes

    @property
    def can_be_taken_up(self) -> bool:
        """Whether no worker runs, as one has failed, and there is a backup to go on from."""
        return self.current is None and self._keeps_backups

    def withdraw(self) -> None:
        """Tells the others, and has all workers end at the next snapshot. Repeatable."""
        if not self._withdraws:
            self._withdraws = True
            event = {"type": "node_leaves", "node_rank": self._settings.node_rank}
            self._telling = asyncio.ensure_future(self.meeting.tell(event))
            self._on_moves()

    def leave(self) -> None:
        """Has the others take this node's goodbye for a loss, and wait for another in its place."""
        self._withdraws = True

    async def _come_together(self) -> None:
        """Has the parent ready and the other nodes here."""
        met = asyncio.ensure_future(self._meet())
        work = [asyncio.ensure_future(self._ready_to_fork()), met]
        try:
            await asyncio.wait(work, return_when=asyncio.FIRST_EXCEPTION)
            if not met.done():
                # The others should hear of the failed import, not wait until their deadline.
                await asyncio.wait({met}, timeout=TELL_TIMEOUT_S)
            for task in work:
                if task.done():
                    task.result()
        finally:
            for task in work:
                task.cancel()
            await asyncio.gather(*work, return_exceptions=True)

    async def _ready_to_fork(self) -> None:
        await self._forker.have()
        self._ready.set()

    async def _meet(self) -> None:
        """Meets the other nodes, for the first time or anew, and agrees on the collectives."""
        meeting, settings = self.meeting, self._settings
        moves = bool(meeting.joining or meeting.leaving)
        if self._collectives and not meeting.is_broken and not moves:
            return
        self._fences = 0
        if moves and not meeting.is_broken:
            await self._meet_anew(self._standing.failure, REGROUP_TIMEOUT_S)
        elif not meeting.is_broken:
            await meeting.start(ports=self._settings.task_count, timeout_s=settings.start_timeout_s)
        else:
            lost = meeting.lost_failure()
            if not (moves and lost.consequence):
                self._note_loss(lost)
            await self._meet_anew(lost, settings.rejoin_timeout_s)
        self._collectives = await self._agree_on_collectives()

    def _note_loss(self, lost: Failure) -> None:
        self._console.note(
            f"{lost.note} {lost.text} Waiting up to {self._settings.rejoin_timeout_s:g} s for the "
            "same command to be started there again (--rejoin-timeout)."
        )

    async def _meet_anew(self, lost: Failure | None, timeout_s: float) -> None:
        await self.meeting.close(again=True)
        self.meeting = self.meeting.another()
        self.meeting.attempt = self._standing.attempts + 1
        try:
            await self.meeting.start(
                ports=self._settings.task_count,
                timeout_s=timeout_s,
                waiting_every_s=REJOINING_EVERY_S,
            )
        except JobOver:
            raise
        except RendezvousError as error:
            if lost is None:
                raise
            raise _NotBack(lost, timeout_s, error) from None

    async def _agree_on_collectives(self) -> str:
        machine, settings = self._machine, self._settings
        if settings.has_servers:
            return "tensorflow"  # its chief trains alone
        if settings.backend == JAX:
            return JAX
        key = str(settings.node_rank)
        found = {f"gpus:{key}": str(len(machine.gpus)), f"mpi:{key}": str(int(machine.mpi))}
        everywhere = await self.meeting.client.fence("machines", found, settings.start_timeout_s)
        gpus = any(int(n) for name, n in everywhere.items() if name.startswith("gpus:"))
        mpi = all(int(n) for name, n in everywhere.items() if name.startswith("mpi:"))
        chosen, why = environment.choose_collectives(settings.collectives, gpus=gpus, mpi=mpi)
        if settings.workers + settings.ps + settings.nodes > 2 and chosen != self._collectives:
            self._console.note(f"Collectives: {chosen} ({why}).")
        return chosen

    async def _agree(self) -> Outcome | None:
        """Decides with all other nodes about the next attempt; None if it is to start.

        Scripts then start everywhere at the same time, however long an import has
        taken: the deadlines of collectives begin with them.
        """
        settings, client = self._settings, self.meeting.client
        mine = dataclasses.replace(
            self._standing,
            job_id=self._standing.job_id or settings.job_id,
            snapshot=self._memory.newest_step(),
            fired=self._fired,
            onednn=self._forker.tuner.onednn,
        )
        values = agreement.to_values(mine, settings.node_rank, settings.nodes)
        self._fences += 1
        try:
            found = await client.fence(f"ready {self._fences}", values, settings.start_timeout_s)
        except NodesLost:
            raise
        except RendezvousError:
            cause = self.meeting.told_failure() or mine.failure
            if cause is None:
                raise
            return self._failed(cause)
        here = self.meeting.present
        agreed = agreement.agree(agreement.from_values(found), here)
        self._fired |= agreed.fired
        self._forker.tuner.adopt(agreed.onednn)
        self._standing = Standing(
            job_id=agreed.job_id or client.job_id, history=agreed.history, nodes=here
        )
        self.meeting.attempt = len(agreed.history) + 1
        if agreed.cause is None:
            return None
        decision = decide(agreed.history, settings.max_restarts)
        if isinstance(decision, GiveUp):
            return self._failed(agreed.cause, decision.why)
        self._console.note(going_on(agreed, agreed.cause, decision.delay_s, self._world_size))
        if agreed.cause.kind is Kind.HANG:
            # Of all other failures the workers' own output tells.
            self._console.note(agreed.cause.text)
        await self.meeting.pause(decision.delay_s)
        return None

    async def _train(self) -> list[Failure]:
        """One attempt; returns its failures."""
        parent = self._forker.parent
        patience = hang.patience([ended.kind for ended in self._standing.history])
        watch = Watch(
            self._settings,
            parent,
            self.meeting,
            self._console.note,
            patience,
            self._on_moves,
        )
        self.current = Attempt(
            self._settings,
            machine=self._machine,
            run_dir=self._run_dir,
            console=self._console,
            client=self.meeting.client,
            parent=parent,
            memory=self._memory,
            watch=watch,
            collectives=self._collectives,
            job_id=self._standing.job_id,
            number=self._standing.attempts + 1,
            fired=self._fired,
            chosen=self._forker.tuner.chosen,
        )
        self.meeting.release_ports()
        try:
            await self.current.start()
        except ParentError as error:
            parent.kill()
            return [await watch.parent_lost(error)]
        failures = await watch.run()
        kind = root_cause(failures).policy_kind if failures else None
        if kind is Kind.PREEMPTED:
            await self.current.let_save(self._settings.grace_s, self._hurry)
        elif kind is Kind.REGROUPED:
            await self.current.let_end(self._settings.grace_s, self._hurry)
        return failures

    def _on_moves(self) -> None:
        """A node waits to be let in, or is about to leave."""
        if self.current is not None:
            self.current.ask_to_regroup()

    async def _end_attempt(self, cause: Failure) -> None:
        """Clears the ground for the next attempt."""
        if not self._standing.job_id:
            return  # a node was lost before all had met: there was no attempt yet
        known, furthest = self._standing.failure, self._standing.furthest
        if known is not None:
            # The attempt had failed before a node was lost, perhaps because it was about to be.
            cause = dataclasses.replace(root_cause((known, cause)), step=known.step)
        if self.current is not None:
            await self.current.kill()
            furthest = max(furthest, self.current.furthest)
            self._keeps_backups = self.current.keeps_backups
            await self.current.close()
            self._fired = self.current.fired
            self.current = None
        furthest = max(furthest, cause.step)
        self._standing = dataclasses.replace(self._standing, failure=cause, furthest=furthest)

    def _success(self, seconds: float) -> Outcome:
        history = self._standing.history
        self.meeting.succeeded = True
        self._grace_s = FAILURE_GRACE_S
        restarts = sum(ended.kind is not Kind.REGROUPED for ended in history)
        after = f", after {times(restarts, 'restart')}" if restarts else ""
        steps = self.current.furthest if self.current is not None else 0
        order = self._settings.rehearsing
        is_cut = order is not None and steps >= order.steps
        how = f"The rehearsal ended after {steps} steps," if is_cut else "Finished"
        lines = [f"{how} in {seconds:.1f} s{after}. Logs are in {self._run_dir}"]
        if self.current is not None and (where := time_use(self.current.step_times)):
            lines.append(where)
        return Outcome(
            code=0,
            summary="\n".join(lines),
            history=history,
            workers=self._world_size,
            steps=steps,
            # With servers only their chief counts updates, which are those of all workers.
            apart=self._world_size > 1
            and not self._settings.has_servers
            and self.current is not None
            and self.current.trains_apart,
        )

    def _failed(self, cause: Failure, why: str = "") -> Outcome:
        if cause.policy_kind is Kind.PREEMPTED:
            return Outcome(code=cause.exit_code, summary=preempted(self._settings.rehearsing))
        body = "\n".join(part for part in (why, cause.text) if part)
        return Outcome(
            code=cause.exit_code, heading=cause.heading, body=body, history=self._standing.history
        )

    @property
    def _world_size(self) -> int:
        sizes = sync_sizes(self._settings, self.meeting.client.roster)
        return sum(sizes) - self._settings.has_servers  # a chief of servers is no worker
