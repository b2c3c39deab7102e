"""The page that a worker and its agent share."""

from __future__ import annotations

import os
import time

from drumbeat.state.progress import FD_VARIABLE, Activity, ProgressPage, Request


def test_the_agent_sees_what_the_worker_wrote_last() -> None:
    page = ProgressPage.create()
    try:
        fresh = page.read()
        assert (fresh.step, fresh.phase, fresh.activity) == (0, -1, Activity.STARTING)
        began_s = time.monotonic()
        pid = os.fork()
        if pid == 0:
            worker = ProgressPage.from_env({FD_VARIABLE: str(page.fd)})
            assert worker is not None
            worker.update(Activity.TRAINING, step=37, phase=1, epoch=2, slowest_step_s=0.25)
            worker.update(detail="all_reduce 7 (gradients)")
            worker.fire(3)
            os._exit(int(worker.requests()))
        _, status = os.waitpid(pid, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        seen = page.read()
        assert (seen.step, seen.phase, seen.epoch) == (37, 1, 2)
        assert seen.activity == Activity.TRAINING
        assert seen.detail == "all_reduce 7 (gradients)"
        assert seen.slowest_step_s == 0.25
        assert seen.fired == 1 << 3
        assert began_s <= seen.alive_s <= time.monotonic()
    finally:
        page.close()


def test_the_worker_sees_what_was_asked_of_it() -> None:
    page = ProgressPage.create()
    try:
        worker = ProgressPage(os.dup(page.fd))
        assert worker.requests() == Request(0)
        page.request(Request.STOP)
        assert worker.requests() == Request.STOP
        worker.update(step=1)
        assert worker.requests() == Request.STOP
        worker.close()
    finally:
        page.close()


def test_an_update_costs_little() -> None:
    page = ProgressPage.create()
    try:
        began_s = time.perf_counter()
        for step in range(10_000):
            page.update(step=step, detail="all_reduce 7 (gradients)")
        assert (time.perf_counter() - began_s) / 10_000 < 100e-6
        assert page.read().step == 9_999
    finally:
        page.close()


def test_only_a_worker_that_says_so_acts_on_a_stop() -> None:
    page = ProgressPage.create()
    try:
        assert not page.accepts_stop
        worker = ProgressPage(os.dup(page.fd))
        worker.accept_stop()
        worker.update(step=1)
        page.request(Request.STOP)
        assert page.accepts_stop
        worker.close()
    finally:
        page.close()
