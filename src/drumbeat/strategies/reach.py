"""Waits until the servers of a job with parameter servers are there."""

from __future__ import annotations

import logging
import os
import socket
import time

from drumbeat.cluster.address import parse_address
from drumbeat.cluster.spec import ClusterSpec, Task
from drumbeat.errors import CollectiveError

_POLL_S = 0.1
_NOTE_AFTER_S = 10.0
logger = logging.getLogger("drumbeat")


def await_servers(cluster: ClusterSpec, timeout_s: float) -> None:
    """Returns when every worker and ps of `cluster` accepts connections.

    TensorFlow would wait for them in a call that nothing can end, or fail where one starts
    a second later than the chief.

    Args:
        cluster: The job's.
        timeout_s: For all of them.

    Raises:
        CollectiveError: One did not come in time; says which, and what was tried.
    """
    began_s = time.monotonic()
    noted = False
    for task in cluster.tasks:
        if task.type not in ("worker", "ps"):
            continue
        while (problem := _problem(cluster.address(task))) is not None:
            waited_s = time.monotonic() - began_s
            if waited_s >= timeout_s:
                raise CollectiveError(_failure(cluster, task, problem, timeout_s))
            if waited_s >= _NOTE_AFTER_S and not noted:
                noted = True
                place = cluster.address(task)
                logger.warning("Waiting for the server of %s at %s: %s.", task, place, problem)
            time.sleep(_POLL_S)


def _problem(address: str) -> str | None:
    """Why nothing answers there; None if something does."""
    place = parse_address(address, "address")
    try:
        with socket.create_connection((place.host, place.port), timeout=1.0):
            return None
    except OSError as error:
        return os.strerror(error.errno).lower() if error.errno else str(error)


def _failure(cluster: ClusterSpec, task: Task, problem: str, timeout_s: float) -> str:
    return (
        f"The server of {task} at {cluster.address(task)} could not be reached from the chief "
        f"within {timeout_s:g} s (--collective-timeout): {problem}. Expected `drumbeat run`, or a "
        "tf.distribute.Server, to have started there. Check the other processes' logs, and that "
        "the address can be reached from here (firewall, network policy, DNS)."
    )
