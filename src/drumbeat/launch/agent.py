"""The agent: one process on each node that starts, watches and stops its workers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumbeat.cluster.identity import Identity
from drumbeat.cluster.spec import ClusterSpec
from drumbeat.errors import DrumbeatError
from drumbeat.launch import environment
from drumbeat.launch.console import Console
from drumbeat.launch.failures import Failure, root_cause
from drumbeat.launch.meeting import Meeting
from drumbeat.launch.parent import WorkerRequest
from drumbeat.launch.plan import LocalTask, cluster_of, local_tasks, sync_sizes, tasks_on_node
from drumbeat.launch.pmi import PmiServer, mpi_environment, shared_memory_path
from drumbeat.launch.processes import ParentProcess
from drumbeat.launch.settings import RunSettings
from drumbeat.launch.watch import Watch, Worker, signal_failure
from drumbeat.state.memory import FDS_VARIABLE as MEMORY_VARIABLE
from drumbeat.state.memory import SnapshotMemory
from drumbeat.state.progress import FD_VARIABLE as PROGRESS_VARIABLE
from drumbeat.state.progress import ProgressPage

STOP_GRACE_S = 2.0
FAILURE_GRACE_S = 1.0
DRAIN_TIMEOUT_S = 0.5
TELL_TIMEOUT_S = 5.0
SLOW_START_S = 8.0  # After this long without a sign, say what is going on.


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What the agent found on its machine.

    Attributes:
        cpus: CPUs it may use.
        gpus: GPUs, as CUDA_VISIBLE_DEVICES names them.
        mpi: Whether mpi4py is installed.
        environ: Its environment.
        folder: Its working folder.
    """

    cpus: tuple[int, ...]
    gpus: tuple[str, ...]
    mpi: bool
    environ: Mapping[str, str]
    folder: Path


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
        self._pmi: PmiServer | None = None
        self._watch: Watch | None = None
        self._memory = SnapshotMemory.create()
        self._pages: list[ProgressPage] = []
        self._signals: list[signal.Signals] = []
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
        self._signals.append(number)
        self._console.note(f"Stopping the workers ({number.name}); once more to kill them at once.")
        self._stopped.set()

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
        settings, roster = self._settings, self._meeting.client.roster
        cluster = cluster_of(settings, roster)
        tasks = local_tasks(settings, roster, cluster)
        assert self._parent is not None  # noqa: S101
        self._watch = Watch(settings, self._parent, self._meeting)
        if collectives == "mpi" and not settings.lone_task:
            self._pmi = self._serve_mpi(tasks, cluster)
        self._meeting.release_ports()
        for task in tasks:
            self._watch.add(await self._start(task, len(tasks), collectives, cluster))
        failures = await self._watch.run()
        self._grace_s = FAILURE_GRACE_S
        if failures:
            cause = root_cause(failures)
            return Outcome(code=cause.exit_code, heading=cause.heading, body=cause.text)
        seconds = time.monotonic() - self._began_s
        summary = f"Finished in {seconds:.1f} s. Logs are in {self._run_dir}"
        return Outcome(code=0, summary=summary)

    def _serve_mpi(self, tasks: Sequence[LocalTask], cluster: ClusterSpec) -> PmiServer:
        client, settings = self._meeting.client, self._settings
        names = {task.rank: task.name for task in tasks}

        async def fence(name: str, values: dict[str, str]) -> dict[str, str]:
            # Without values it is MPI_Finalize's, which waits as long as another rank trains.
            return await client.fence(
                name, values, settings.collective_timeout_s if values else None
            )

        def on_abort(rank: int, code: int, text: str) -> None:
            assert self._watch is not None  # noqa: S101
            self._watch.aborted(names.get(rank, f"rank {rank}"), code, text)

        def on_broken(text: str) -> None:
            assert self._watch is not None  # noqa: S101
            self._watch.cut_off(text)

        def on_missing(waiting: tuple[int, ...], absent: tuple[int, ...], ended: bool) -> None:
            assert self._watch is not None  # noqa: S101
            here, there = ([names[rank] for rank in ranks] for ranks in (waiting, absent))
            self._watch.missing(here, there, ended)

        return PmiServer(
            name=client.job_id,
            ranks=[task.rank for task in tasks if task.rank >= 0],
            world_size=cluster.world_size,
            node_sizes=sync_sizes(settings, client.roster),
            fence=fence,
            on_abort=on_abort,
            on_broken=on_broken,
            init_timeout_s=settings.collective_timeout_s,
            on_missing=on_missing,
        )

    async def _start(
        self, task: LocalTask, count: int, collectives: str, cluster: ClusterSpec
    ) -> Worker:
        folder = self._run_dir / task.folder
        failure_path = folder / "failure.json"
        with contextlib.suppress(OSError):
            failure_path.unlink()  # of an earlier run in the same folder
        streams, fds = self._console.attach(task.name, folder / "output.log")
        names: list[str] = []
        mpi: dict[str, str] | None = None
        if self._pmi is not None and task.rank >= 0:
            fds.append(self._pmi.open(task.rank).detach())
            names.append("PMI_FD")
            mpi = self._mpi_variables(task.rank, cluster.world_size, fds[-1])
        page = ProgressPage.create()
        self._pages.append(page)
        shared, shared_names = self._shared(task, page)
        worker = environment.worker_environment(
            environ=self._machine.environ,
            share=environment.share_of(
                self._machine.cpus, self._machine.gpus, task.local_rank, count
            ),
            identity=self._identity(task, count, collectives, cluster),
            tf_config=task.tf_config,
            mpi=mpi,
        )
        request = WorkerRequest(
            name=task.name,
            command=self._settings.command,
            is_module=self._settings.is_module,
            args=list(self._settings.args),
            variables={**self._console.variables(task.name), **worker.variables},
            folder=str(self._machine.folder),
            cpus=list(worker.cpus),
            failure_path=str(failure_path),
            memory_path=self._memory_path() if mpi else "",
            fd_variables=[*names, *shared_names],
        )
        assert self._parent is not None  # noqa: S101
        try:
            await self._parent.start_worker(request, [*fds, *shared])
        finally:
            for fd in fds:
                os.close(fd)
        return Worker(
            task=task,
            stdout=streams[0],
            stderr=streams[1],
            failure_path=failure_path,
            progress=page,
        )

    def _shared(self, task: LocalTask, page: ProgressPage) -> tuple[list[int], list[str]]:
        """Descriptors that stay open here too, and the variables that tell a worker of them."""
        if task.rank < 0:
            return [page.fd], [PROGRESS_VARIABLE]
        fds = self._memory.fds
        return [page.fd, *fds], [PROGRESS_VARIABLE, *[MEMORY_VARIABLE] * len(fds)]

    def _memory_path(self) -> str:
        # Every node has ranks, so its number among those that have any is its own.
        return str(shared_memory_path(self._meeting.client.job_id, self._settings.node_rank))

    def _mpi_variables(self, rank: int, world_size: int, fd: int) -> dict[str, str]:
        chosen = mpi_environment(self._meeting.client.roster, self._settings.node_rank)
        chosen = {name: self._machine.environ.get(name, value) for name, value in chosen.items()}
        return {**chosen, **PmiServer.env(rank, world_size, fd)}

    def _identity(
        self, task: LocalTask, count: int, collectives: str, cluster: ClusterSpec
    ) -> Identity:
        on_node = count - (self._settings.ps if self._settings.node_rank == 0 else 0)
        return Identity(
            rank=task.rank,
            world_size=cluster.world_size,
            local_rank=task.local_rank,
            local_world_size=on_node,
            collectives=collectives,
            run_dir=str(self._run_dir),
            name=task.name,
            timeout_s=self._settings.collective_timeout_s,
            seed=self._seed(),
            keep_tf_strategies=self._settings.keep_tf_strategies,
            exact=self._settings.exact,
            shares=self._settings.shares,
        )

    def _seed(self) -> int:
        given = self._settings.seed
        # The same on all nodes, and another one each run.
        return int(self._meeting.client.job_id, 16) % 2**32 if given is None else given

    async def _clean_up(self) -> None:
        if self._parent is not None:
            await self._stop_workers(self._parent)
            await self._parent.stop()
        await self._console.drain(DRAIN_TIMEOUT_S)
        if self._pmi is not None:
            await self._pmi.close()
        await self._meeting.close()
        for page in self._pages:
            page.close()
        self._memory.close()

    async def _stop_workers(self, parent: ParentProcess) -> None:
        """TERM, then KILL after the grace, or at the second Ctrl-C."""
        if not parent.running:
            return
        parent.signal_workers(signal.SIGTERM)
        hurry = asyncio.ensure_future(self._hurry.wait())
        ended = asyncio.gather(*parent.running, return_exceptions=True)
        await asyncio.wait(
            {hurry, ended}, timeout=self._grace_s, return_when=asyncio.FIRST_COMPLETED
        )
        hurry.cancel()
        parent.signal_workers(signal.SIGKILL)


def _log_name(stem: str, node_rank: int) -> str:
    return f"{stem}.log" if node_rank == 0 else f"{stem}-node-{node_rank}.log"
