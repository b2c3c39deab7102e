"""Loads and starts MPI, which happens when a worker first needs it and not at import."""

from __future__ import annotations

import ctypes
import functools
import threading
from typing import Any

from drumbeat.errors import CollectiveTimeout, ConfigError

# The agent's own deadline, which knows who is missing, comes first.
_BACKSTOP_S = 5.0


def started_mpi(timeout_s: float) -> Any:
    """MPI, initialised within `timeout_s`: by itself it waits for all workers for ever.

    Raises:
        ConfigError: It can't be loaded, or was started in an unusable way.
        CollectiveTimeout: Another worker never came.
    """
    outcome: list[Any] = []

    def start() -> None:
        try:
            outcome.append(_start())
        except Exception as error:
            outcome.append(error)

    thread = threading.Thread(target=start, name="MPI_Init", daemon=True)
    thread.start()
    thread.join(timeout_s + _BACKSTOP_S)
    if not outcome:
        raise CollectiveTimeout(
            f"MPI did not start within {timeout_s:g} s: another worker has not come to its "
            "strategy. Every worker must make the strategy, and at about the same time; look for "
            "code before it that depends on the rank, or allow more time with "
            "--collective-timeout."
        )
    if isinstance(outcome[0], Exception):
        raise outcome[0]
    return outcome[0]


def _start() -> Any:
    try:
        import mpi4py
    except ImportError as error:
        raise ConfigError(
            f"collectives are 'mpi' but mpi4py can't be imported ({error}). Install mpi4py and "
            "mpich, or choose --collectives tensorflow."
        ) from error
    mpi4py.rc.initialize = False
    # See `close`: a worker that ends must not wait for others without a deadline.
    mpi4py.rc.finalize = False
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise ConfigError(
            f"collectives are 'mpi' but no MPI library can be loaded ({error}). Install mpich, or "
            "choose --collectives tensorflow."
        ) from error
    if not MPI.Is_initialized():
        # mpi4py would keep Python's lock for as long as MPI_Init waits for the others, and so
        # keep the one who minds the deadline waiting too; ctypes lets go of it.
        library = ctypes.CDLL(MPI.__file__)
        library.MPI_Init_thread(None, None, MPI.THREAD_MULTIPLE, ctypes.byref(ctypes.c_int()))
        # As mpi4py does when it starts MPI: errors become exceptions.
        for comm in (MPI.COMM_SELF, MPI.COMM_WORLD):
            comm.Set_errhandler(MPI.ERRORS_RETURN)
    if MPI.Query_thread() < MPI.THREAD_SERIALIZED:
        raise ConfigError(
            "MPI was started without thread support before drumbeat came to it. Don't initialise "
            "MPI in the script, or with MPI_THREAD_MULTIPLE."
        )
    return MPI


def finalize() -> None:
    """MPI_Finalize through ctypes, which lets other threads run while it waits for workers."""
    ctypes.CDLL(loaded_mpi().__file__).MPI_Finalize()


def loaded_mpi() -> Any:
    """mpi4py's MPI module, which `started_mpi` has loaded."""
    from mpi4py import MPI

    return MPI


@functools.cache
def in_place() -> Any:
    """MPI_IN_PLACE."""
    return loaded_mpi().IN_PLACE


def reduction(name: str) -> Any:
    """The MPI operation for "sum", "min" or "max"."""
    mpi = loaded_mpi()
    return {"sum": mpi.SUM, "min": mpi.MIN, "max": mpi.MAX}[name]
