"""The entrypoint of a Ray job: a placement group with an agent of drumbeat in each bundle.

    python -m drumbeat.platforms.ray.driver --nodes 2 -- drumbeat run train.py

The agents meet at the first bundle's node. One whose actor Ray loses is started again, and the
others wait for it. When the job is stopped, they save their state; none of their processes stays.

Source: Ray 2.60's documentation of placement groups and jobs; tried with it.
"""

from __future__ import annotations

import contextlib
import secrets
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import command
from drumbeat.platforms.ray.agent import Agent
from drumbeat.platforms.ray.options import Options, parse

NODES, RANK, RENDEZVOUS = "DRUMBEAT_NODES", "DRUMBEAT_NODE_RANK", "DRUMBEAT_RENDEZVOUS"
MAX_LOSSES = 3
TIMEOUT_CODE, NO_ROOM_CODE = 124, 3
_POLL_S = 1.0
_CALL_TIMEOUT_S = 120.0
_END_S = 15.0
"""Beyond the grace: agents end each other, and are ended."""


class NoRoom(DrumbeatError):
    """The cluster has not what the job needs."""

    exit_code = NO_ROOM_CODE


@dataclass
class Job:
    """A job that runs.

    Attributes:
        options: See there.
        group: Ray's placement group.
        token: The agents' secret.
        rendezvous: Where they meet.
        agents: The actors by node rank.
        codes: Exit codes of those that have ended.
        losses: Actors that Ray has lost so far.
        end_s: When what still runs is given up, by the monotonic clock; None while nothing ends.
        code: The job's, once it is decided.
    """

    options: Options
    group: Any
    token: str
    rendezvous: tuple[str, int] = ("", 0)
    agents: dict[int, Any] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    losses: int = 0
    end_s: float | None = None
    code: int | None = None


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code.

    Raises:
        DrumbeatError: Wrong options, no Ray, or no room in the cluster.
    """
    options = parse(arguments)
    ray = _ray()
    ray.init(log_to_driver=False, logging_level="warning")
    stopped: list[int] = []
    # After Ray's own, which would end this process at once.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, _: stopped.append(number))
    group = ray.util.placement_group([options.bundle] * options.nodes, strategy=options.placement)
    try:
        _wait_for_room(group, options, stopped)
        job = Job(options=options, group=group, token=secrets.token_hex(32))
        _start_all(job)
        return _follow(job, stopped)
    except ray.exceptions.RayError as error:
        raise DrumbeatError(f"Ray could not start the nodes: {_reason(error)}") from None
    finally:
        with contextlib.suppress(Exception):
            ray.util.remove_placement_group(group)


def variables(rank: int, nodes: int, rendezvous: tuple[str, int], token: str) -> dict[str, str]:
    """What an agent is told of the others."""
    if nodes == 1:
        return {NODES: "1", RANK: "0"}
    host, port = rendezvous
    place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    return {NODES: str(nodes), RANK: str(rank), RENDEZVOUS: place, command.TOKEN: token}


def decide(codes: Mapping[int, int], nodes: int) -> int | None:
    """The job's exit code, once it is known: 0 when all have succeeded, else the first other."""
    failed = [code for code in codes.values() if code]
    if failed:
        return failed[0]
    return 0 if len(codes) == nodes else None


def _ray() -> Any:
    try:
        import ray
        import ray.util
    except ImportError:
        raise ConfigError('Ray is not installed; expected: pip install "drumbeat[ray]".') from None
    return ray


def _wait_for_room(group: Any, options: Options, stopped: Sequence[int]) -> None:
    ray = _ray()
    deadline = time.monotonic() + options.start_timeout
    ready = group.ready()
    while not ray.wait([ready], timeout=_POLL_S)[0]:
        if stopped:
            raise SystemExit(128 + stopped[0])
        if time.monotonic() > deadline:
            nodes = [each["Resources"] for each in ray.nodes() if each["Alive"]]
            has = "; ".join(_shown(each) for each in nodes)
            whose = "node has" if len(nodes) == 1 else "nodes have"
            raise NoRoom(
                f"The cluster had no room within {options.start_timeout:g} s for "
                f"{options.nodes} × {_shown(options.bundle)} ({options.placement}). Its "
                f"{len(nodes)} {whose} {has}, if nothing else runs there. Ask for less, or give "
                "it more nodes."
            )


def _shown(resources: Mapping[str, float]) -> str:
    words = []
    for name, amount in sorted(resources.items()):
        if name.startswith("node:") or name == "object_store_memory":
            continue
        words.append(f"{amount / 2**30:.1f} GiB" if name == "memory" else f"{amount:g} {name}")
    return ", ".join(words) or "nothing"


def _start_all(job: Job) -> None:
    ray = _ray()
    job.codes.clear()
    for rank in range(job.options.nodes):
        job.agents[rank] = _actor(job, rank)
    job.rendezvous = ray.get(job.agents[0].place.remote(), timeout=_CALL_TIMEOUT_S)
    for rank in job.agents:
        _start(job, rank)


def _actor(job: Job, rank: int) -> Any:
    ray = _ray()
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    strategy = PlacementGroupSchedulingStrategy(
        placement_group=job.group, placement_group_bundle_index=rank
    )
    options = job.options
    return (
        ray.remote(Agent)
        .options(
            scheduling_strategy=strategy,
            num_cpus=options.cpus,
            num_gpus=options.gpus,
            memory=options.memory or None,
            max_concurrency=2,  # `end` while `poll` waits
        )
        .remote()
    )


def _start(job: Job, rank: int) -> None:
    told = variables(rank, job.options.nodes, job.rendezvous, job.token)
    call = job.agents[rank].start.remote(list(job.options.command), told, job.options.grace)
    _ray().get(call, timeout=_CALL_TIMEOUT_S)


def _follow(job: Job, stopped: Sequence[int]) -> int:
    """Shows what the agents say until all have ended, or are to end and don't."""
    ray = _ray()
    started_s = time.monotonic()
    polls = {agent.poll.remote(_POLL_S): rank for rank, agent in job.agents.items()}
    while len(job.codes) < job.options.nodes:
        now_s = time.monotonic()
        if job.end_s is not None and now_s > job.end_s:
            break
        if stopped and job.end_s is None:
            _end(job, 128 + stopped[0])
        if job.options.timeout and now_s - started_s > job.options.timeout and job.end_s is None:
            _say(f"The job's {job.options.timeout:g} s have passed.")
            _end(job, TIMEOUT_CODE)
        for done in ray.wait(list(polls), timeout=_POLL_S)[0]:
            rank = polls.pop(done)
            if _show(job, rank, done):
                polls[job.agents[rank].poll.remote(_POLL_S)] = rank
            elif rank not in job.codes:
                polls = {each.poll.remote(_POLL_S): rank for rank, each in job.agents.items()}
    if job.code is not None:
        return job.code
    return decide(job.codes, job.options.nodes) or 0


def _show(job: Job, rank: int, done: Any) -> bool:
    """Prints what a node said; False where it has ended, or all were started anew."""
    ray = _ray()
    try:
        lines, code = ray.get(done)
    except ray.exceptions.RayError as error:
        return _replace(job, rank, error)
    for line in lines:
        _say(line, rank)
    if code is None:
        return True
    job.codes[rank] = code
    if code == ConfigError.exit_code and job.end_s is None:
        # It may not have come to meet the others, who would wait for it.
        _end(job, code)
    elif code and job.end_s is None:
        # The agents tell each other; what does not end by that is ended.
        job.code = code
        job.end_s = time.monotonic() + job.options.grace + _END_S
    return False


def _replace(job: Job, rank: int, error: Exception) -> bool:
    """Starts a node again whose actor is lost; False where that changes all of them, or none is."""
    job.losses += 1
    reason = _reason(error)
    if job.end_s is not None or job.losses > MAX_LOSSES:
        _say(f"Ray has lost node {rank}: {reason}")
        job.codes[rank] = 1
        if job.end_s is None:
            _end(job, 1)
        return False
    _say(f"Ray has lost node {rank}, which is started again: {reason}")
    job.agents[rank] = _actor(job, rank)
    try:
        if rank == 0:
            place = _ray().get(job.agents[0].place.remote(), timeout=_CALL_TIMEOUT_S)
            if place[0] != job.rendezvous[0]:
                return _start_anew(job)
        _start(job, rank)
    except _ray().exceptions.RayError as again:
        _say(f"Node {rank} could not be started again: {_reason(again)}")
        job.codes[rank] = 1
        _end(job, 1)
        return False
    return True


def _reason(error: Exception) -> str:
    """Ray's error in one line: the last one of a traceback of a node's, which it begins with."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    is_traceback = any(line.startswith(("Traceback", "File ")) for line in lines)
    return (lines[-1] if is_traceback else lines[0]) if lines else type(error).__name__


def _start_anew(job: Job) -> bool:
    """The agents meet at node 0's address: where that is another one, all begin again."""
    _say("Node 0 is on another machine now: all nodes start again, from the last backup.")
    for agent in job.agents.values():
        _ray().kill(agent)
    _start_all(job)
    return False


def _end(job: Job, code: int) -> None:
    job.code = code
    job.end_s = time.monotonic() + job.options.grace + _END_S
    for rank, agent in job.agents.items():
        if rank not in job.codes:
            agent.end.remote()


def _say(line: str, rank: int | None = None) -> None:
    print(f"node-{rank}: {line}" if rank is not None else f"drumbeat: {line}", flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except DrumbeatError as error:
        print(error.printed(), file=sys.stderr)
        sys.exit(error.exit_code)
