"""Reading and checking of TF_CONFIG: untrusted text in, plain checked values out.

The format is the one `tf.distribute.cluster_resolver.TFConfigClusterResolver`
and `tf.train.ClusterSpec` accept; what TensorFlow would accept here and hang or
crash on later is refused here.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from typing import Any

from drumbeat.cluster.address import Address, parse_address
from drumbeat.cluster.wording import JOBS, listed, shown, unknown_job
from drumbeat.errors import ConfigError

Jobs = dict[str, dict[int, str]]
"""Job name → task index → address, jobs in the order of `JOBS`, indices ascending."""

_SINGLE = ("chief", "evaluator")
_EXAMPLE = (
    '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
)
_DYNAMIC = (
    "Every task must know all of them. If a Kubeflow TFJob wrote this, turn off its "
    "enableDynamicWorker."
)


def read_object(source: object) -> Mapping[Any, Any]:
    """The top-level object of a TF_CONFIG given as JSON text or as a mapping.

    Raises:
        ConfigError: It is not JSON, or not an object.
    """
    value = _read_json(source) if isinstance(source, str) else source
    if isinstance(value, Mapping):
        return value
    twice = " It was encoded as JSON twice; encode it once." if isinstance(value, str) else ""
    raise ConfigError(f"it is {shown(value)}; expected a JSON object like {_EXAMPLE}.{twice}")


def _read_json(text: str) -> object:
    if not text.strip():
        raise ConfigError(
            "it is set but empty; expected a JSON object. Unset it to train on one worker."
        )
    try:
        return json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    except RecursionError:
        raise ConfigError(f"it is nested too deeply: {shown(text)}.") from None
    except json.JSONDecodeError as error:
        where = f"{error.msg} at character {error.pos}"
    except ConfigError:
        raise
    except ValueError:  # Python reads no number of thousands of digits
        where = "a number in it has thousands of digits"
    if re.match(r"\s*\{\s*'", text):
        hint = "JSON wants double quotes: write it with json.dumps, not with str."
    elif re.match(r"\s*\{\s*\w", text):
        hint = "The shell seems to have eaten the quotes: put single quotes around the whole."
    else:
        hint = f"Expected an object like {_EXAMPLE}."
    raise ConfigError(f"it is not JSON ({where}): {shown(text)}. {hint}")


def _refuse_repeated_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        repeated = next(name for name in names if names.count(name) > 1)
        raise ConfigError(f"the key {shown(repeated)} is there twice in one object; keep one.")
    return found


def is_local(config: Mapping[Any, Any]) -> bool:
    """Whether a TF_CONFIG describes no cluster at all, so that training is on one worker.

    Raises:
        ConfigError: A task is given but no cluster, or what looks like a
            misspelled cluster.
    """
    if _present(config, "cluster"):
        return False
    if _present(config, "task"):
        raise ConfigError(
            f"it has the task {shown(config['task'])} but no cluster (keys: "
            f'{listed(map(shown, config))}). Add "cluster" with the addresses of all tasks, or '
            "unset TF_CONFIG to train on one worker."
        )
    for name in config:
        spelling = str(name).lower()
        if name != "cluster" and difflib.get_close_matches(spelling, ["cluster"], cutoff=0.85):
            raise ConfigError(f"the key {shown(name)} is unknown. Did you mean 'cluster'?")
        if name in (*JOBS, "master"):
            raise ConfigError(
                f'the key {shown(name)} stands beside "cluster"; expected inside it: {_EXAMPLE}.'
            )
    return True


def _present(config: Mapping[Any, Any], key: str) -> bool:
    value = config.get(key)
    return value is not None and value != {}


def read_optional_text(config: Mapping[Any, Any], key: str) -> str | None:
    """A top-level string such as `rpc_layer`, or None.

    Raises:
        ConfigError: It is something other than a string.
    """
    value = config.get(key)
    if value is None or isinstance(value, str):
        return value
    raise ConfigError(f"{key} is {shown(value)}; expected a string. Leave it out for the default.")


def read_cluster(value: object) -> Jobs:
    """Reads and checks the value of `cluster`.

    `master` becomes `chief`; a list and the equal dict of indices give equal
    results. Gaps in the indices are let through for `worker` beside `ps` only.

    Raises:
        ConfigError: Whatever is wrong with it, the first in reading order.
    """
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"cluster is {shown(value)}; expected an object of jobs like "
            '{"worker": ["host0:2222", "host1:2222"]}.'
        )
    found: Jobs = {}
    for name, tasks in value.items():
        if name != "master" and name not in JOBS:
            raise ConfigError(unknown_job("the job", str(name)) + " Rename the job.")
        job = "chief" if name == "master" else str(name)
        if job in found:
            raise ConfigError(
                "cluster has both chief and master, which are two names of one task; "
                "keep chief and remove master."
            )
        found[job] = _read_job(tasks, f"cluster.{name}")
    jobs = {job: found[job] for job in JOBS if job in found}
    _check_sizes(jobs)
    _check_places(jobs)
    return jobs


def _read_job(value: object, where: str) -> dict[int, str]:
    if isinstance(value, Mapping):
        tasks = _read_indices(value, where)
    elif isinstance(value, (list, tuple)):
        tasks = dict(enumerate(value))
    else:
        raise ConfigError(
            f"{where} is {shown(value)}; expected a list of addresses like "
            '["host0:2222"]. Leave the key out if there are no such tasks.'
        )
    if not tasks:
        raise ConfigError(
            f"{where} is empty; expected at least one address. Leave the key out if there are no "
            "such tasks (an empty job can crash TensorFlow)."
        )
    return {index: tasks[index] for index in sorted(tasks)}


def _read_indices(value: Mapping[Any, Any], where: str) -> dict[int, Any]:
    tasks: dict[int, Any] = {}
    for key, address in value.items():
        index = read_index(key, f"{where} has a key that")
        if index in tasks:
            raise ConfigError(f"{where} has index {index} twice; give each task its own index.")
        tasks[index] = address
    return tasks


def read_index(value: object, where: str) -> int:
    """Reads a task index, given as an int or as its decimal digits.

    Raises:
        ConfigError: It is neither, or negative.
    """
    # Digits are counted first: int() and str() refuse numbers of thousands of them.
    if isinstance(value, str) and re.fullmatch(r"\s*-?[0-9]{1,9}\s*", value):
        index = int(value)
    elif isinstance(value, int) and not isinstance(value, bool) and value < 10**9:
        index = value
    else:
        raise ConfigError(f"{where} is {shown(value)}; expected a whole number from 0.")
    if index < 0:
        raise ConfigError(f"{where} is {shown(value)}, which is negative; indices start at 0.")
    return index


def first_gap(tasks: Mapping[int, str]) -> int | None:
    """The lowest index missing below the highest present one, or None."""
    missing = next(index for index in range(len(tasks) + 1) if index not in tasks)
    return missing if missing < len(tasks) else None


def gap_message(job: str, tasks: Mapping[int, str]) -> str:
    """The message for a job whose indices have a gap."""
    return (
        f"cluster.{job} has the indices {listed(sorted(tasks))} but not {first_gap(tasks)}; "
        f"expected every index from 0. {_DYNAMIC}"
    )


def _check_sizes(jobs: Jobs) -> None:
    if "chief" not in jobs and "worker" not in jobs:
        raise ConfigError(
            f"cluster has {'only ' + listed(jobs) if jobs else 'no job'}, so nobody trains; "
            'expected a worker or a chief. Add "worker" with the workers\' addresses.'
        )
    for job, tasks in jobs.items():
        if job in _SINGLE and len(tasks) > 1:
            raise ConfigError(
                f"cluster.{job} has {len(tasks)} addresses ({listed(tasks.values())}); expected "
                f"one. {'List the others as worker.' if job == 'chief' else 'Keep one.'}"
            )
        # With parameter servers a worker needs no other worker, and TFJob's
        # dynamic workers are told their own address only.
        sparse_is_fine = job == "worker" and "ps" in jobs
        if not sparse_is_fine and first_gap(tasks) is not None:
            raise ConfigError(gap_message(job, tasks))


def _check_places(jobs: Jobs) -> None:
    """Refuses bad and repeated addresses, and those other machines can't reach."""
    owners: dict[tuple[str, int], str] = {}
    near: str | None = None
    far: str | None = None
    for job, tasks in jobs.items():
        for index, text in tasks.items():
            address: Address = parse_address(text, f"cluster.{job}[{index}]")
            task = f"{job} {index}"
            other = owners.setdefault((address.host, address.port), task)
            if other != task:
                raise ConfigError(
                    f"{other} and {task} have the same address {shown(text)}; each task needs its "
                    "own. Change one of them."
                )
            if job in ("chief", "worker") and address.loopback:
                near = near or f"{task} is at {text}"
            elif job in ("chief", "worker"):
                far = far or f"{task} is at {text}"
    if near and far:
        raise ConfigError(
            f"{near}, which only its own machine can reach, while {far}. Give every task the "
            "name or IP address by which the other machines reach it."
        )


def read_task(value: object) -> tuple[str, int]:
    """Reads `task`: its type, as spelled there, and its index.

    Raises:
        ConfigError: It is missing, incomplete or malformed.
    """
    if value is None or value == {}:
        raise ConfigError(
            "it has a cluster but no task; expected which of the tasks this process is, such as "
            '"task": {"type": "worker", "index": 0}. Each process needs its own.'
        )
    if not isinstance(value, Mapping):
        raise ConfigError(
            f"task is {shown(value)}; expected an object like " + '{"type": "worker", "index": 0}.'
        )
    for key in ("type", "index"):
        if value.get(key) is None:
            raise ConfigError(
                f"task is {shown(dict(value))} and has no {key}; expected an object like "
                '{"type": "worker", "index": 0}.'
            )
    kind = value["type"]
    if not isinstance(kind, str):
        raise ConfigError(f"task.type is {shown(kind)}; expected one of {', '.join(JOBS)}.")
    return kind, read_index(value["index"], "task.index")


def check_task(kind: str, index: int, jobs: Mapping[str, Mapping[int, str]]) -> tuple[str, int]:
    """Checks that a task belongs to the cluster, and returns it with `master` as `chief`.

    An evaluator need not be listed: several platforms leave it out.

    Raises:
        ConfigError: The task is not one of the cluster's.
    """
    job = "chief" if kind == "master" else kind
    if job not in JOBS:
        raise ConfigError(unknown_job("task.type", str(kind)))
    index = read_index(index, "task.index")
    if job == "evaluator" and index > 0:
        raise ConfigError(f"task is evaluator {index}; expected index 0: a job has one evaluator.")
    if job not in jobs and job != "evaluator":
        chief = (
            " Without a chief, worker 0 is the chief: set task.type to 'worker' and task.index "
            "to 0, or add a chief to cluster."
            if job == "chief"
            else ""
        )
        raise ConfigError(
            f"task is {kind} {index}, but cluster has no {job}, only {listed(jobs)}.{chief}"
            f"{'' if chief else f' Add {job} to cluster, or correct task.type.'}"
        )
    if job in jobs and index not in jobs[job]:
        raise ConfigError(
            f"task.index is {index}, but cluster.{job} has "
            f"{_extent(jobs[job])}. Correct the index, or add the address to cluster.{job}."
        )
    return job, index


def _extent(tasks: Mapping[int, str]) -> str:
    if first_gap(tasks) is not None:
        return f"only the indices {listed(tasks)}"
    if len(tasks) == 1:
        return "one address, index 0"
    return f"{len(tasks)} addresses, indices 0 to {len(tasks) - 1}"
