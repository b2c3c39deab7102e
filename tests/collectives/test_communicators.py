"""Both communicators among real processes: each set of ranks runs all checks once."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(260)]

SCRIPT = Path(__file__).with_name("collective_checks.py")
DEADLINE_S = 240
CHECKS = (
    "reduces_each_dtype_and_op",
    "sums_half_types_in_float32_and_rounds_once",
    "reduces_many_shapes_at_once",
    "keeps_static_shapes_in_graphs",
    "returns_nothing_for_nothing",
    "broadcasts_each_dtype",
    "broadcasts_many_keeping_signs_and_nans",
    "broadcasts_70_megabytes",
    "gathers_each_dtype",
    "gathers_uneven_rows",
    "gathers_no_rows_at_all",
    "sums_indexed_slices_as_one_worker_would",
    "keeps_gradients_of_an_embedding_sparse",
    "runs_in_program_order",
    "runs_in_order_across_functions_and_loops_with_variables",
    "runs_in_while_loops_and_branches",
    "never_overwrites_a_result_that_is_still_read",
    "never_changes_its_inputs",
    "gives_every_rank_the_same_bytes",
    "carries_control_data_as_numpy",
    "carries_control_data_while_a_graph_is_traced",
    "swaps_rows_and_sums_arrays_in_program_order",
    "tells_its_observer",
    "refuses_what_it_cannot_carry",
    "grows_no_memory",
    "mismatch_in_kind",
    "mismatch_in_shape",
    "mismatch_in_dtype",
    "mismatch_in_op",
    "mismatch_in_name",
    "mismatch_in_columns_of_a_gather",
    "mismatch_in_many_tensors",
    "times_out",
)


class Run:
    """The reports of all ranks of one set of processes."""

    def __init__(self, kind: str, size: int, folder: Path) -> None:
        self.size = size
        output = start_mpi(size, folder) if kind == "mpi" else start_tensorflow(size, folder)
        self.output = output
        self.reports = [
            json.loads(path.read_text()) if (path := folder / f"{rank}.json").exists() else {}
            for rank in range(size)
        ]

    def assert_passed(self, check: str) -> None:
        for rank, report in enumerate(self.reports):
            assert check in report, f"rank {rank} did not get there:\n{self.output[-4000:]}"
            assert report[check] == "", f"rank {rank}: {report[check]}"


def start_mpi(size: int, folder: Path) -> str:
    launch = [sys.executable, "-m", "drumbeat", "run", "-n", str(size)]
    checks = [str(SCRIPT), "mpi", "-1", str(size), str(folder)]
    return finish([start([*launch, "--run-dir", str(folder / "run"), "--", *checks])])


def start_tensorflow(size: int, folder: Path) -> str:
    sockets = [socket.socket() for _ in range(size)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in sockets]
    for each in sockets:
        each.close()
    # A chief, workers, and a ps that must be left out as nothing runs there.
    cluster = {"chief": addresses[:1], "worker": addresses[1:], "ps": ["127.0.0.1:1"]}
    tasks = [("chief", 0), *(("worker", index) for index in range(size - 1))]
    processes = []
    for rank, (job, index) in enumerate(tasks):
        config = json.dumps({"cluster": cluster, "task": {"type": job, "index": index}})
        command = [sys.executable, str(SCRIPT), "tensorflow", str(rank), str(size), str(folder)]
        # With a single thread, a graph that waits for another one would hang.
        threads = {"TF_NUM_INTEROP_THREADS": "1"} if size == 2 else {}
        processes.append(start(command, TF_CONFIG=config, **threads))
    return finish(processes)


def start(command: list[str], **env: str) -> subprocess.Popen[str]:
    threads = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.Popen(
        command,
        env={**os.environ, **threads, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def finish(processes: list[subprocess.Popen[str]]) -> str:
    outputs = []
    try:
        for process in processes:
            outputs.append(process.communicate(timeout=DEADLINE_S)[0])
    except subprocess.TimeoutExpired as error:
        outputs.append(f"still running after {DEADLINE_S} s: {error}")
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.communicate()
    return "\n".join(outputs)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("mpi", 2), id="mpi-2"),
        pytest.param(("mpi", 3), id="mpi-3", marks=pytest.mark.slow),
        pytest.param(("tensorflow", 2), id="tensorflow-2", marks=pytest.mark.slow),
        pytest.param(("tensorflow", 3), id="tensorflow-3", marks=pytest.mark.slow),
    ],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    kind, size = request.param
    return Run(kind, size, tmp_path_factory.mktemp(f"{kind}-{size}"))


@pytest.mark.parametrize("check", CHECKS)
def test_on_every_rank(run: Run, check: str) -> None:
    run.assert_passed(check)


def test_no_check_is_left_out(run: Run) -> None:
    assert [list(report) for report in run.reports] == [list(CHECKS)] * run.size


PORT_IN_USE = """
import os
import sys
from drumbeat.cluster.spec import ClusterSpec
from drumbeat.collectives.tensorflow import TensorFlowCommunicator
from drumbeat.errors import ConfigError
try:
    TensorFlowCommunicator.connect(ClusterSpec.from_env(os.environ), timeout_s=5)
except ConfigError as error:
    print("refused:", error)
"""


def test_a_port_in_use_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        cluster = {"worker": [f"10.0.0.1:{port}", "10.0.0.2:2222"]}
        config = json.dumps({"cluster": cluster, "task": {"type": "worker", "index": 0}})
        output = finish([start([sys.executable, "-c", PORT_IN_USE], TF_CONFIG=config)])
    assert (
        f"refused: worker 0 can't serve its part of TensorFlow's collectives at 10.0.0.1:{port}"
        in output
    )
