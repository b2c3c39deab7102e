"""One attempt on one node: its workers from the fork to the last of their output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from drumbeat.cluster import faults
from drumbeat.launch import environment
from drumbeat.launch.console import Console
from drumbeat.launch.injection import NodeInjector, of_node
from drumbeat.launch.keeper import Keeper
from drumbeat.launch.machine import Machine
from drumbeat.launch.plan import LocalTask, cluster_of, local_tasks, sync_sizes
from drumbeat.launch.pmi import PmiServer
from drumbeat.launch.processes import ParentError, ParentProcess
from drumbeat.launch.rendezvous import Client
from drumbeat.launch.requests import Requests
from drumbeat.launch.settings import RunSettings
from drumbeat.launch.watch import Watch, Worker
from drumbeat.state.memory import FDS_VARIABLE as MEMORY_VARIABLE
from drumbeat.state.memory import SnapshotMemory
from drumbeat.state.progress import FD_VARIABLE as PROGRESS_VARIABLE
from drumbeat.state.progress import Activity, ProgressPage, Request
from drumbeat.state.step_times import StepTimes, TimesNote, worker_file

DRAIN_TIMEOUT_S = 0.5
KILL_TIMEOUT_S = 10.0


class Attempt:
    """The workers of this node. `start`, `Watch.run`, `stop` and `close` are called in turn.

    Args:
        settings: What to run.
        machine: Where.
        run_dir: Folder for logs; exists.
        console: Where output goes.
        client: The connection to the agents of the other nodes.
        parent: Forks the workers.
        memory: The node's snapshots.
        watch: Gets the workers, and what MPI tells of them.
        collectives: "mpi" or "tensorflow".
        job_id: Names the job; 16 hexadecimal digits.
        number: From 1; names the attempt among those of the job.
        fired: Bit i is set where fault i of the settings has happened in earlier attempts.
        chosen: See `environment.parent_variables`.

    Attributes:
        fired: The same with those of this attempt, once `close` has returned.
    """

    def __init__(
        self,
        settings: RunSettings,
        *,
        machine: Machine,
        run_dir: Path,
        console: Console,
        client: Client,
        parent: ParentProcess,
        memory: SnapshotMemory,
        watch: Watch,
        collectives: str,
        job_id: str,
        number: int = 1,
        fired: int = 0,
        chosen: Mapping[str, str] = environment.NONE_CHOSEN,
    ) -> None:
        self._settings = settings
        self._run_dir = run_dir
        self._console = console
        self._client = client
        self._parent = parent
        self._memory = memory
        self._watch = watch
        self._collectives = collectives
        self._number = number
        self._cluster = cluster_of(settings, client.roster)
        self._tasks = local_tasks(settings, client.roster, self._cluster)
        self._requests = Requests(
            settings=settings,
            machine=machine,
            run_dir=run_dir,
            roster=client.roster,
            tasks=self._tasks,
            world_size=self._cluster.world_size,
            collectives=collectives,
            job_id=job_id,
            number=number,
            chosen=chosen,
        )
        self._pmi: PmiServer | None = None
        self._pages: dict[str, ProgressPage] = {}
        self._spent: dict[str, ProgressPage] = {}
        self._notes: dict[str, TimesNote] = {}
        self.fired = fired
        self._injector: NodeInjector | None = None
        self._injecting: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Forks the workers.

        Raises:
            ParentError: The parent is gone or does not answer.
            ConfigError: A fault is to strike a worker that this job doesn't have.
        """
        settings, world_size = self._settings, self._cluster.world_size
        if settings.has_servers:
            world_size += len(self._cluster.jobs["ps"])
        if settings.min_nodes < settings.nodes:
            world_size = settings.workers * settings.nodes  # at some time
        faults.check_places(settings.faults, workers=world_size, nodes=settings.nodes)
        if self._collectives == "mpi" and not (settings.lone_task or settings.has_servers):
            self._pmi = self._serve_mpi()
        for task in self._tasks:
            keeper = self._keeper(task) if task.starts_alone else None
            self._watch.add(await self._start(task), keeper)
        self._inject()

    def _inject(self) -> None:
        """Sees to the faults that are to happen to this node and its servers."""
        settings, parent = self._settings, self._parent
        numbers = {task.name: task.number for task in self._tasks if task.is_server}
        servers = faults.of_servers(settings.faults, numbers, self.fired)
        mine = of_node(settings.faults, settings.node_rank, self.fired)
        mine |= {number: settings.faults[number] for number in servers}
        if mine:
            self._injector = NodeInjector(
                mine,
                servers=servers,
                pages=self._trainers,
                signal_workers=parent.signal_workers,
                signal_worker=parent.signal_worker,
                tell=self._client.tell,
                note=self._console.note,
            )
            self._injecting = asyncio.ensure_future(self._injector.run())

    def ask_to_stop(self, *, in_training: bool = False) -> bool:
        """Asks workers that keep backups to save their state and end, all after the same step.

        Args:
            in_training: Asks only those that train already: before, they have nothing to save.

        Returns:
            Whether one was asked. The workers of other nodes then hear of it from it.
        """
        accepting = {name: page for name, page in self._pages.items() if page.accepts_stop}
        if in_training:
            accepting = {
                name: page
                for name, page in accepting.items()
                if page.read().activity is Activity.TRAINING
            }
        for name, page in accepting.items():
            if not page.requests() & Request.STOP:
                page.request(Request.STOP)
                # Those that don't train at the moment don't look.
                self._parent.notify_worker(name, signal.SIGTERM)
        return bool(accepting)

    def ask_to_regroup(self) -> None:
        """Asks the workers to end, all after the same step and with a snapshot of it."""
        for page in self._pages.values():
            page.request(Request.REGROUP)

    def _keeper(self, task: LocalTask) -> Keeper:
        return Keeper(
            task,
            start=self._start,
            max_restarts=self._settings.max_restarts,
            step=lambda: max((page.read().step for page in self._trainers), default=0),
            note=self._console.note,
            down=self._watch.down,
        )

    @property
    def _trainers(self) -> list[ProgressPage]:
        """Pages of the processes of this node that count steps."""
        return [self._pages[task.name] for task in self._tasks if task.rank >= 0]

    async def let_end(self, grace_s: float, hurry: asyncio.Event) -> None:
        """Waits for workers that are about to end; servers and evaluators were not asked to."""
        names = [task.name for task in self._tasks if task.rank >= 0]
        await _until(self._parent.running_of(names), grace_s, hurry)

    async def let_save(self, grace_s: float, hurry: asyncio.Event) -> None:
        """After the first worker has stopped to make room: lets the others do so."""
        self.ask_to_stop()
        await self.let_end(grace_s, hurry)

    async def stop(self, grace_s: float, hurry: asyncio.Event) -> None:
        """TERM, then KILL after the grace, or at once when there is a hurry."""
        parent = self._parent
        if not parent.running:
            return
        for page in self._pages.values():
            page.request(Request.DIE)
        parent.signal_workers(signal.SIGTERM)
        await _until(parent.running, grace_s, hurry)
        parent.signal_workers(signal.SIGKILL)

    async def kill(self) -> None:
        """Ends the workers at once: after a failure they wait for each other in vain.

        Raises:
            ParentError: They can't be killed.
        """
        running = self._parent.running
        if not running:
            return
        self._parent.signal_workers(signal.SIGKILL)
        _, alive = await asyncio.wait(running, timeout=KILL_TIMEOUT_S)
        if alive:
            raise ParentError(
                f"{len(alive)} workers did not end within {KILL_TIMEOUT_S:g} s of being killed: "
                "they are stuck in the system, perhaps in a network file system or a driver. "
                "Starting others beside them could damage what they write."
            )

    @property
    def keeps_backups(self) -> bool:
        """Whether a worker of this node has begun to train with a folder for backups."""
        return any(page.accepts_stop for page in self._pages.values())

    @property
    def furthest(self) -> int:
        """Finished training steps of the job, as far as a worker of this node has come."""
        return max((page.made for page in self._pages.values()), default=0)

    @property
    def trains_apart(self) -> bool:
        """Whether a worker of this node trains a model that the others know nothing of."""
        return any(page.trains_apart for page in self._pages.values())

    @property
    def step_times(self) -> list[tuple[str, StepTimes]]:
        """Of each worker of this node that trains with others: its name, and where time went."""
        return [(name, note.read()) for name, note in self._notes.items()]

    async def close(self) -> None:
        """Takes what the workers, ended by now, have written, and removes what they left."""
        if self._injector is not None and self._injecting is not None:
            self._injecting.cancel()
            await asyncio.gather(self._injecting, return_exceptions=True)
            self.fired |= self._injector.fired
        self.fired |= self._watch.fired
        await self._console.drain(DRAIN_TIMEOUT_S)
        if self._pmi is not None:
            await self._pmi.close()
        for note in self._notes.values():
            note.close()
        self._notes.clear()
        for page in (*self._pages.values(), *self._spent.values()):
            self.fired |= page.read().fired
            page.close()
        self._pages.clear()
        self._spent.clear()

    @property
    def missed(self) -> list[str]:
        """Faults that were to strike here and have not, once `close` has returned."""
        settings = self._settings
        ranks = [task.number if task.is_server else task.rank for task in self._tasks]
        return [
            str(fault)
            for number, fault in enumerate(settings.faults)
            if not self.fired >> number & 1
            and fault.place in ([settings.node_rank] if fault.kind.is_of_node else ranks)
        ]

    def _serve_mpi(self) -> PmiServer:
        client, settings, watch = self._client, self._settings, self._watch
        names = {task.rank: task.name for task in self._tasks}

        async def fence(name: str, values: dict[str, str]) -> dict[str, str]:
            # Without values it is MPI_Finalize's, which waits as long as another rank trains.
            return await client.fence(
                name, values, settings.collective_timeout_s if values else None
            )

        def on_abort(rank: int, code: int, text: str) -> None:
            watch.aborted(names.get(rank, f"rank {rank}"), code, text)

        def on_missing(waiting: tuple[int, ...], absent: tuple[int, ...], ended: bool) -> None:
            here, there = ([names[rank] for rank in ranks] for ranks in (waiting, absent))
            watch.missing(here, there, ended)

        return PmiServer(
            name=self._requests.mpi_name,
            ranks=[task.rank for task in self._tasks if task.rank >= 0],
            world_size=self._cluster.world_size,
            node_sizes=sync_sizes(settings, client.roster),
            fence=fence,
            on_abort=on_abort,
            on_broken=watch.cut_off,
            init_timeout_s=settings.collective_timeout_s,
            on_missing=on_missing,
        )

    async def _start(self, task: LocalTask) -> Worker:
        folder = self._run_dir / task.folder
        failure_path = folder / "failure.json"
        with contextlib.suppress(OSError):
            failure_path.unlink()  # of an earlier attempt, or an earlier run in the same folder
        is_first = task.name not in self._pages
        if self._number == 1 and is_first:
            with contextlib.suppress(OSError):
                worker_file(self._run_dir, task.name).unlink()
        heading = f"--- attempt {self._number} ---\n" if self._number > 1 else ""
        if not is_first:
            heading = "--- started again ---\n"
            # Whoever watches it reads its page until it has the next.
            if (spent := self._spent.pop(task.name, None)) is not None:
                spent.close()
            self._spent[task.name] = self._pages.pop(task.name)
        streams, fds = self._console.attach(task.name, folder / "output.log", heading)
        names: list[str] = []
        mpi_fd: int | None = None
        if self._pmi is not None and task.rank >= 0:
            mpi_fd = self._pmi.open(task.rank).detach()
            fds.append(mpi_fd)
            names.append("PMI_FD")
        page = ProgressPage.create()
        self._pages[task.name] = page
        if task.rank >= 0:
            self._notes[task.name] = TimesNote(page.fd)
        shared, shared_names = self._shared(task, page)
        request = self._requests.request(
            task,
            mpi_fd=mpi_fd,
            failure_path=failure_path,
            fd_variables=[*names, *shared_names],
            console=self._console.variables(task.name),
            fired=self.fired,
        )
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


async def _until(
    ends: Sequence[asyncio.Future[int]], timeout_s: float, hurry: asyncio.Event
) -> None:
    """Waits until all have come to an end, there is a hurry, or the time is over."""
    hurried = asyncio.ensure_future(hurry.wait())
    ended = asyncio.gather(*ends, return_exceptions=True)
    await asyncio.wait({hurried, ended}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
