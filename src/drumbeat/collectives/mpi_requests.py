"""MPI operations under way: started, polled with a deadline, given up."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from drumbeat.collectives.calls import Call, workers
from drumbeat.collectives.mpi_library import loaded_mpi
from drumbeat.errors import CollectiveError, CollectiveTimeout

if TYPE_CHECKING:
    from mpi4py import MPI

# Polls before the first look at the clock: about 50 µs, several times a small collective.
_SPIN_POLLS = 200
# How long a worker with a core of its own polls on before it sleeps between polls.
_SPIN_S = 2e-3
_SHORTEST_PAUSE_S = 50e-6
LONGEST_PAUSE_S = 1e-3
# After this long, look for notes of workers that gave up.
_NOTES_AFTER_S = 0.05
# How long a worker that gives up collects the notes of the others.
_SURVEY_S = 1.0
_NOTE_TAG = 7


class MpiRequests:
    """Starts operations and waits for them, at most as long as it was told.

    Args:
        comm: Whose operations they are.
        own_core: Whether this process has a processor to itself.
    """

    def __init__(self, comm: MPI.Intracomm, *, own_core: bool) -> None:
        self._comm = comm
        self._rank, self._size = comm.Get_rank(), comm.Get_size()
        self._own_core = own_core
        self._mpi = loaded_mpi()
        # MPI may still write to the buffers of operations that were given up.
        self.abandoned: list[Any] = []

    def start(self, operation: Callable[[], Any], call: Call) -> Any:
        """What `operation` returns, an MPI request.

        Raises:
            CollectiveError: MPI has failed.
        """
        try:
            return operation()
        except self._mpi.Exception as error:
            raise self._broken(call, error) from error

    def wait(
        self, requests: Sequence[Any], call: Call, timeout_s: float, *, idle: bool, keep: Any
    ) -> None:
        """Polls until all requests, from `start`, are complete; else as `wait_until`."""
        one = requests[0].Test if len(requests) == 1 else None
        are_over = one or (lambda: self._mpi.Request.Testall(list(requests)))
        self.wait_until(are_over, call, timeout_s, idle=idle, keep=(requests, keep))

    def wait_until(
        self, is_over: Callable[[], bool], call: Call, timeout_s: float, *, idle: bool, keep: Any
    ) -> None:
        """Polls until `is_over` says so.

        Args:
            is_over: Lets MPI work.
            call: For messages.
            timeout_s: How long to wait, seconds.
            idle: While workers have yet to arrive it pauses between polls, so that they get
                the processor; the longer it has waited, the longer.
            keep: The buffers that MPI reads and writes.

        Raises:
            CollectiveTimeout: It took longer, or another worker has given up.
            CollectiveError: MPI has failed.
        """
        begin_s = time.monotonic()
        polls = 0
        try:
            while not is_over():
                polls += 1
                if polls < _SPIN_POLLS:
                    continue
                waited_s = time.monotonic() - begin_s
                if waited_s > timeout_s or (waited_s > _NOTES_AFTER_S and self.has_note()):
                    self.abandoned.append(keep)
                    raise CollectiveTimeout(self.survey(call, waited_s, timeout_s, arriving=idle))
                if idle and not (self._own_core and waited_s < _SPIN_S):
                    time.sleep(min(max(waited_s * 0.02, _SHORTEST_PAUSE_S), LONGEST_PAUSE_S))
                else:
                    os.sched_yield()
        except self._mpi.Exception as error:
            raise self._broken(call, error) from error

    def has_note(self) -> bool:
        """Whether another worker has told that it gave up."""
        # Twice: MPI tells what it knows before it looks for what has come since.
        return any(self._comm.Iprobe(self._mpi.ANY_SOURCE, _NOTE_TAG) for _ in range(2))

    def survey(self, call: Call, waited_s: float, timeout_s: float, *, arriving: bool) -> str:
        """Tells the others that we give up, hears which of them do, and words the message.

        Who waits in a collective answers at once, so those who don't answer are
        not in one.
        """
        notes = [
            self._comm.Isend(np.array([call.sequence], np.int64), peer, _NOTE_TAG)
            for peer in range(self._size)
            if peer != self._rank
        ]
        self.abandoned.append(notes)
        heard: set[int] = set()
        deadline_s = time.monotonic() + _SURVEY_S
        while len(heard) < self._size - 1 and time.monotonic() < deadline_s:
            if not self.has_note():
                time.sleep(LONGEST_PAUSE_S)
                continue
            status = self._mpi.Status()
            self._comm.Recv(np.empty(1, np.int64), self._mpi.ANY_SOURCE, _NOTE_TAG, status)
            heard.add(status.Get_source())
        silent = [r for r in range(self._size) if r != self._rank and r not in heard]
        return _timeout_message(
            self._rank, call, waited_s, timeout_s, silent, sorted(heard), arriving=arriving
        )

    def _broken(self, call: Call, error: Exception) -> CollectiveError:
        return CollectiveError(
            f"worker {self._rank} lost its connection in {call}: MPI says {error}. Another worker "
            "has probably died; look into its log."
        )


def has_own_core(local_workers: int) -> bool:
    """Whether each of so many workers on this machine can have a processor to itself.

    As `drumbeat run` pins workers: each to cores of its own, or none.
    """
    if not hasattr(os, "sched_getaffinity"):
        return (os.cpu_count() or 1) >= local_workers
    usable = len(os.sched_getaffinity(0))
    return usable < (os.cpu_count() or 1) or usable >= local_workers


def _timeout_message(
    rank: int,
    call: Call,
    waited_s: float,
    timeout_s: float,
    silent: list[int],
    heard: list[int],
    *,
    arriving: bool,
) -> str:
    waited = f"worker {rank} waited {waited_s:.3g} s in {call}"
    if silent and arriving:
        return (
            f"{waited} for {workers(silent)}, which never came. Does the script call fit, evaluate "
            "or the like on some workers only (if chief:)? All have to. Otherwise look into the "
            f"log of {workers(silent)}, or allow more time (--collective-timeout, now "
            f"{timeout_s:g} s)."
        )
    if silent:
        return (
            f"{waited}, which all workers began; {workers(silent)} stopped answering. Look into "
            f"the log of {workers(silent)}, or allow more time (now {timeout_s:g} s)."
        )
    if waited_s < timeout_s:
        return (
            f"worker {rank} came to {call} too late: {workers(heard)} had given up waiting. "
            f"Find out what kept it busy, or allow more time (now {timeout_s:g} s)."
        )
    return (
        f"{waited}, and so did all the others, but the data did not arrive. The network "
        f"between them is too slow or broken, or needs more time (now {timeout_s:g} s)."
    )
