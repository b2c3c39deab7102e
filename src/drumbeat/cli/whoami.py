"""`drumbeat whoami`: who this process is, by all that its environment says."""

from __future__ import annotations

import os
from collections.abc import Mapping

import typer

from drumbeat.cluster import ClusterSpec, launched_by
from drumbeat.errors import ConfigError
from drumbeat.launch.place import environ_here

_NOBODY = (
    "Nothing here says that this process is one of several: drumbeat run starts workers on this "
    "machine alone."
)


def whoami() -> None:
    """Show which node of a job this process is, from which variables, and what contradicts.

    `drumbeat run` without options takes the first that is shown. The exit code is 1 where
    something can't be used, or two of them contradict each other.
    """
    lines, wrong = describe(environ_here(os.environ))
    print("\n".join(lines))
    raise typer.Exit(int(wrong))


def describe(env: Mapping[str, str]) -> tuple[list[str], bool]:
    """What to show, and whether something is wrong.

    Args:
        env: The environment.
    """
    lines: list[str] = []
    places: list[tuple[str, int, int]] = []
    wrong = False
    try:
        cluster = ClusterSpec.from_env(env)
    except ConfigError as error:
        cluster, wrong = None, True
        lines.append(f"TF_CONFIG can't be used: {error}")
    if cluster is not None and cluster.task is not None:
        lines.append(_of_tf_config(cluster))
        if (rank := cluster.rank_of(cluster.task)) >= 0:
            places.append(("TF_CONFIG", rank, cluster.world_size))
    for name, find in launched_by.FINDERS.items():
        try:
            found = find(env)
        except ConfigError as error:
            wrong = True
            lines.append(f"{name}: can't be used: {error}")
            continue
        if found is not None:
            lines.append(str(found))
            places.append((name, found.node_rank, found.nodes))
    contradictions = _contradictions(places)
    lines += contradictions
    if cluster is not None and places:
        lines.append("drumbeat run goes by TF_CONFIG.")
    elif places:
        lines.append(f"drumbeat run goes by what {places[0][0]} says.")
    lines += _token(env, places)
    return lines or [_NOBODY], wrong or bool(contradictions)


def _of_tf_config(cluster: ClusterSpec) -> str:
    jobs = ", ".join(f"{len(tasks)} {job}" for job, tasks in cluster.jobs.items())
    assert cluster.task is not None  # noqa: S101
    rank = cluster.rank_of(cluster.task)
    place = f"node {rank} of {cluster.world_size}" if rank >= 0 else "none of the workers"
    return f"TF_CONFIG: this is {cluster.task}, {place}, in a cluster of {jobs}."


def _contradictions(places: list[tuple[str, int, int]]) -> list[str]:
    first, *others = places or [("", 0, 0)]
    return [
        f"{name} says node {rank} of {nodes}, {first[0]} says node {first[1]} of {first[2]}: one "
        "of them was set for something else."
        for name, rank, nodes in others
        if (rank, nodes) != first[1:]
    ]


def _token(env: Mapping[str, str], places: list[tuple[str, int, int]]) -> list[str]:
    given = any(env.get(name, "").strip() for name in ("DRUMBEAT_TOKEN", "DRUMBEAT_TOKEN_FILE"))
    if not places or places[0][2] == 1 or given:
        return []
    return ["DRUMBEAT_TOKEN is not set, which a job of several nodes needs: one secret for all."]
