"""Has the process that forks a node's workers ready, in the environment that is chosen for them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from drumbeat.cluster.identity import JAX, TENSORFLOW
from drumbeat.launch.processes import ParentError, ParentProcess
from drumbeat.launch.settings import RunSettings
from drumbeat.launch.tuner import Tuner

PARENT_TRIES = 5
_LIBRARIES = {TENSORFLOW: "TensorFlow", JAX: "JAX"}
SLOW_START_S = 8.0  # After this long without a sign, say what is going on.


class Forker:
    """Of one agent. `begin` comes first, and may come before there is an event loop.

    Args:
        settings: What runs.
        tuner: Chooses the environment.
        preload: Module that the parent imports.
        run_dir: Folder for its log; exists.
        note: Tells the user.
    """

    def __init__(
        self,
        settings: RunSettings,
        tuner: Tuner,
        *,
        preload: str,
        run_dir: Path,
        note: Callable[[str], None],
    ) -> None:
        self.tuner = tuner
        self._settings = settings
        self._preload = preload
        rank = settings.node_rank
        self._log = run_dir / ("parent.log" if rank == 0 else f"parent-node-{rank}.log")
        self._note = note
        self._parent: ParentProcess | None = None

    @property
    def parent(self) -> ParentProcess:
        """The process, once `begin` was called."""
        assert self._parent is not None  # noqa: S101
        return self._parent

    def begin(self) -> None:
        """Starts the process; its imports go on while the caller does other things.

        Raises:
            OSError: No process can be started, or its log can't be written.
        """
        self._parent = ParentProcess.start(self.tuner.variables(), self._preload, self._log)

    async def have(self) -> None:
        """Returns when the process can fork, in the environment that is chosen by now.

        Raises:
            ParentError: TensorFlow can't be imported, or not in time.
        """
        if self.parent.is_ready and self.parent.is_alive and not self.tuner.is_changed:
            return
        imported = asyncio.get_running_loop().create_future()
        measured = asyncio.ensure_future(self.tuner.settle(imported))
        try:
            await self._import()
            imported.set_result(None)
            await measured
            if self.tuner.is_changed:
                await self._import()
        finally:
            measured.cancel()
            await asyncio.gather(measured, return_exceptions=True)

    async def stop(self) -> None:
        """Ends the process, and with it whatever of the workers is left."""
        if self._parent is not None:
            await self._parent.stop()

    async def _import(self) -> None:
        for tries_left in reversed(range(PARENT_TRIES)):
            if self.parent.is_ready or self.tuner.is_changed:
                self.parent.kill()
                self.begin()
            slow = asyncio.get_running_loop().call_later(
                SLOW_START_S,
                self._note,
                f"Loading {_LIBRARIES[self._settings.backend]} takes its time on this machine…",
            )
            try:
                await self.parent.ready(self._settings.start_timeout_s)
                return
            except ParentError as error:
                # What it can't import, it never can; a kill is chance, as it is of a worker.
                if not (tries_left and self._settings.max_restarts and self.parent.was_killed):
                    raise
                self._note(f"{error} It is started again.")
                self.parent.kill()
                self.begin()
            finally:
                slow.cancel()
