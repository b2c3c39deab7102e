"""Runs probes side by side, and lets them take turns, so that they find the machine alike."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import drumbeat
from drumbeat.errors import DrumbeatError
from drumbeat.launch import probe
from drumbeat.launch.calibration import Alternative, Finding, judge

ROUNDS = 6
_OPERATION_S = 0.012
"""For so long each operation is repeated in a round: longer than a time slice of Linux, mostly."""
_MOST_COUNTS = 60
_FIRST_COUNT = 3
_BOOTSTRAP = (
    "import sys\n"
    "sys.path[:] = [p for p in sys.path if p]\n"
    "if sys.argv[1] not in sys.path: sys.path.append(sys.argv[1])\n"
    "from drumbeat.launch.probe import main\n"
    "main(sys.argv[2:])\n"
)


class MeasuringError(DrumbeatError):
    """The probes did not do what they should."""


async def measure(
    usual: Mapping[str, str],
    alternatives: Sequence[Alternative],
    *,
    cpus: Sequence[int],
    begin: asyncio.Future[None],
    timeout_s: float,
) -> list[Finding]:
    """Times the usual settings and the alternatives to them.

    Args:
        usual: The complete environment of a worker.
        alternatives: What they set otherwise.
        cpus: Where a worker runs; empty for anywhere.
        begin: Nothing is timed before this is done.
        timeout_s: Deadline for all of it.

    Raises:
        MeasuringError: A probe failed, or it took too long.
    """
    environments = [dict(usual), *({**usual, **a.variables} for a in alternatives)]
    probes = [_Probe(variables, cpus) for variables in environments]
    try:
        rounds = await asyncio.wait_for(_take_turns(probes, begin), timeout_s)
    except asyncio.TimeoutError:
        raise MeasuringError(f"it took longer than {timeout_s:g} s") from None
    finally:
        for each in probes:
            await each.end()
    first, *others = rounds
    return [judge(a, first, other) for a, other in zip(alternatives, others, strict=True)]


async def _take_turns(
    probes: Sequence[_Probe], begin: asyncio.Future[None]
) -> list[list[dict[str, float]]]:
    await asyncio.gather(*(each.start() for each in probes))
    await asyncio.gather(asyncio.shield(begin), *(each.ready() for each in probes))
    names = list(probe.OPERATIONS)
    once = await probes[0].time(dict.fromkeys(names, _FIRST_COUNT))
    counts = {
        name: min(max(round(_OPERATION_S * _FIRST_COUNT / max(once[name], 1e-9)), 1), _MOST_COUNTS)
        for name in names
    }
    results: list[list[dict[str, float]]] = [[] for _ in probes]
    for number in range(ROUNDS):
        # Whoever comes first finds other caches and another pace of the processor.
        order = list(enumerate(probes))
        for index, each in order if number % 2 == 0 else reversed(order):
            results[index].append(await each.time(counts))
    return results


class _Probe:
    """A process that times operations, see `drumbeat.launch.probe`."""

    def __init__(self, variables: Mapping[str, str], cpus: Sequence[int]) -> None:
        self._variables = variables
        self._cpus = ",".join(map(str, cpus))
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        root = str(Path(drumbeat.__file__).parents[1])
        arguments = ["-c", _BOOTSTRAP, root, str(os.getpid()), self._cpus]
        self._process = await asyncio.create_subprocess_exec(
            sys.executable,
            *arguments,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=dict(self._variables),
            start_new_session=True,
        )

    async def ready(self) -> None:
        if await self._line() != probe.READY:
            raise MeasuringError("TensorFlow can't be imported, or run")

    async def time(self, counts: Mapping[str, int]) -> dict[str, float]:
        process = self._process
        assert process is not None  # noqa: S101
        assert process.stdin is not None  # noqa: S101
        process.stdin.write((json.dumps(counts) + "\n").encode())
        await process.stdin.drain()
        try:
            return {
                name: float(seconds) for name, seconds in json.loads(await self._line()).items()
            }
        except ValueError:
            raise MeasuringError("a process that measures has ended") from None

    async def end(self) -> None:
        process = self._process
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()

    async def _line(self) -> str:
        process = self._process
        assert process is not None  # noqa: S101
        assert process.stdout is not None  # noqa: S101
        return (await process.stdout.readline()).decode().strip()
