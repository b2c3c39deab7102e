"""`drumbeat run --backend jax`: several processes of Keras on JAX train as one does."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from drumbeat.errors import ConfigError
from drumbeat.launch import backends
from drumbeat.launch.settings import RunArguments

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
needs_jax = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="JAX is not installed here; use make test-jax"
)
pytestmark = pytest.mark.timeout(240)
DEADLINE_S = 200


def run(
    folder: Path, script: Path, *arguments: object, workers: int = 2, options: tuple[str, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """On 0 workers the script runs without drumbeat."""
    start = ["-m", "drumbeat", "run", "--backend", "jax", "-n", str(workers), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if not workers:
        start, env["KERAS_BACKEND"] = [], "jax"
    return subprocess.run(
        [sys.executable, *start, str(script), *map(str, arguments)],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def losses(done: subprocess.CompletedProcess[str], worker: str = "") -> list[float]:
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = re.findall(rf"^{worker}epoch \d+: loss ([\d.]+)", done.stdout, re.M)
    return [float(loss) for loss in found]


@pytest.mark.jax
@needs_jax
def test_data_parallel_is_one_training_that_goes_on_from_its_own_checkpoints(
    tmp_path: Path,
) -> None:
    script = EXAMPLES / "jax_data_parallel.py"
    alone = losses(run(tmp_path, script, "--epochs", 3, "--model-dir", "alone", workers=0))
    assert alone[-1] < 0.7 < 1.5 < alone[0]
    first = run(tmp_path, script, "--epochs", 2, "--model-dir", "two")
    then = run(tmp_path, script, "--epochs", 3, "--model-dir", "two")
    for worker in (r"\[worker 0\] ", r"\[worker 1\] "):
        together = losses(first, worker) + losses(then, worker)
        assert together == pytest.approx(alone, rel=1e-4)
    assert "--backend jax wins over KERAS_BACKEND=tensorflow" in first.stdout


@pytest.mark.jax
@needs_jax
def test_model_parallel_shares_a_layer_and_trains_the_same(tmp_path: Path) -> None:
    script = EXAMPLES / "jax_model_parallel.py"
    alone = losses(run(tmp_path, script, "--epochs", 3, workers=0))
    two = run(tmp_path, script, "--epochs", 3)
    for rank in range(2):
        assert losses(two, rf"\[worker {rank}\] ") == pytest.approx(alone, rel=1e-4)
        assert f"process {rank} holds [64, 512] of [64, 1024]" in two.stdout
    assert alone[-1] < 0.8 < 1.5 < alone[0]


FAILING = """
import os, signal, sys
import jax, keras, numpy as np

keras.distribution.initialize(num_processes=2)  # as Keras's guide has it
print("drew", np.random.rand(), keras.random.uniform([])[()], jax.device_count(), flush=True)
if os.environ["DRUMBEAT_ATTEMPT"] == "1" and jax.process_index() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
total = jax.experimental.multihost_utils.process_allgather(np.array([jax.process_index() + 1]))
print("sum", int(total.sum()), flush=True)
sys.exit(7 if sys.argv[1:] == ["fail"] else 0)
"""


@pytest.mark.jax
@needs_jax
def test_a_killed_process_starts_all_again_and_codes_come_through(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(FAILING.replace("import jax,", "import jax.experimental.multihost_utils,"))
    done = run(tmp_path, script)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert re.search("worker 1 on .* was killed by SIGKILL", done.stdout)
    assert done.stdout.count("sum 3") == 2
    drawn = re.findall(r"drew (.*)", done.stdout)
    assert len(set(drawn)) == 1, "all processes and attempts draw alike"
    assert run(tmp_path, script, "fail", options=("--max-restarts", "0")).returncode != 0


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"backend": "torch"}, "expected one of tensorflow"),
        ({"backend": "jax", "exact": 8}, "--exact and --backend jax"),
        ({"backend": "jax", "strategy": "mirrored"}, "--strategy mirrored and --backend jax"),
        ({"backend": "jax", "sync_every": 8}, "--sync-every and --backend jax"),
        ({"backend": "jax", "inject": ("kill:rank=0,step=1",)}, "--inject and --backend jax"),
    ],
)
def test_what_it_does_not_go_with(arguments: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        backends.check_backend(RunArguments(command=("train.py",), **arguments))


@pytest.mark.skipif(importlib.util.find_spec("jax") is not None, reason="JAX is installed here")
def test_without_jax_it_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'drumbeat\[jax\]'"):
        backends.check_backend(RunArguments(command=("train.py",), backend="jax"))
