"""Workers that something else than `drumbeat run` starts, with TF_CONFIG in place."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from drumbeat.cli import hook

SCRIPT = Path(__file__).with_name("multi_worker_fit.py")
DEADLINE_S = 150
_WEIGHTS = re.compile(r"^weights (\[.*\])$", re.MULTILINE)


def _run(commands: list[list[str]], folder: Path, hosts: list[str] | None = None) -> list[str]:
    """Starts one process for each command, with TF_CONFIG, and returns what they print."""
    with ExitStack() as stack:
        if hosts is None:
            # Held until all are known, so that they differ.
            held = [stack.enter_context(socket.socket()) for _ in commands]
            for each in held:
                each.bind(("localhost", 0))
            hosts = [f"localhost:{each.getsockname()[1]}" for each in held]
    processes = []
    for index, command in enumerate(commands):
        task = {"type": "worker", "index": index}
        config = json.dumps({"cluster": {"worker": hosts}, "task": task})
        (folder / str(index)).mkdir()
        processes.append(
            subprocess.Popen(
                command,
                cwd=folder / str(index),
                env={**os.environ, "TF_CONFIG": config, "TF_NUM_INTRAOP_THREADS": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    try:
        outputs = [process.communicate(timeout=DEADLINE_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * len(commands), outputs
    return outputs


def _weights(output: str) -> str:
    found = _WEIGHTS.findall(output)
    assert len(found) == 1, output
    return found[0]


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 20)
def test_python_m_drumbeat_trains_with_the_workers_of_tf_config(tmp_path: Path) -> None:
    outputs = _run([[sys.executable, "-m", "drumbeat", str(SCRIPT)]] * 2, tmp_path)
    assert len(set(map(_weights, outputs))) == 1, outputs
    # The old names are told of by the chief alone.
    assert ["optimizer(lr=) is gone" in output for output in outputs] == [True, False]


@pytest.mark.tensorflow
@pytest.mark.slow
@pytest.mark.timeout(DEADLINE_S + 20)
def test_the_hook_does_the_same_for_a_bare_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _in(tmp_path, monkeypatch)
    hook.install_hook()
    # What Python does at its start for the folder of an environment.
    start = f"import site; site.addsitedir({str(tmp_path)!r}); import runpy; "
    run = f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"
    outputs = _run([[sys.executable, "-c", start + run]] * 2, tmp_path)
    assert len(set(map(_weights, outputs))) == 1, outputs


def test_the_hook_comes_and_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _in(tmp_path, monkeypatch)
    hook.install_hook()
    assert hook.path().exists()
    # Without TF_CONFIG a Python that starts imports nothing for it.
    code = f"import site; site.addsitedir({str(tmp_path)!r}); import sys; "
    code += "import json; assert 'drumbeat.auto' not in sys.modules; print(len(sys.meta_path))"
    bare = {name: value for name, value in os.environ.items() if name != "TF_CONFIG"}
    for off, more in (("", 1), ("1", 0)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            env={**bare, "DRUMBEAT_NO_HOOK": off},
            check=True,
            timeout=30,
        )
        without = subprocess.run(
            [sys.executable, "-c", "import sys; print(len(sys.meta_path))"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        )
        assert int(done.stdout) == int(without.stdout) + more
    hook.remove_hook()
    assert not hook.path().exists()
    hook.remove_hook()
    assert "There is no" in capsys.readouterr().out


def _in(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hook.sysconfig, "get_path", lambda name: str(folder))
