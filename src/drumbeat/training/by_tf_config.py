"""What `drumbeat run` prepares in a worker, in a process that something else has started."""

from __future__ import annotations

import os

from drumbeat.cluster import ClusterSpec, Identity
from drumbeat.errors import ConfigError
from drumbeat.training.unmodified import install_for

_done: list[Identity] = []


def install() -> None:
    """Prepare this process, whose place in the job TF_CONFIG tells. Repeatable.

    Under `drumbeat run` it has been done. A process that was prepared before TF_CONFIG was set
    has not the seeds that its fellows have.

    Raises:
        ConfigError: TF_CONFIG is wrong.
    """
    if Identity.from_env(os.environ) is not None:
        return
    identity = Identity.by_tf_config(ClusterSpec.from_env(os.environ))
    if not _done:
        install_for(identity, os.environ)
    elif identity != _done[0]:
        raise ConfigError(
            f"TF_CONFIG was changed after drumbeat.auto had been imported: this process was "
            f"{_done[0].name} of {_done[0].world_size}, and is {identity.name} of "
            f"{identity.world_size}. Import drumbeat.auto after TF_CONFIG is set."
        )
    _done.append(identity)
