"""Which class does what --compress names."""

from __future__ import annotations

from drumbeat.cluster.compression import BFLOAT16, FLOAT16, INT8, POWERSGD, TOPK, Compress
from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.bytes8 import Bytes
from drumbeat.collectives.compression.halves import BFloat16, Float16
from drumbeat.collectives.compression.largest import Largest
from drumbeat.collectives.compression.low_rank import LowRank
from drumbeat.collectives.compression.machines import Machines
from drumbeat.collectives.compression.method import Method
from drumbeat.collectives.compression.residuals import Group
from drumbeat.collectives.compression.two_phase import TwoPhase


def make(communicator: Communicator, group: Group, machines: Machines) -> Method:
    """What sums the gradients of `group` by its method.

    Args:
        communicator: Of the workers.
        group: Its method is one that compresses.
        machines: Of the workers.
    """
    how = Compress.parse(group.method)
    if how.method == POWERSGD:
        return LowRank(communicator, group, how.rank)
    codecs = {
        BFLOAT16: BFloat16,
        FLOAT16: Float16,
        INT8: Bytes,
        TOPK: lambda: Largest(how.ratio),
    }
    return TwoPhase(communicator, group, codecs[how.method](), machines)
