"""From arguments and environment to the plan of a run. Nothing is started here.

One precedence everywhere: argument, then environment (TF_CONFIG as a platform
sets it, DRUMBEAT_TOKEN), then default. `RunSettings.notes` says in words for
the log which of them decided, where that is not obvious.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from drumbeat.cluster import strategy_names
from drumbeat.cluster.averaging import Averaging
from drumbeat.cluster.compression import Compress
from drumbeat.cluster.faults import Fault, check_places, check_servers, parse_all
from drumbeat.cluster.identity import AUTO_SHARES, DEFAULT_BACKUP_EVERY_S, TENSORFLOW, parse_shares
from drumbeat.cluster.rehearsing import Rehearsing
from drumbeat.cluster.spec import ClusterSpec, Task
from drumbeat.control.restart import DEFAULT_MAX_RESTARTS
from drumbeat.errors import ConfigError
from drumbeat.launch.backends import check_backend
from drumbeat.launch.checks import (
    MAX_PROCESSES,
    absent,
    check_command,
    check_numbers,
    note_on_late_options,
)
from drumbeat.launch.layout import Layout, plan_layout
from drumbeat.launch.place import Place, find_place
from drumbeat.launch.sizes import Range, check_shares, plan_sizes
from drumbeat.launch.token import token_of
from drumbeat.state.folders import open_folder

DEFAULT_START_TIMEOUT_S = 300.0
DEFAULT_COLLECTIVE_TIMEOUT_S = 600.0
DEFAULT_REJOIN_TIMEOUT_S = 600.0
"""Clouds and Kubernetes take minutes to replace a machine, and wait up to five between tries."""
DEFAULT_GRACE_S = 25.0
"""Kubernetes and most clouds kill 30 s after their notice."""
_NOT_OURS = "this is a task outside of drumbeat's training, or one with --keep-tf-strategies."
EXACT_SEED = 0
"""Exact mode promises the same bytes for any number of workers, so also run after run."""


@dataclass(frozen=True, kw_only=True)
class RunArguments:
    """What was given on the command line; None stands for "not given".

    Attributes:
        command: The script or module, then its own arguments.
        is_module: The command is a module's name (`-m`).
        workers: Workers on this node, or the range for the whole job.
        ps: Parameter servers.
        strategy: One of `strategy_names.CHOICES`.
        backend: Of Keras, one of `identity.BACKENDS`.
        devices_per_worker: Devices of each worker.
        processes_per_node: Processes that share the devices of a node.
        evaluator: Whether there is an evaluator.
        nodes: How many nodes the job has.
        node_rank: Which of them this is, from 0.
        rendezvous: "host:port" where the agents meet.
        run_dir: Folder for this run's files.
        collectives: "auto", "mpi" or "tensorflow".
        keep_tf_strategies: Leave TensorFlow's strategies as they are.
        strict_names: Leave it to Keras 3 to refuse names that it has no more.
        keras: 2 or 3, see `generation`.
        exact: Number of virtual shards, for exact mode.
        shares: "2,1" and such, or "auto".
        jit: One of `identity.JIT_CHOICES`.
        compress: "int8" and such, as `Compress.parse` reads it.
        sync_every: Steps of a worker's own before weights are averaged; None for none.
        outer: "nesterov:0.7,0.9" and such, as `Averaging.of` reads it.
        seed: Of Python, NumPy and TensorFlow before the script starts.
        start_timeout_s: Deadline for everything before the script starts.
        collective_timeout_s: Deadline of one collective.
        max_restarts: Restarts in a row without progress; 0 for none.
        rejoin_timeout_s: How long the others wait for a lost node.
        hang_timeout_s: How long a worker may make no progress; 0 for any time.
        snapshot_every: Steps from one snapshot in memory to the next; 0 for none.
        backup_dir: Path or URL of a folder for backups.
        backup_every_s: Seconds from one backup to the next; None for the usual.
        grace_s: How long workers may take to save their state after SIGTERM.
        inject: Failures to rehearse, each as "kill:rank=1,step=37".
    """

    command: tuple[str, ...]
    is_module: bool = False
    workers: int | Range | None = None
    ps: int | None = None
    strategy: str = strategy_names.AUTO
    backend: str = TENSORFLOW
    devices_per_worker: int | None = None
    processes_per_node: int | None = None
    evaluator: bool = False
    nodes: int | None = None
    node_rank: int | None = None
    rendezvous: str | None = None
    run_dir: str | None = None
    collectives: str = "auto"
    keep_tf_strategies: bool = False
    strict_names: bool = False
    keras: int | None = None
    exact: int | None = None
    shares: str | None = None
    compress: str = "none"
    sync_every: int | None = None
    outer: str | None = None
    jit: str = "auto"
    seed: int | None = None
    start_timeout_s: float = DEFAULT_START_TIMEOUT_S
    collective_timeout_s: float = DEFAULT_COLLECTIVE_TIMEOUT_S
    max_restarts: int | None = None
    rejoin_timeout_s: float = DEFAULT_REJOIN_TIMEOUT_S
    hang_timeout_s: float | None = None
    snapshot_every: int | None = None
    backup_dir: str | None = None
    backup_every_s: float | None = None
    grace_s: float = DEFAULT_GRACE_S
    inject: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """A checked plan: what one agent is to run.

    Attributes:
        command: Path of the script or name of the module.
        is_module: Which of the two.
        args: The script's own arguments.
        workers: Workers on this node, at least 1.
        ps: Parameter servers, all on node 0.
        backend: Of Keras, one of `identity.BACKENDS`.
        strategy: As asked for, one of `strategy_names.CHOICES`.
        chosen_strategy: What came of it, one of `strategy_names.NAMES`.
        devices_per_worker: Devices of each process; None for all that the machine has.
        evaluator: Whether there is an evaluator, on node 0.
        nodes: Nodes in the job.
        min_nodes: With fewer it does not go on; `nodes` where none may stay away.
        node_rank: 0 to `nodes - 1`.
        rendezvous: Where the agents meet; None with one node.
        token: Their shared secret; "" with one node.
        run_dir: The folder as asked for, or None to make `runs/<run_name>`.
        run_name: Name of the default folder, before it is made unique.
        collectives: "auto", "mpi" or "tensorflow".
        keep_tf_strategies: Leave TensorFlow's strategies as they are.
        strict_names: Leave it to Keras 3 to refuse names that it has no more.
        exact: Number of virtual shards in exact mode, else None.
        shares: A number for each worker, "auto", or None for equal parts.
        compress: How gradients are made smaller before they travel.
        averaging: How often workers average their weights, instead of summing gradients.
        jit: Whether XLA compiles the parts of a step: "auto", "on" or "off".
        seed: Alike on all workers; None for a new one each run.
        start_timeout_s: Deadline for everything before the script starts.
        collective_timeout_s: Deadline of one collective.
        max_restarts: Restarts in a row without progress, 0 where nothing restarts.
        rejoin_timeout_s: How long the others wait for a lost node.
        hang_timeout_s: How long a worker may make no progress; 0 for any time, None to go
            by what is usual in the job.
        snapshot_every: Steps from one snapshot in memory to the next, 0 for none; None for
            as often as they cost little.
        backup_dir: Full path or URL of the folder for backups; None for none.
        backup_every_s: Seconds from one backup to the next.
        grace_s: How long workers may take to save their state after SIGTERM.
        faults: Failures to rehearse; those that a worker or node of this job gets.
        platform: The cluster that TF_CONFIG described, if it decided the nodes.
        platform_tasks: The task of each node of such a cluster, by node rank.
        lone_task: This process is a task of the platform's cluster that the others don't
            wait for: the script runs once, outside of their training.
        notes: For the log.
        job_id: Of a job that goes on from its backups, 16 hexadecimal digits; "" for a new
            one.
        onednn: TF_ENABLE_ONEDNN_OPTS that such a job had; "" for a new one.
        rehearsing: The job is ended after a few steps; None outside of a rehearsal.
    """

    command: str
    is_module: bool
    args: tuple[str, ...]
    workers: int
    ps: int
    backend: str
    strategy: str
    chosen_strategy: str
    devices_per_worker: int | None
    evaluator: bool
    nodes: int
    min_nodes: int
    node_rank: int
    rendezvous: tuple[str, int] | None
    token: str
    run_dir: Path | None
    run_name: str
    collectives: str
    keep_tf_strategies: bool
    strict_names: bool
    exact: int | None
    shares: tuple[int, ...] | str | None
    compress: Compress
    averaging: Averaging
    jit: str
    seed: int | None
    start_timeout_s: float
    collective_timeout_s: float
    max_restarts: int
    rejoin_timeout_s: float
    hang_timeout_s: float | None
    snapshot_every: int | None
    backup_dir: str | None
    backup_every_s: float
    grace_s: float
    faults: tuple[Fault, ...] = ()
    platform: ClusterSpec | None = None
    platform_tasks: tuple[Task, ...] = ()
    lone_task: Task | None = None
    notes: tuple[str, ...] = ()
    job_id: str = ""
    onednn: str = ""
    rehearsing: Rehearsing | None = None

    @property
    def has_servers(self) -> bool:
        """Whether workers and ps are servers of a chief, which alone runs the script."""
        with_ps = self.chosen_strategy == strategy_names.PARAMETER_SERVER
        return with_ps and not self.keep_tf_strategies and self.lone_task is None

    @property
    def has_own_servers(self) -> bool:
        """Whether the script itself makes servers of workers and ps: they never end."""
        with_ps = self.chosen_strategy == strategy_names.PARAMETER_SERVER
        return with_ps and self.keep_tf_strategies and self.lone_task is None

    @property
    def is_idle(self) -> bool:
        """Whether this is a ps of a platform's cluster that is to train without any."""
        task = self.lone_task
        in_step = self.chosen_strategy == strategy_names.MULTI_WORKER
        return task is not None and task.type == "ps" and in_step and not self.keep_tf_strategies

    @property
    def task_count(self) -> int:
        """How many ports this node needs: one for each process that is in the cluster."""
        chief_and_ps = 1 + self.ps if self.node_rank == 0 and self.ps else 0
        return self.workers + chief_and_ps

    @property
    def process_count(self) -> int:
        """How many processes this node has."""
        return self.task_count + (self.evaluator and self.node_rank == 0)


def plan_run(
    arguments: RunArguments, env: Mapping[str, str], *, cpus: int, now: datetime
) -> RunSettings:
    """Checks everything that can be checked before anything is started.

    Args:
        arguments: The command line.
        env: The environment.
        cpus: How many CPUs this process may use.
        now: For the name of the run's folder.

    Raises:
        ConfigError: Something can't be used as given.
    """
    if "DRUMBEAT_RANK" in env:
        raise ConfigError(
            "DRUMBEAT_RANK is set: this process is a worker of a job already, and a job in a job "
            "would wait for itself. Unset it to start a job of its own."
        )
    check_numbers(arguments)
    check_command(arguments)
    check_backend(arguments)
    place = find_place(arguments, env)
    asked_workers, min_nodes = plan_sizes(arguments, place)
    rehearsing = Rehearsing.from_env(env)
    if rehearsing is not None:
        arguments = _rehearsed(arguments, rehearsing)
    shares = parse_shares(arguments.shares or "")
    compress = Compress.parse(arguments.compress)
    compress.check(exact=arguments.exact)
    averaging = _averaging(arguments, compress, shares)
    layout = plan_layout(arguments, place, asked_workers)
    workers, ps = layout.processes, layout.ps
    if place.nodes == 1 and not place.lone_task:
        check_shares(workers, shares, arguments.exact)
    notes = [*place.notes, *layout.notes]
    if late := note_on_late_options("run", arguments.command, absent(arguments, place)):
        notes.append(late)
    if place.lone_task:
        if asked_workers > 1 or arguments.ps:
            raise ConfigError(
                f"This process is {place.lone_task} of the cluster in TF_CONFIG and runs the "
                f"script once, but {asked_workers} workers and {arguments.ps or 0} ps were asked "
                "for. Leave out -n and --ps here."
            )
    elif workers + ps > cpus:
        notes.append(
            f"{workers + ps} processes share {cpus} CPUs of this machine; more than one on a CPU "
            "is slower than fewer workers would be."
        )
    return RunSettings(
        command=arguments.command[0],
        is_module=arguments.is_module,
        args=arguments.command[1:],
        workers=workers,
        ps=ps,
        backend=arguments.backend,
        strategy=arguments.strategy,
        chosen_strategy=layout.decision.name,
        devices_per_worker=layout.devices,
        evaluator=arguments.evaluator and place.lone_task is None,
        nodes=place.nodes,
        min_nodes=min_nodes,
        node_rank=place.node_rank,
        rendezvous=place.rendezvous,
        token=token_of(place, env),
        run_dir=Path(arguments.run_dir) if arguments.run_dir else None,
        run_name=run_name(arguments, now),
        collectives=arguments.collectives,
        keep_tf_strategies=arguments.keep_tf_strategies,
        strict_names=arguments.strict_names,
        exact=arguments.exact,
        shares=shares,
        compress=compress,
        averaging=averaging,
        jit=arguments.jit,
        seed=EXACT_SEED if arguments.exact and arguments.seed is None else arguments.seed,
        start_timeout_s=arguments.start_timeout_s,
        collective_timeout_s=arguments.collective_timeout_s,
        max_restarts=0 if rehearsing else _max_restarts(arguments, place, layout, notes),
        rejoin_timeout_s=arguments.rejoin_timeout_s,
        hang_timeout_s=arguments.hang_timeout_s,
        snapshot_every=arguments.snapshot_every,
        backup_dir=_backup_dir(arguments, place, layout, notes),
        backup_every_s=arguments.backup_every_s or DEFAULT_BACKUP_EVERY_S,
        grace_s=arguments.grace_s,
        faults=_faults(arguments, place, layout),
        platform=place.platform,
        platform_tasks=place.tasks,
        lone_task=place.lone_task,
        notes=tuple(notes),
        rehearsing=rehearsing,
    )


def _rehearsed(arguments: RunArguments, order: Rehearsing) -> RunArguments:
    """With the folders of a rehearsal: the job's own stay as they are."""
    backup_dir = None if arguments.backup_dir is None else str(order.backup_dir)
    return replace(arguments, backup_dir=backup_dir, run_dir=str(order.run_dir))


def _averaging(
    arguments: RunArguments, compress: Compress, shares: tuple[int, ...] | str | None
) -> Averaging:
    averaging = Averaging.of(arguments.sync_every, arguments.outer)
    averaging.check(
        exact=arguments.exact,
        compresses=compress.is_on,
        measures_shares=shares == AUTO_SHARES,
        is_elastic=isinstance(arguments.workers, Range),
    )
    return averaging


def _max_restarts(arguments: RunArguments, place: Place, layout: Layout, notes: list[str]) -> int:
    """How often; 0 where there are tasks of which drumbeat knows nothing."""
    if place.lone_task or not layout.is_ours:
        if arguments.max_restarts:
            notes.append(f"--max-restarts {arguments.max_restarts} has no effect: {_NOT_OURS}")
        return 0
    given = arguments.max_restarts
    return DEFAULT_MAX_RESTARTS if given is None else given


def _faults(arguments: RunArguments, place: Place, layout: Layout) -> tuple[Fault, ...]:
    faults = parse_all(arguments.inject)
    if faults and (place.lone_task or not layout.is_ours):
        raise ConfigError(
            f"--inject strikes after training steps, but there are none: {_NOT_OURS} Leave it out."
        )
    # How many workers the other nodes have is known when they meet.
    others = 0 if place.nodes == 1 else MAX_PROCESSES
    servers = layout.ps + 1 if layout.has_servers else 0
    check_places(faults, workers=layout.processes + servers + others, nodes=place.nodes)
    if layout.has_servers:
        check_servers(faults, place.nodes)
    return faults


def _backup_dir(
    arguments: RunArguments, place: Place, layout: Layout, notes: list[str]
) -> str | None:
    """Its full name, which holds wherever a script changes its folder to."""
    if arguments.backup_dir is None:
        return None
    name = open_folder(arguments.backup_dir).name
    if place.lone_task or not layout.is_ours:
        notes.append(f"--backup-dir has no effect: {_NOT_OURS}")
        return None
    return name


def run_name(arguments: RunArguments, now: datetime) -> str:
    """Name of the run's folder: `<script>-<time>`, safe as a file name."""
    name = arguments.command[0]
    stem = name if arguments.is_module else Path(name).stem
    safe = "".join(c if c.isalnum() or c in "._-" else "_" for c in stem).strip(".") or "run"
    return f"{safe[:80]}-{now:%Y%m%d-%H%M%S}"
