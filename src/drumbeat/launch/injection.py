"""Carries out, in an agent, the failures of nodes and servers that `--inject` asks for."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from drumbeat.cluster.faults import Fault, FaultKind
from drumbeat.errors import RendezvousError
from drumbeat.state.progress import ProgressPage

POLL_S = 0.02
_TELL_S = 0.1
_SHELL = "/bin/sh"
_SIGNALS = {
    FaultKind.KILL: signal.SIGKILL,
    FaultKind.STOP: signal.SIGSTOP,
    FaultKind.CRASH: signal.SIGSEGV,
}


class NodeInjector:
    """Watches how far the workers of this node are, and strikes when it is time to.

    Args:
        faults: Those that are still to happen to this node, by their number in the job.
        servers: For those that happen to a server of it, the server's name.
        pages: Of this node's workers.
        signal_workers: Sends a signal to all of them.
        signal_worker: Sends one to a server.
        tell: Sends an event to the other agents.
        note: Tells the user.
    """

    def __init__(
        self,
        faults: Mapping[int, Fault],
        *,
        servers: Mapping[int, str],
        pages: Sequence[ProgressPage],
        signal_workers: Callable[[signal.Signals], None],
        signal_worker: Callable[[str, signal.Signals], None],
        tell: Callable[[dict[str, Any]], Awaitable[None]],
        note: Callable[[str], None],
    ) -> None:
        self.fired = 0
        self._faults = dict(faults)
        self._servers = servers
        self._pages = pages
        self._signal_workers = signal_workers
        self._signal_worker = signal_worker
        self._tell = tell
        self._note = note

    async def run(self) -> None:
        """Returns when all faults have struck."""
        while self._faults:
            step = max((page.read().step for page in self._pages), default=0)
            for number in [n for n, fault in self._faults.items() if fault.step <= step]:
                await self._strike(number, self._faults.pop(number))
            await asyncio.sleep(POLL_S)

    async def _strike(self, number: int, fault: Fault) -> None:
        self.fired |= 1 << number
        self._note(f"--inject {fault} strikes.")
        if number in self._servers:
            self._signal_worker(self._servers[number], _SIGNALS[fault.kind])
            return
        # The others keep it in mind: the agent that comes in this one's place must not do it again.
        with contextlib.suppress(RendezvousError):
            await self._tell({"type": "fired", "fault": number})
        await asyncio.sleep(_TELL_S)
        if fault.kind is FaultKind.AGENT_KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            self._be_silent(fault.seconds)

    def _be_silent(self, seconds: float) -> None:
        """Stops this agent and its workers for a while: for the others, as if a cable were cut.

        Cutting the connections themselves would take rights that an agent doesn't have.
        """
        self._signal_workers(signal.SIGSTOP)
        wake = f"sleep {seconds:.3f}; kill -CONT {os.getpid()}"
        waker = subprocess.Popen([_SHELL, "-c", wake], start_new_session=True)
        os.kill(os.getpid(), signal.SIGSTOP)
        self._signal_workers(signal.SIGCONT)
        waker.wait()


def of_node(faults: Sequence[Fault], node_rank: int, fired: int) -> dict[int, Fault]:
    """The faults that are still to happen to a node, by their number in the job.

    Args:
        faults: All of the job.
        node_rank: The node.
        fired: Bit i is set where fault i has happened.
    """
    return {
        number: fault
        for number, fault in enumerate(faults)
        if fault.kind.is_of_node and fault.place == node_rank and not fired >> number & 1
    }
