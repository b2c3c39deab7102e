"""A deadline for calls that can't be told one."""

from __future__ import annotations

import threading
import time

import pytest

from drumbeat.collectives.watchdog import Watchdog

pytestmark = pytest.mark.timeout(30)


class Alarm:
    """Counts how often it was raised."""

    def __init__(self) -> None:
        self.count = 0
        self.raised = threading.Event()

    def __call__(self) -> None:
        self.count += 1
        self.raised.set()


@pytest.mark.parametrize("earlier_timeouts_s", [(), (60.0,), (0.5, 60.0, 0.4)])
def test_raises_the_alarm_once_when_a_call_takes_too_long(
    earlier_timeouts_s: tuple[float, ...],
) -> None:
    alarm = Alarm()
    watchdog = Watchdog(alarm)
    for timeout_s in earlier_timeouts_s:
        with watchdog.within(timeout_s):
            pass
    begin = time.monotonic()
    with watchdog.within(0.2):
        assert alarm.raised.wait(10)
        took_s = time.monotonic() - begin
        time.sleep(0.3)
    assert alarm.count == 1
    assert took_s >= 0.2


def test_calls_that_end_in_time_raise_nothing_together() -> None:
    alarm = Alarm()
    watchdog = Watchdog(alarm)
    for _ in range(8):
        with watchdog.within(0.4):
            time.sleep(0.1)
    time.sleep(0.5)
    assert alarm.count == 0


def test_a_call_that_fails_is_watched_no_more() -> None:
    alarm = Alarm()
    watchdog = Watchdog(alarm)
    with pytest.raises(ValueError, match="mine"), watchdog.within(0.1):
        raise ValueError("mine")
    time.sleep(0.3)
    assert alarm.count == 0


def test_one_thread_serves_all_calls() -> None:
    watchdog = Watchdog(Alarm())
    before = threading.active_count()
    for _ in range(5):
        with watchdog.within(5):
            pass
    assert threading.active_count() == before + 1
