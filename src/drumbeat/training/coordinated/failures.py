"""What TensorFlow says when something fails on a worker, in fewer words."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Iterator

import tensorflow as tf

from drumbeat.errors import DrumbeatError

logger = logging.getLogger("drumbeat")

_WORKER = re.compile(r"/job:worker/replica:\d+/task:(\d+)")
_PS = re.compile(r"/job:ps/replica:\d+/task:(\d+)")

_FIRST_OF_SEVERAL = re.compile(r"\(0\) +[A-Z_]+: +(.*)", re.DOTALL)

_NOISE = ("Graph execution error:", "Detected at node", "<stack traces", "File ", "[[")


class ServerLost(DrumbeatError):
    """A parameter server is gone, and with it the variables that it held."""


def told(error: tf.errors.OpError) -> Exception:
    """The error to raise for one of a function on a worker: of the same class, where it can be."""
    text = str(error)
    logger.debug("%s", text)
    gone = isinstance(error, tf.errors.UnavailableError | tf.errors.AbortedError)
    server = _PS.search(text)
    if gone and server:
        return ServerLost(
            f"ps {server[1]} is gone, and with it the variables that it held. They can only come "
            "back from a snapshot or a backup, in a new attempt of the job."
        )
    worker = _WORKER.search(text)
    where = f"worker {worker[1]}" if worker else "a worker"
    return type(error)(error.node_def, error.op, f"A step failed on {where}: {_cause(text)}")


def _cause(text: str) -> str:
    """What remains without the places in Python, and without what gRPC has to add."""
    several = _FIRST_OF_SEVERAL.search(text)
    if several:
        text = several[1].partition("\n  (1) ")[0]
    text = text.partition("Additional GRPC error information")[0]
    said = [line.strip() for line in text.splitlines()]
    said = [line for line in said if line and not line.startswith(_NOISE)]
    return " ".join(said) or text.strip()


class _Shorter(logging.Filter):
    """Makes one line of what the coordinator logs, and drops what is raised anyway."""

    def __init__(self) -> None:
        super().__init__()
        self._away: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        is_told = "encountered the following error when processing" in text
        if is_told or text.startswith("Start cancelling closures"):
            return False
        if not text.startswith(("Worker /job:worker", "Remote function on worker")):
            return True
        logger.debug("%s", text)
        if text.startswith("Remote"):
            return False  # for the moment only, or what follows from another failure
        worker = _WORKER.search(text)
        if worker and worker[1] not in self._away:
            self._away.add(worker[1])
            logger.warning(
                "worker %s does not answer. Another one makes its step; it gets steps again when "
                "it is back.",
                worker[1],
            )
        return False


@contextlib.contextmanager
def shorter() -> Iterator[None]:
    """Within this, TensorFlow logs failures of workers in one line."""
    filter_ = _Shorter()
    theirs = tf.get_logger()
    theirs.addFilter(filter_)
    try:
        yield
    finally:
        theirs.removeFilter(filter_)
