"""One phase of training as it runs: steps are counted, snapshots taken, stops obeyed."""

from __future__ import annotations

import collections
import dataclasses
import logging
import os
import time
from typing import Any, Protocol

from drumbeat.cluster.rehearsing import Rehearsing
from drumbeat.collectives.communicator import Communicator
from drumbeat.errors import PREEMPTED_CODE, Regrouped, StateError
from drumbeat.state.cadence import Decision
from drumbeat.state.format import State
from drumbeat.state.progress import Activity
from drumbeat.strategies import choose
from drumbeat.training import randomness, snapshots
from drumbeat.training.beat import Beat
from drumbeat.training.holdings import Holdings
from drumbeat.training.jit_record import Record
from drumbeat.training.journal import Journal

logger = logging.getLogger("drumbeat")

_RECENT_STEPS = 32
_OTHER_PARTS = (
    "Each worker has data of its own (a dataset function, or AutoShardPolicy FILE, HINT or OFF), "
    "which %d workers share out otherwise than %d did. The epoch goes on after as many steps as "
    "were made, but some of its examples are trained twice and others not at all."
)


class UnderWay(Protocol):
    """Steps that others make while this process goes on, as with parameter servers."""

    @property
    def is_quiet(self) -> bool:
        """Whether there is none, so that what they change is that of the steps counted."""
        ...

    def drain(self) -> None:
        """No new ones until those that are under way have been counted."""
        ...


class Phase:
    """What `fit` and `resumable` have in common.

    Args:
        journal: Of this worker.
        communicator: Of the workers that train together.
        number: The phase's; -1 for a training of this worker's own, which isn't kept.

    Attributes:
        beat: Of all workers.
        under_way: Steps beyond those that are counted, if there may be such.
    """

    kind = ""
    under_way: UnderWay | None = None

    def __init__(self, journal: Journal, communicator: Communicator, number: int) -> None:
        self.journal = journal
        self.communicator = communicator
        self.number = number
        every = journal.identity.snapshot_every
        self.is_kept = number >= 0 and (every != 0 or journal.backups.are_kept)
        self.beat = Beat(communicator, journal.page, every if number >= 0 else 0, journal.last_kept)
        self.beat.backup_is_overdue = lambda: journal.backups.is_overdue
        self.beat.may_regroup = self.is_kept
        self._recent_s: collections.deque[float] = collections.deque(maxlen=_RECENT_STEPS)
        self._step_began_s = 0.0
        self._last_snapshot_step = -1
        self._out_of_memory = False
        self._former_size = communicator.size
        self._is_stopping = False
        self._awaited: Decision | None = None

    # What kinds of phases provide.

    def holdings(self) -> Holdings:
        """The variables that it trains with."""
        raise NotImplementedError

    def python(self) -> dict[str, Any]:
        """What else this worker holds, for pickle."""
        raise NotImplementedError

    def facts(self, *, in_epoch: bool) -> dict[str, Any]:
        """Where it is, in plain values, alike on all workers."""
        raise NotImplementedError

    # Around the phase.

    def __enter__(self) -> None:
        self.journal.active = self

    def __exit__(self, *raised: object) -> None:
        self.journal.active = None
        self.journal.doing(Activity.SCRIPT)

    def finish(self) -> None:
        """The phase has come to its end, on all workers."""
        if not self.is_kept or self._is_stopping:
            return
        began_s = time.monotonic()
        state = self._take(in_epoch=False, last=True)
        if state is not None:
            self.journal.finish(state)
            self.beat.took_snapshot(began_s)
            self.journal.last_kept = self.beat.kept

    def put_back(self, state: State) -> dict[str, Any]:
        """Brings back variables and random numbers; returns what else `python` had given."""
        holdings = self.holdings()
        if snapshots.build_optimizers(state, holdings):
            holdings = self.holdings()
        try:
            snapshots.put_back(state, holdings, self.communicator.rank, self.communicator.size)
            python = snapshots.python_of(state, self.communicator.rank)
        except StateError as error:
            raise StateError(f"{error}{self._came_from}") from None
        randomness.put_back(python["random"])
        self._former_size = state.meta["workers"]
        return python

    def data_goes_on(self, data: Any) -> None:
        """The batches of an epoch that are left are about to be taken from `data`."""
        size = self.communicator.size
        is_new = self._former_size != size and getattr(data, "is_own", False)
        if is_new and self.communicator.rank == 0:
            logger.warning(_OTHER_PARTS, size, self._former_size)

    @property
    def _came_from(self) -> str:
        place = self.journal.backups.origin
        if not place:
            return ""
        return (
            f" The state came from the backups in {place}. To train another model than theirs, "
            "give another folder."
        )

    def snapshot_python(self, state: State) -> dict[str, Any]:
        """What `python` had given on this worker."""
        return snapshots.python_of(state, self.communicator.rank)

    # While it runs.

    def epoch_begins(self, epoch: int) -> None:
        """The steps of an epoch are about to begin."""
        self._step_began_s = time.monotonic()
        if self.journal.page is not None:
            # How long the first step takes is not known: it may have to fill a shuffle's buffer.
            self.journal.page.update(
                Activity.TRAINING, epoch=epoch, step=self.journal.step, slowest_step_s=0.0
            )

    def steps_are_over(self) -> None:
        """The steps of an epoch are made; what comes next may take longer."""
        page = self.journal.page
        if page is not None and page.activity is Activity.TRAINING:
            page.update(Activity.BETWEEN_EPOCHS)

    def step_finished(self, steps: int = 1) -> None:
        """A step of all workers is finished, or several that were made at once.

        Raises:
            SystemExit: The job was asked to stop, and has saved its state.
            DivergenceError: The workers no longer hold the same.
        """
        journal = self.journal
        before = journal.step
        if self.number >= 0 or journal.identity.world_size == 1:
            # Others may not train at all: their counts must stay alike.
            journal.step += steps
        now_s = time.monotonic()
        self._recent_s.append(now_s - self._step_began_s)
        if journal.page is not None:
            journal.page.update(step=journal.step, slowest_step_s=max(self._recent_s))
        decision = self.beat.after_step(due=journal.backups.is_due(before, journal.step))
        if self.under_way is not None:
            decision = self._when_quiet(decision, self.under_way)
        if decision is not None:
            self._follow(decision, in_epoch=True)
        if journal.injector is not None:
            journal.injector.after_step(journal.step)
        self._step_began_s = time.monotonic()

    def _when_quiet(self, decision: Decision | None, under_way: UnderWay) -> Decision | None:
        """What to do now: what takes a state waits until it's that of the steps counted."""
        before, self._awaited = self._awaited, None
        if before is not None:
            last = before if decision is None else decision
            decision = dataclasses.replace(
                last,
                snapshot=before.snapshot or last.snapshot,
                stop=before.stop or last.stop,
                regroup=before.regroup or last.regroup,
            )
        if decision is None or under_way.is_quiet:
            return decision
        if decision.snapshot or decision.stop or decision.regroup:
            under_way.drain()
            self._awaited = decision
            return None
        return decision

    def between_epochs(self) -> None:
        """A beat between two epochs, on all workers."""
        decision = self.beat.now(due=self.journal.backups.epoch_ends_matter)
        self._follow(decision, in_epoch=False)

    def mended(self) -> None:
        """What differed between workers, and was known to, no longer does."""
        self.beat.held = self._out_of_memory

    def _follow(self, decision: Decision, *, in_epoch: bool) -> None:
        # A loop can't tell from a `break` what the end of the process does to it.
        self._is_stopping = decision.stop or decision.regroup
        if decision.snapshot and self.is_kept and self.journal.step != self._last_snapshot_step:
            began_s = time.monotonic()
            state = self._take(in_epoch=in_epoch)
            if state is not None:
                self._write(state)
            self.beat.took_snapshot(began_s)
        if decision.regroup and self.journal.step == self._last_snapshot_step:
            raise Regrouped(PREEMPTED_CODE)
        self._is_stopping = decision.stop
        if decision.stop:
            self.journal.doing(Activity.SAVING)
            self.journal.backups.stopping(self.communicator)
            if self.communicator.rank == 0:
                logger.warning(
                    "Stopped after step %d, as asked for.%s", self.journal.step, self._what_next()
                )
            # Not an Exception: a script that goes on after failures must not go on after this.
            raise SystemExit(PREEMPTED_CODE)

    def _what_next(self) -> str:
        if Rehearsing.from_env(os.environ) is not None:
            return ""  # nobody starts it again
        goes_on = "the training goes on from there"
        if not self.journal.backups.are_kept:
            goes_on = "this training begins anew, as no backups are kept of it"
        return f" Started again, {goes_on} (exit code {PREEMPTED_CODE})."

    def _take(self, *, in_epoch: bool, last: bool = False) -> State | None:
        meta = {"phase": self.number, "kind": self.kind, "finished": last, "jit": Record.chosen()}
        try:
            return snapshots.take(
                self.holdings(),
                {"random": randomness.state(), **self.python()},
                self.communicator,
                step=self.journal.step,
                meta={**meta, **self.facts(in_epoch=in_epoch)},
                units=self._units(),
            )
        except snapshots.KnownToDiffer:
            self.beat.held = True
            return None

    def _units(self) -> tuple[int, ...]:
        strategy = choose.existing()
        if strategy is None or self.communicator.size == 1:
            return (1,) * self.communicator.size
        return strategy.extended.shares.units

    def _write(self, state: State) -> None:
        self._last_snapshot_step = state.step
        try:
            self.journal.keep(state)
        except StateError as error:
            logger.warning("%s No snapshots are taken from now on.", error)
            self.beat.held = self._out_of_memory = True
