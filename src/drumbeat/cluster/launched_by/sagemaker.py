"""SageMaker: SM_HOSTS and SM_CURRENT_HOST, in images without AWS's own TF_CONFIG.

Source: sagemaker-training 5.1 (environment.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from drumbeat.cluster.launched_by.found import Found, host_in, json_in
from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

HOSTS, CURRENT = "SM_HOSTS", "SM_CURRENT_HOST"


def find(env: Mapping[str, str]) -> Found | None:
    """The host among those of the training job.

    Raises:
        ConfigError: The variables contradict each other.
    """
    if HOSTS not in env:
        return None
    hosts = json_in(env, HOSTS)
    if not isinstance(hosts, list) or not hosts or not all(isinstance(h, str) for h in hosts):
        raise ConfigError(
            f'{HOSTS} is {shown(env[HOSTS])}; expected a list such as ["algo-1", "algo-2"].'
        )
    if len(set(hosts)) < len(hosts):
        raise ConfigError(f"{HOSTS} is {shown(env[HOSTS])}; expected each host once.")
    current = env.get(CURRENT, "")
    if current not in hosts:
        raise ConfigError(
            f"{CURRENT} is {shown(current)}, which is not in {HOSTS}, {shown(env[HOSTS])}."
        )
    return Found(
        platform="SageMaker",
        nodes=len(hosts),
        node_rank=hosts.index(current),
        host=host_in(hosts[0], HOSTS) if len(hosts) > 1 else "",
        source=f"{HOSTS}, {CURRENT}",
    )
