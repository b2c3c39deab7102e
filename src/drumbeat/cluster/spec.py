"""Who is in a job: its tasks, their addresses, and which of them this process is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from drumbeat.cluster.address import parse_address
from drumbeat.cluster.tf_config import (
    check_task,
    first_gap,
    gap_message,
    is_local,
    read_cluster,
    read_object,
    read_optional_text,
    read_task,
)
from drumbeat.cluster.wording import listed
from drumbeat.errors import ConfigError


@dataclass(frozen=True)
class Task:
    """One process of a job, as TF_CONFIG names it.

    Attributes:
        type: "chief", "worker", "ps" or "evaluator".
        index: Its number among the tasks of that type, from 0.
    """

    type: str
    index: int

    def __str__(self) -> str:
        return f"{self.type} {self.index}"


@dataclass(frozen=True, init=False, repr=False)
class ClusterSpec:
    """The tasks of a job and their addresses; valid from its construction on.

    Immutable, hashable and equal to any other spec of the same tasks, whether
    their addresses were given as lists or by index.

    Attributes:
        jobs: Job name → task index → "host:port", read-only. Jobs are in the order
            chief, worker, ps, evaluator, indices ascend; there is no empty job.
        task: The task this process is, or None where that is not decided.
        rpc_layer: Protocol of TensorFlow's servers; None means "grpc".
        environment: What the platform calls itself, such as "cloud". TensorFlow
            ignores it.
    """

    jobs: Mapping[str, Mapping[int, str]]
    task: Task | None
    rpc_layer: str | None
    environment: str | None

    def __init__(
        self,
        jobs: Mapping[str, Mapping[int, str] | Mapping[str, str] | Sequence[str]],
        *,
        task: Task | None = None,
        rpc_layer: str | None = None,
        environment: str | None = None,
    ) -> None:
        """Checks and stores a cluster.

        Args:
            jobs: Job name → addresses, as a list or by index. The legacy name
                `master` becomes `chief`.
            task: The task this process is.
            rpc_layer: Protocol of TensorFlow's servers.
            environment: What the platform calls itself.

        Raises:
            ConfigError: The cluster or the task is not valid.
        """
        checked = read_cluster(jobs)
        own = Task(*check_task(task.type, task.index, checked)) if task else None
        read_only = {job: MappingProxyType(tasks) for job, tasks in checked.items()}
        object.__setattr__(self, "jobs", MappingProxyType(read_only))
        object.__setattr__(self, "task", own)
        object.__setattr__(self, "rpc_layer", rpc_layer)
        object.__setattr__(self, "environment", environment)

    @classmethod
    def from_tf_config(cls, source: str | Mapping[str, Any]) -> ClusterSpec | None:
        """Reads a TF_CONFIG, as JSON text or already decoded.

        Unknown top-level keys are ignored, as TensorFlow ignores them.

        Returns:
            The cluster with its `task` set; None if there is no cluster in it
            (`{}`, or an empty "cluster" and "task"), which means training on one
            worker.

        Raises:
            ConfigError: It is malformed; the message begins with "TF_CONFIG:" and
                names the key.
        """
        try:
            config = read_object(source)
            if is_local(config):
                return None
            cluster = cls(
                config["cluster"],
                rpc_layer=read_optional_text(config, "rpc_layer"),
                environment=read_optional_text(config, "environment"),
            )
            return cluster.for_task(Task(*read_task(config.get("task"))))
        except ConfigError as error:
            raise ConfigError(f"TF_CONFIG: {error}") from None

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> ClusterSpec | None:
        """Reads the variable TF_CONFIG of an environment; None if it is not set.

        Raises:
            ConfigError: As `from_tf_config`.
        """
        return cls.from_tf_config(env["TF_CONFIG"]) if "TF_CONFIG" in env else None

    @classmethod
    def local(
        cls,
        num_workers: int,
        *,
        ports: Sequence[int],
        num_ps: int = 0,
        host: str = "127.0.0.1",
    ) -> ClusterSpec:
        """A cluster on one machine: workers only, or a chief, workers and ps.

        Args:
            num_workers: Tasks of type worker, at least 1.
            ports: One free port for each task, `ports_needed(num_workers, num_ps)`
                in all, given out to chief, workers and ps in this order.
            num_ps: Tasks of type ps. With any there is a chief too, which
                coordinates the others.
            host: Name or IP of the machine.

        Raises:
            ConfigError: A number is out of range or the ports do not suffice.
        """
        needed = cls.ports_needed(num_workers, num_ps)
        if len(ports) != needed:
            raise ConfigError(
                f"{len(ports)} ports for {needed} tasks ({num_workers} workers, {num_ps} ps"
                f"{', 1 chief' if num_ps else ''}); expected one port for each task."
            )
        place = f"[{host}]" if ":" in host else host
        addresses = iter([f"{place}:{port}" for port in ports])
        sizes = {"chief": int(num_ps > 0), "worker": num_workers, "ps": num_ps}
        return cls({job: [next(addresses) for _ in range(n)] for job, n in sizes.items() if n})

    @staticmethod
    def ports_needed(num_workers: int, num_ps: int = 0) -> int:
        """How many tasks, and so ports, `local` makes of these numbers.

        Raises:
            ConfigError: Fewer than one worker or a negative number of ps.
        """
        if num_workers < 1:
            raise ConfigError(f"the number of workers is {num_workers}; expected at least 1.")
        if num_ps < 0:
            raise ConfigError(f"the number of ps tasks is {num_ps}; expected 0 or more.")
        return num_workers + num_ps + int(num_ps > 0)

    def for_task(self, task: Task) -> ClusterSpec:
        """The same cluster as `task` sees it.

        Raises:
            ConfigError: `task` is not in the cluster (an evaluator need not be).
        """
        return replace(self, task=task)

    def to_json(self) -> str:
        """A TF_CONFIG that TensorFlow reads as this cluster.

        `from_tf_config` reads it back to an equal spec if `task` is set; without
        one there is no "task" in it.
        """
        return json.dumps(self._to_mapping())

    def _to_mapping(self) -> dict[str, Any]:
        config: dict[str, Any] = {
            "cluster": {
                job: dict(tasks) if first_gap(tasks) is not None else list(tasks.values())
                for job, tasks in self.jobs.items()
            }
        }
        if self.task is not None:
            config["task"] = {"type": self.task.type, "index": self.task.index}
        if self.rpc_layer is not None:
            config["rpc_layer"] = self.rpc_layer
        if self.environment is not None:
            config["environment"] = self.environment
        return config

    @property
    def tasks(self) -> tuple[Task, ...]:
        """Every task in the cluster: chief, workers, ps, evaluator, each by index."""
        return tuple(self._tasks("chief", "worker", "ps", "evaluator"))

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of `tasks`, in the same order."""
        return tuple(self.address(task) for task in self.tasks)

    @property
    def sync_tasks(self) -> tuple[Task, ...]:
        """The tasks that train together, by rank: the chief if there is one, then workers.

        Raises:
            ConfigError: The workers' indices have a gap, so ranks are unknown.
        """
        workers = self.jobs.get("worker", {})
        if first_gap(workers) is not None:
            raise ConfigError(gap_message("worker", workers))
        return tuple(self._tasks("chief", "worker"))

    @property
    def world_size(self) -> int:
        """How many tasks train together; ps and evaluator do not count.

        Raises:
            ConfigError: As `sync_tasks`.
        """
        return len(self.sync_tasks)

    def rank_of(self, task: Task) -> int:
        """The rank of `task`: its place in `sync_tasks`, or -1 for a ps or an evaluator.

        Raises:
            ConfigError: `task` is not in the cluster; and as `sync_tasks`.
        """
        task = Task(*check_task(task.type, task.index, self.jobs))
        ranks = self.sync_tasks
        return ranks.index(task) if task in ranks else -1

    @property
    def chief(self) -> Task:
        """The task of rank 0: the chief, or worker 0 in a cluster without one."""
        return Task("chief", 0) if "chief" in self.jobs else Task("worker", 0)

    def is_chief(self, task: Task) -> bool:
        """Whether `task` is the chief.

        An evaluator is not, unlike in TensorFlow, which calls it the chief of a
        cluster of its own.
        """
        return task == self.chief

    def address(self, task: Task) -> str:
        """The "host:port" of `task`, as it was given.

        Raises:
            ConfigError: The cluster lists no address for it.
        """
        try:
            return self.jobs[task.type][task.index]
        except KeyError:
            raise ConfigError(
                f"{task} has no address; the cluster has {listed(self.tasks)}."
            ) from None

    @property
    def num_nodes(self) -> int:
        """How many different hosts the addresses name.

        localhost, 127.0.0.1 and ::1 are one; otherwise two names of one machine,
        or its name and its IP, count as two, since nothing is looked up.
        """
        return len({parse_address(text, "address").host for text in self.addresses})

    def without_ps(self) -> tuple[ClusterSpec, str | None]:
        """The cluster for a synchronous strategy, which has no use for ps tasks.

        TensorFlow's MultiWorkerMirroredStrategy waits for ever in a cluster with
        ps tasks, since it makes ps 0 the leader.

        Returns:
            The cluster without ps, and the note to log; the cluster itself and
            None if there are none.

        Raises:
            ConfigError: This process is a ps itself, or the workers' indices have
                a gap.
        """
        if "ps" not in self.jobs:
            return self, None
        advice = "Remove ps from the job, or use ParameterServerStrategy, which needs them."
        ps = listed(self._tasks("ps"))
        if self.task and self.task.type == "ps":
            raise ConfigError(
                f"this process is {self.task}, and the script trains synchronously, which has no "
                f"use for ps tasks. {advice}"
            )
        rest = {job: tasks for job, tasks in self.jobs.items() if job != "ps"}
        note = f"Ignoring {ps}: in synchronous training every worker holds all variables. {advice}"
        return replace(self, jobs=rest), note

    def _tasks(self, *jobs: str) -> Iterator[Task]:
        return (Task(job, index) for job in jobs for index in self.jobs.get(job, ()))

    def __hash__(self) -> int:
        return hash(self.to_json())

    def __reduce__(self) -> tuple[Any, ...]:
        # Read-only mappings can't be pickled or copied; their content can.
        return _rebuild, (self._to_mapping(),)

    def __str__(self) -> str:
        places = listed(f"{task} at {self.address(task)}" for task in self.tasks)
        return places + (f"; this is {self.task}" if self.task else "")

    def __repr__(self) -> str:
        return f"ClusterSpec({self})"


def _rebuild(config: Mapping[str, Any]) -> ClusterSpec:
    own = config.get("task")
    return ClusterSpec(
        config["cluster"],
        task=Task(own["type"], own["index"]) if own else None,
        rpc_layer=config.get("rpc_layer"),
        environment=config.get("environment"),
    )
