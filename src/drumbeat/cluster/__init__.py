"""Who is in a job and who am I. Pure: opens no socket, imports no TensorFlow."""

from drumbeat.cluster.identity import Identity
from drumbeat.cluster.spec import ClusterSpec, Task

__all__ = ["ClusterSpec", "Identity", "Task"]
