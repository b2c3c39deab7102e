"""Writes backups in the background, so that training doesn't wait for a disk or a network."""

from __future__ import annotations

import logging
import threading

from drumbeat.state.backups import Backups, Content

logger = logging.getLogger("drumbeat")


class BackupWriter:
    """One thread that writes what it is given, the newest first.

    The thread is a daemon: a process that ends doesn't wait for it, and a backup that
    isn't finished then is not there. `flush` waits.

    Args:
        backups: Where they go. Nothing else may write there while this does.
    """

    def __init__(self, backups: Backups) -> None:
        self._backups = backups
        self._changed = threading.Condition()
        self._waiting: Content | None = None
        self._writing = False
        self._thread: threading.Thread | None = None
        self._failing = False

    @property
    def is_busy(self) -> bool:
        """Whether something is being written, or waits for it."""
        with self._changed:
            return self._writing or self._waiting is not None

    def put(self, content: Content) -> None:
        """Has `content` written as soon as nothing else is; it takes the place of one that waits.

        Returns at once and raises nothing: training goes on without a backup. The
        first of failures in a row is told in a warning.
        """
        with self._changed:
            self._waiting = content
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._write_all, name="drumbeat-backups", daemon=True
                )
                self._thread.start()
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Waits until all that was given is written, or has failed.

        Returns:
            Whether the last one that was given is written.
        """
        with self._changed:
            done = self._changed.wait_for(
                lambda: not self._writing and self._waiting is None, timeout_s
            )
            return done and not self._failing

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting is not None)
                content, self._waiting = self._waiting, None
                self._writing = True
            assert content is not None  # noqa: S101
            problem = self._write(content)
            with self._changed:
                self._failing = problem is not None
                self._writing = False
                self._changed.notify_all()
            # Let go of what may be gigabytes.
            del content

    def _write(self, content: Content) -> Exception | None:
        place = self._backups.folder.name
        try:
            self._backups.write(content)
        except Exception as error:  # this thread must live on, whatever a driver raises
            if not self._failing:
                why = error.strerror if isinstance(error, OSError) and error.strerror else error
                logger.warning(
                    "The backup of step %d could not be written to %s: %s. Training goes on; the "
                    "next backup is tried as usual, and this is not said again until one succeeds.",
                    content.about.step,
                    place,
                    why,
                )
            return error
        if self._failing:
            logger.warning("Backups are written to %s again.", place)
        return None
