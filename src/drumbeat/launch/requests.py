"""What each process of a node is to run, and in which surroundings. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumbeat.cluster import faults
from drumbeat.cluster.identity import Identity
from drumbeat.launch import environment
from drumbeat.launch.machine import Machine
from drumbeat.launch.parent import WorkerRequest
from drumbeat.launch.plan import LocalTask, sync_sizes
from drumbeat.launch.pmi import PmiServer, mpi_environment, shared_memory_path
from drumbeat.launch.roster import Node
from drumbeat.launch.settings import RunSettings

SERVER = "drumbeat.training.server_task"
"""Module that runs where there is a server in place of the script."""
# Without it, calls of TensorFlow to a server that is gone wait for it for ever.
_FAIL_FAST = {"GRPC_FAIL_FAST": "use_caller"}


@dataclass(frozen=True, kw_only=True)
class Requests:
    """Of one attempt on one node.

    Attributes:
        settings: What to run.
        machine: Where.
        run_dir: Folder for logs.
        roster: All nodes.
        tasks: The processes of this node.
        world_size: How many tasks of the cluster have a rank.
        collectives: "mpi" or "tensorflow".
        job_id: Names the job; 16 hexadecimal digits.
        number: Of the attempt, from 1.
        chosen: See `environment.parent_variables`.
    """

    settings: RunSettings
    machine: Machine
    run_dir: Path
    roster: Sequence[Node]
    tasks: Sequence[LocalTask]
    world_size: int
    collectives: str
    job_id: str
    number: int
    chosen: Mapping[str, str]

    @property
    def mpi_name(self) -> str:
        """The name that MPI knows the attempt by."""
        return f"{self.job_id}-{self.number}"

    def request(
        self,
        task: LocalTask,
        *,
        mpi_fd: int | None,
        failure_path: Path,
        fd_variables: list[str],
        console: Mapping[str, str],
        fired: int,
    ) -> WorkerRequest:
        """What the agent asks its parent process for.

        Args:
            task: Which process.
            mpi_fd: Descriptor of its connection for MPI; None without MPI.
            failure_path: Where it explains an exception that ends it.
            fd_variables: See `WorkerRequest`.
            console: Variables that describe its screen.
            fired: Bit i is set where fault i has happened.
        """
        settings = self.settings
        worker = environment.worker_environment(
            environ=self.machine.environ,
            share=self._share(task),
            chosen=self.chosen,
            identity=self._identity(task),
            tf_config=task.tf_config,
            mpi=None if mpi_fd is None else self._mpi_variables(task.rank, mpi_fd),
        )
        sizes = sync_sizes(settings, self.roster)
        node = sum(size > 0 for size in sizes[: settings.node_rank])
        memory_path = "" if mpi_fd is None else str(shared_memory_path(self.mpi_name, node))
        return WorkerRequest(
            name=task.name,
            command=SERVER if task.is_server else settings.command,
            is_module=task.is_server or settings.is_module,
            args=[] if task.is_server else list(settings.args),
            variables={
                **(_FAIL_FAST if settings.has_servers else {}),
                **console,
                **worker.variables,
                faults.VARIABLE: faults.for_worker(settings.faults, task.rank, fired),
            },
            folder=str(self.machine.folder),
            cpus=list(worker.cpus),
            failure_path=str(failure_path),
            memory_path=memory_path,
            fd_variables=fd_variables,
        )

    def _share(self, task: LocalTask) -> environment.Share:
        devices, count = self.settings.devices_per_worker, len(self.tasks)
        if self.settings.has_servers and task.uses_devices:
            # The others of the node mostly wait for those that compute, which come first.
            count = sum(other.uses_devices for other in self.tasks)
        share = self.machine.share(task.local_rank, count, devices)
        if task.uses_devices:
            return share
        cpus = () if self.settings.has_servers else share.cpus
        gpu = None if share.gpu is None else environment.NO_GPU
        return dataclasses.replace(share, cpus=cpus, gpu=gpu)

    def _mpi_variables(self, rank: int, fd: int) -> dict[str, str]:
        chosen = mpi_environment(self.roster, self.settings.node_rank)
        environ = self.machine.environ
        chosen = {name: environ.get(name, value) for name, value in chosen.items()}
        return {**chosen, **PmiServer.env(rank, self.world_size, fd)}

    def _identity(self, task: LocalTask) -> Identity:
        settings = self.settings
        # Those that train with each other; a chief of servers does alone.
        others = settings.ps + settings.evaluator if settings.node_rank == 0 else 0
        alone = settings.has_servers
        return Identity(
            rank=task.rank,
            world_size=1 if alone else self.world_size,
            local_rank=0 if alone else task.local_rank,
            local_world_size=1 if alone else len(self.tasks) - others,
            collectives=self.collectives,
            run_dir=str(self.run_dir),
            name=task.name,
            timeout_s=settings.collective_timeout_s,
            seed=self._seed(),
            keep_tf_strategies=settings.keep_tf_strategies,
            strict_names=settings.strict_names,
            has_evaluator=settings.evaluator,
            strategy=settings.strategy,
            devices_per_worker=settings.devices_per_worker or len(self.machine.gpus) or 1,
            exact=settings.exact,
            shares=settings.shares,
            compress=settings.compress,
            averaging=settings.averaging,
            jit=settings.jit,
            snapshot_every=settings.snapshot_every,
            backup_dir=settings.backup_dir,
            backup_every_s=settings.backup_every_s,
            attempt=self.number,
        )

    def _seed(self) -> int:
        given = self.settings.seed
        # The same on all nodes and in all attempts, and another one each run.
        return int(self.job_id, 16) % 2**32 if given is None else given
