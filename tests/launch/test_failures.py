"""Which failure is shown, and what of its output."""

from __future__ import annotations

import pytest

from drumbeat.launch.failures import Failure, explanation, root_cause

CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3
ValueError: y
"""


def failure(code: int = 1, **more: object) -> Failure:
    return Failure(name="worker 1", host="h", code=code, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("code", "exit_code", "how"),
    [
        (1, 1, "failed with exit code 1."),
        (-9, 137, "was killed by SIGKILL (out of memory?)."),
        (-11, 139, "was killed by SIGSEGV."),
        (-99, 227, "was killed by signal 99."),
        (1000, 255, "failed with exit code 1000."),
    ],
)
def test_codes_and_signals(code, exit_code, how):
    assert failure(code).exit_code == exit_code
    assert failure(code).heading == f"worker 1 on h {how}"


def test_the_first_that_is_no_echo_is_the_cause():
    echo, cause, later = failure(1, consequence=True), failure(2), failure(3)
    assert root_cause([echo, cause, later]) is cause
    assert root_cause([echo]) is echo


def test_a_crash_is_the_cause_only_where_nothing_else_is():
    echo, crash, lost = failure(1, consequence=True), failure(-11), failure(1, how="dropped out")
    assert root_cause([echo, crash]) is crash
    assert root_cause([crash, echo, lost]) is lost
    assert root_cause([crash, failure(-6)]) is crash


def test_failures_travel_and_malformed_ones_do_no_harm():
    sent = failure(-9, text="why", consequence=True, how="was lost")
    assert Failure.from_event(sent.to_event()) == sent
    odd = Failure.from_event({"type": "failed", "name": 3, "code": "x", "text": None})
    assert odd.exit_code == 1
    assert odd.heading.startswith("3 on another node")


@pytest.mark.parametrize(
    ("stderr", "stdout", "shown"),
    [
        ("warning\n" + CHAINED, "", CHAINED.rstrip()),
        (
            CHAINED + "later\nTraceback (most recent call last):\nE: z\n",
            "",
            "Traceback (most recent call last):\nE: z",
        ),
        (
            "x\nFatal Python error: Aborted\n\nCurrent\n",
            "",
            "Fatal Python error: Aborted\n\nCurrent",
        ),
        ("only this\n", "output\n", "only this"),
        ("", "1/3\r2/3\nlast line\n", "2/3\nlast line"),
        ("", "", ""),
    ],
)
def test_explanation(stderr, stdout, shown):
    assert explanation(stderr, stdout) == shown


def test_an_explanation_is_bounded():
    assert len(explanation("Traceback (most recent call last):\n" + "x" * 10**6, "")) <= 16384
