"""Slurm: the tasks of a step. In a batch script outside of `srun` there is one, which is alone.

Source: srun(1) "OUTPUT ENVIRONMENT VARIABLES"; tried with slurm-wlm 22.05. Rank 0 runs on the first
host of the step's list in every distribution but `arbitrary`.
"""

from __future__ import annotations

from collections.abc import Mapping

from drumbeat.cluster.hostlist import expand, expand_counts
from drumbeat.cluster.launched_by.drumbeat import RENDEZVOUS
from drumbeat.cluster.launched_by.found import Found, host_in, place_in, rank_of, whole
from drumbeat.errors import ConfigError

TASKS, HOSTS, RANK = "SLURM_STEP_NUM_TASKS", "SLURM_STEP_NODELIST", "SLURM_PROCID"
COUNTS = "SLURM_STEP_TASKS_PER_NODE"
STEP = "SLURM_STEP_ID"
PORTS_FROM, PORTS = 20_000, 20_000
"""Jobs that share a machine meet at different ports: that of the job's number among these."""
_STEPS_APART = 101
"""So do steps of one job; the next jobs' numbers are likely to be on the same machine, too."""


def find(env: Mapping[str, str]) -> Found | None:
    """The task among those of its step.

    Raises:
        ConfigError: The variables contradict each other.
    """
    if TASKS not in env or "SLURM_JOB_ID" not in env:
        return None
    tasks = whole(env, TASKS, least=1)
    rank = rank_of(env, RANK, tasks, TASKS)
    source = f"{TASKS}, {RANK}"
    if tasks == 1:
        return Found(platform="Slurm", nodes=1, node_rank=0, host="", source=source)
    if RENDEZVOUS in env:
        host, port = place_in(env[RENDEZVOUS], RENDEZVOUS)
        return Found(
            platform="Slurm",
            nodes=tasks,
            node_rank=rank,
            host=host,
            port=port,
            source=f"{source}, {RENDEZVOUS}",
        )
    if HOSTS not in env:
        raise ConfigError(f"{TASKS} is {tasks}, but {HOSTS} is not set; expected the step's hosts.")
    hosts = expand(env[HOSTS])
    if COUNTS in env:
        _check_counts(env, tasks, hosts)
    if env.get("SLURM_DISTRIBUTION", "").startswith("arbitrary"):
        raise ConfigError(
            "SLURM_DISTRIBUTION is arbitrary: where rank 0 runs can't be told. Expected srun "
            f"--distribution=block, or {RENDEZVOUS} set to HOST:PORT of rank 0."
        )
    job = whole(env, "SLURM_JOB_ID", most=2**32)
    step = whole(env, STEP, most=2**32) if STEP in env else 0
    return Found(
        platform="Slurm",
        nodes=tasks,
        node_rank=rank,
        host=host_in(hosts[0], HOSTS),
        port=PORTS_FROM + (job + _STEPS_APART * step) % PORTS,
        source=f"{source}, {HOSTS}",
    )


def _check_counts(env: Mapping[str, str], tasks: int, hosts: list[str]) -> None:
    counts = expand_counts(env[COUNTS])
    if len(counts) != len(hosts) or sum(counts) != tasks:
        raise ConfigError(
            f"{COUNTS} is {env[COUNTS]}: {sum(counts)} tasks on {len(counts)} hosts, but {TASKS} "
            f"is {tasks} and {HOSTS} has {len(hosts)} hosts."
        )
