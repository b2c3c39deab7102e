"""Who this process is, by what the platform that started it has put into its environment.

One module a platform, each with `find(env) -> Found | None`: None where the platform's variables
are not there, ConfigError where they contradict themselves. TF_CONFIG is read by
`drumbeat.cluster.spec`, and wins over all of these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from drumbeat.cluster.launched_by import (
    drumbeat,
    kubernetes,
    ray,
    sagemaker,
    skypilot,
    slurm,
    vertex,
)
from drumbeat.cluster.launched_by.found import Found

__all__ = ["FINDERS", "Found", "find", "with_files"]

# What was set for drumbeat itself comes first; a container that a batch system runs may have
# variables of several.
FINDERS: dict[str, Callable[[Mapping[str, str]], Found | None]] = {
    "drumbeat": drumbeat.find,
    "Vertex AI": vertex.find,
    "SageMaker": sagemaker.find,
    "SkyPilot": skypilot.find,
    "Ray": ray.find,
    "Kubernetes": kubernetes.find,
    "Slurm": slurm.find,
}


def find(env: Mapping[str, str]) -> Found | None:
    """The first that is found.

    Raises:
        ConfigError: The variables of a platform contradict themselves.
    """
    return next((found for each in FINDERS.values() if (found := each(env)) is not None), None)


def with_files(env: Mapping[str, str], read: Callable[[str], str | None]) -> Mapping[str, str]:
    """`env`, with what a platform says in a file instead.

    Args:
        env: The environment.
        read: The text of a file by its path; None where it can't be read.
    """
    return sagemaker.with_file(env, read)
