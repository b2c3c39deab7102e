"""SageMaker: which hosts a training job has, and which of them this is.

AWS's own images say so in SM_HOSTS and SM_CURRENT_HOST. A container of one's own has
resourceconfig.json instead; its text stands in for SM_RESOURCE_CONFIG, as the same images have it.

Source: sagemaker-training 5.1 (environment.py); SageMaker's Developer Guide, "How Amazon SageMaker
Provides Training Information".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drumbeat.cluster.launched_by.drumbeat import RENDEZVOUS
from drumbeat.cluster.launched_by.found import DEFAULT_PORT, Found, host_in, json_in, place_in
from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

HOSTS, CURRENT, RESOURCES = "SM_HOSTS", "SM_CURRENT_HOST", "SM_RESOURCE_CONFIG"
JOB = "TRAINING_JOB_ARN"
"""What every container of a training job has."""
FILE = "/opt/ml/input/config/resourceconfig.json"
_ALONE = (
    f"It trains alone: {JOB} is set, but neither {HOSTS} nor {FILE} says which other hosts there "
    "are."
)


def with_file(env: Mapping[str, str], read: Callable[[str], str | None]) -> Mapping[str, str]:
    """`env`, with the text of resourceconfig.json where the container has that alone.

    Args:
        env: The environment.
        read: The text of a file by its path; None where it can't be read.
    """
    if JOB not in env or HOSTS in env or RESOURCES in env:
        return env
    text = read(FILE)
    return env if text is None else {**env, RESOURCES: text}


def find(env: Mapping[str, str]) -> Found | None:
    """The host among those of the training job.

    Raises:
        ConfigError: The variables contradict each other.
    """
    if HOSTS in env:
        source = HOSTS, CURRENT
        hosts, current = json_in(env, HOSTS), env.get(CURRENT, "")
    elif RESOURCES in env:
        source = "hosts of resourceconfig.json", "current_host"
        given = json_in(env, RESOURCES)
        if not isinstance(given, dict):
            raise ConfigError(f"{RESOURCES} is {shown(env[RESOURCES])}; expected an object.")
        hosts, current = given.get("hosts"), given.get("current_host", "")
    elif JOB in env:
        return Found(platform="SageMaker", nodes=1, node_rank=0, host="", source=JOB, note=_ALONE)
    else:
        return None
    return _found(env, hosts, current, source)


def _found(
    env: Mapping[str, str], hosts: object, current: object, source: tuple[str, str]
) -> Found:
    said, who = source
    if not isinstance(hosts, list) or not hosts or not all(isinstance(h, str) for h in hosts):
        raise ConfigError(
            f'{said} is {shown(hosts)}; expected a list such as ["algo-1", "algo-2"].'
        )
    if len(set(hosts)) < len(hosts):
        raise ConfigError(f"{said} is {shown(hosts)}; expected each host once.")
    if not isinstance(current, str) or current not in hosts:
        raise ConfigError(f"{who} is {shown(current)}, which is not in {said}, {shown(hosts)}.")
    host, port = host_in(hosts[0], said), DEFAULT_PORT
    if RENDEZVOUS in env:
        host, port = place_in(env[RENDEZVOUS], RENDEZVOUS)
    return Found(
        platform="SageMaker",
        nodes=len(hosts),
        node_rank=hosts.index(current),
        host=host if len(hosts) > 1 else "",
        port=port if len(hosts) > 1 else DEFAULT_PORT,
        source=", ".join([said, who, *([RENDEZVOUS] if RENDEZVOUS in env else [])]),
    )
