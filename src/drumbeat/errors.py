"""Every error that drumbeat raises on purpose, in one tree.

A message says what was received, what was expected and what to do. The command
line prints the message alone, without a traceback, and exits with
`exit_code`.
"""

from __future__ import annotations


class DrumbeatError(Exception):
    """Base of every error of drumbeat's own. Its text is written for users."""

    exit_code = 1

    def printed(self) -> str:
        """The text for a terminal: each line says whose it is, or is indented below such a line."""
        lines = str(self).splitlines() or [""]
        return "\n".join(each if each.startswith(" ") else f"drumbeat: {each}" for each in lines)


class ConfigError(DrumbeatError, ValueError):
    """A setting, an argument or TF_CONFIG can't be used as given."""

    exit_code = 2


class RendezvousError(DrumbeatError):
    """The agents of a job did not find each other in time, or do not trust each other."""

    exit_code = 3


class CollectiveError(DrumbeatError, RuntimeError):
    """A collective operation could not be completed."""


class CollectiveMismatch(CollectiveError):
    """Workers called different collectives, or the same one with other shapes or dtypes."""


class CollectiveTimeout(CollectiveError, TimeoutError):
    """A collective passed its deadline: another worker never came."""


class DataError(DrumbeatError, ValueError):
    """A dataset can't be split over the workers as asked."""


class StateError(DrumbeatError):
    """A snapshot or backup is damaged, or does not fit the model that it is to be restored to."""


class DivergenceError(DrumbeatError):
    """Workers no longer hold the same weights, though nothing that is known of explains it."""


PREEMPTED_CODE = 75
"""Exit code of a job that has saved its state to make room: started again, it goes on.

EX_TEMPFAIL of sysexits.h.
"""


class Regrouped(SystemExit):
    """Ends a worker after a snapshot, to go on with another number of nodes.

    No Exception: a script that goes on after failures must not go on after this.
    """
