"""Chooses the environment of one node's workers: measured, as the job has it, or as usual."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from drumbeat.cluster.identity import TENSORFLOW
from drumbeat.launch import environment, machine
from drumbeat.launch.calibration import Finding, alternatives
from drumbeat.launch.machine import Machine
from drumbeat.launch.measuring import MeasuringError, measure
from drumbeat.launch.settings import RunSettings
from drumbeat.launch.tuning import TUNED, Entry, Key
from drumbeat.state.small_files import write_json

TIMEOUT_S = 60.0
"""For measuring; on a busy machine the imports of TensorFlow alone can take half of it."""
PATIENCE_S = 10.0
"""A run waits for it no longer than this after it could have begun."""


class Tuner:
    """Of one agent.

    What is chosen before the first attempt stays for the whole job. In exact mode everything
    is as usual, so that a result does not depend on what was measured.

    Args:
        settings: What runs.
        machine: Where.
        share: The part of it that a worker gets.
        run_dir: Folder of the run, which gets `environment.json`.
        note: Tells the user.

    Attributes:
        chosen: What is set otherwise than usual, as far as the user has not set it.
    """

    def __init__(
        self,
        settings: RunSettings,
        machine: Machine,
        share: environment.Share,
        run_dir: Path,
        note: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._share = share
        self._run_dir = run_dir
        self._note = note
        self._is_settled = False
        self._used: dict[str, str] | None = None
        self._entry: Entry | None = None
        self.chosen: dict[str, str] = {}

    @property
    def onednn(self) -> str:
        """TF_ENABLE_ONEDNN_OPTS of the workers."""
        return self._now()[environment.ONEDNN_VARIABLE]

    @property
    def is_changed(self) -> bool:
        """Whether a parent that was started with `variables` has others by now."""
        return self._used is not None and self._used != self._now()

    def variables(self) -> dict[str, str]:
        """The environment of the parent, which is about to be started with it."""
        if not self._is_settled:
            self._entry = self._known()
            self._take()
        self._used = self._now()
        return self._used

    def adopt(self, onednn: str) -> None:
        """The job's workers have `onednn`, which this node's must have, too, if they can."""
        if onednn and onednn != self.onednn:
            self.chosen[environment.ONEDNN_VARIABLE] = onednn
            if self.onednn == onednn:
                self._note(f"TF_ENABLE_ONEDNN_OPTS={onednn}, as the job's other workers have it.")
            self._write()

    async def settle(self, begin: asyncio.Future[None]) -> None:
        """Measures what this machine does best, if that is not known and can be kept.

        Args:
            begin: Nothing is timed before this is done.
        """
        if self._is_settled:
            return
        self._entry = self._known()
        if self._entry is None and self._measures:
            await self._measure(begin)
        self._take()
        self._is_settled = True
        self._say_what_the_user_has_set()
        self._write()

    @property
    def _measures(self) -> bool:
        machine, settings = self._machine, self._settings
        if machine.cache is None or self._is_fixed or settings.lone_task:
            return False
        if settings.ps or settings.has_servers:
            return False
        if settings.backend != TENSORFLOW:
            return False  # of which all of it is
        if settings.onednn or set(TUNED) & set(machine.environ):
            return False  # it has been decided, or would be measured with other settings
        return self._share.gpu is None and sys.platform == "linux" and machine.cache.is_writable

    @property
    def _is_fixed(self) -> bool:
        return self._settings.exact is not None

    def _known(self) -> Entry | None:
        cache = self._machine.cache
        return None if cache is None or self._is_fixed else cache.get(self._key)

    @property
    def _key(self) -> Key:
        return key_of(self._machine, self._share)

    async def _measure(self, begin: asyncio.Future[None]) -> None:
        cache = self._machine.cache
        assert cache is not None  # noqa: S101
        self._note(
            "Measuring once which settings of TensorFlow are fastest on this machine, for some "
            "seconds (drumbeat tune shows them)."
        )
        found = asyncio.ensure_future(find(self._machine, self._share, begin))
        try:
            await asyncio.wait({begin, found}, return_when=asyncio.FIRST_COMPLETED)
            await asyncio.wait({found}, timeout=PATIENCE_S)
            if not found.done():
                raise MeasuringError(f"it took longer than {PATIENCE_S:g} s")
            entry = found.result()
        except (MeasuringError, OSError) as error:
            self._note(f"Nothing was measured: {error}. The usual settings are used.")
            return
        finally:
            found.cancel()
            await asyncio.gather(found, return_exceptions=True)
        cache.put(self._key, entry)
        self._entry = entry
        for finding in entry.findings:
            self._note(str(finding))

    def _take(self) -> None:
        found = {} if self._entry is None else self._entry.variables
        if self._settings.onednn:
            found[environment.ONEDNN_VARIABLE] = self._settings.onednn
        self.chosen = {k: v for k, v in found.items() if k not in self._machine.environ}

    def _now(self) -> dict[str, str]:
        return environment.parent_variables(self._machine.environ, self._share, self.chosen)

    def _say_what_the_user_has_set(self) -> None:
        measured = {} if self._entry is None else self._entry.variables
        wanted = {**environment.usual_variables(self._share), **measured}
        name = environment.ONEDNN_VARIABLE
        given = self._machine.environ.get(name)
        if given is not None and given != wanted[name]:
            self._note(
                f"{name}={given} is set in the environment and stays; drumbeat would set "
                f"{wanted[name]}."
            )

    def _write(self) -> None:
        """`environment.json`: each variable that matters, its value, and who chose it."""
        now, given = self._now(), self._machine.environ
        names = dict.fromkeys((*environment.usual_variables(self._share), *TUNED))
        content: dict[str, Any] = {
            "variables": {
                name: {"value": now[name], "chosen_by": self._who(name, given)} for name in names
            },
            "cpus": list(self._share.cpus),
            "cpu_limit": self._machine.cpu_limit,
            "machine": str(self._key),
            "measured": [] if self._entry is None else [str(f) for f in self._entry.findings],
        }
        rank = self._settings.node_rank
        name = "environment.json" if rank == 0 else f"environment-node-{rank}.json"
        with contextlib.suppress(OSError):
            write_json(self._run_dir / name, content)

    def _who(self, name: str, given: Any) -> str:
        if name in given:
            return "the user"
        if name not in self.chosen:
            return "exact mode" if self._is_fixed else "default"
        measured = {} if self._entry is None else self._entry.variables
        return "measurement" if measured.get(name) == self.chosen[name] else "the job"


def key_of(here: Machine, share: environment.Share) -> Key:
    """What a measurement for workers with this share holds for."""
    return Key(
        cpu=machine.cpu_model(),
        cpus=len(here.cpus),
        limit=here.cpu_limit,
        tensorflow=machine.tensorflow_version(),
        threads=share.threads,
    )


async def find(here: Machine, share: environment.Share, begin: asyncio.Future[None]) -> Entry:
    """Measures what is best for workers with this share.

    Raises:
        MeasuringError: It can't be measured.
        OSError: No process can be started.
    """
    varied = alternatives(share.threads, machine.physical_cores(share.cpus), here.environ)
    findings: list[Finding] = []
    if varied:
        usual = environment.parent_variables(here.environ, share)
        findings = await measure(usual, varied, cpus=share.cpus, begin=begin, timeout_s=TIMEOUT_S)
    now = datetime.now().astimezone().isoformat(timespec="seconds")
    return Entry(findings=tuple(findings), measured=now)
