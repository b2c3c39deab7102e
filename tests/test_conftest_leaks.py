"""The leak checks of conftest.py fail the tests that they should fail, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

LEAKY = {
    "variable": ("os.environ['LEFT_BEHIND'] = '1'", "LEFT_BEHIND: None -> '1'"),
    "removed_variable": ("os.environ.pop('HOME')", "HOME: "),
    "thread": (
        "threading.Thread(target=time.sleep, args=(4,), name='lingering').start()",
        "non-daemon threads running: 'lingering'",
    ),
    "child": ("subprocess.Popen(['sleep', '20'])", "(sleep 20)"),
    "orphan": (
        "subprocess.run(['sh', '-c', 'sleep 21 >/dev/null 2>&1 &'], check=True)",
        "(sleep 21)",
    ),
}

CLEAN = {
    "monkeypatch": "monkeypatch.setenv('LEFT_BEHIND', '1')",
    "daemon": "threading.Thread(target=time.sleep, args=(4,), daemon=True).start()",
    "joined": "subprocess.run(['sleep', '0'], check=True)",
    "soon_over": "threading.Thread(target=time.sleep, args=(0.1,)).start()",
}


def test_only_leaks_fail(pytester: pytest.Pytester) -> None:
    own = (Path(__file__).parent / "conftest.py").read_text()
    pytester.makeconftest(own + "\nPROCESS_GRACE_S = 1.0\nTHREAD_GRACE_S = 0.5\n")
    bodies = {name: body for name, (body, _) in LEAKY.items()} | CLEAN
    pytester.makepyfile(
        "import os, subprocess, threading, time\n"
        + "".join(f"def test_{name}(monkeypatch):\n    {body}\n" for name, body in bodies.items())
    )
    result = pytester.runpytest_subprocess("-p", "no:cacheprovider", timeout=60)
    result.assert_outcomes(passed=len(bodies), errors=len(LEAKY))
    output = result.stdout.str()
    for name, (_, expected) in LEAKY.items():
        assert f"ERROR at teardown of test_{name} " in output
        assert expected in output
