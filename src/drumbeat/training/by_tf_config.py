"""What `drumbeat run` prepares in a worker, in a process that something else has started."""

from __future__ import annotations

import os

from drumbeat.cluster import ClusterSpec, Identity
from drumbeat.training.unmodified import install_for


def install() -> None:
    """Prepare this process, whose place in the job TF_CONFIG tells. To be called once.

    Under `drumbeat run` it has been done. A process that was prepared before TF_CONFIG was set
    has not the seeds that its fellows have.

    Raises:
        ConfigError: TF_CONFIG is wrong.
    """
    if Identity.from_env(os.environ) is not None:
        return
    install_for(Identity.by_tf_config(ClusterSpec.from_env(os.environ)), os.environ)
