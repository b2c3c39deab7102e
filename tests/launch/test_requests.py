"""Which part of a machine each process gets, and as whom."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from drumbeat.launch.machine import Machine
from drumbeat.launch.parent import WorkerRequest
from drumbeat.launch.plan import cluster_of, local_tasks
from drumbeat.launch.requests import SERVER, Requests
from drumbeat.launch.roster import Node
from drumbeat.launch.settings import RunArguments, plan_run


def requests(**given: object) -> dict[str, WorkerRequest]:
    """What is asked for on one node with 8 CPUs and 2 GPUs, by the process's name."""
    arguments = RunArguments(command=(__file__, "--x"), **given)  # type: ignore[arg-type]
    settings = plan_run(arguments, {}, cpus=8, now=datetime(2030, 1, 1))
    ports = tuple(range(1, settings.task_count + 1))
    node = Node(node_rank=0, host="h", num_workers=len(ports), ports=ports, boot_id="b")
    cluster = cluster_of(settings, [node])
    tasks = local_tasks(settings, [node], cluster)
    made = Requests(
        settings=settings,
        machine=Machine(
            cpus=tuple(range(8)), gpus=("0", "1"), mpi=False, environ={}, folder=Path("/")
        ),
        run_dir=Path("/run"),
        roster=[node],
        tasks=tasks,
        world_size=cluster.world_size,
        collectives="tensorflow",
        job_id="0" * 16,
        number=1,
        chosen={},
    )
    how = {"mpi_fd": None, "failure_path": Path("f"), "fd_variables": [], "console": {}}
    return {task.name: made.request(task, **how, fired=0) for task in tasks}  # type: ignore[arg-type]


def gpus(asked: dict[str, WorkerRequest]) -> dict[str, str | None]:
    return {name: one.variables.get("CUDA_VISIBLE_DEVICES") for name, one in asked.items()}


def test_servers_get_what_those_need_that_compute():
    asked = requests(workers=2, ps=1, evaluator=True)
    assert gpus(asked) == {
        "worker 0": "0",
        "worker 1": "1",
        "ps 0": "-1",
        "chief 0": "-1",
        "evaluator 0": "-1",
    }
    assert [asked[f"worker {k}"].cpus for k in (0, 1)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert asked["ps 0"].cpus == asked["chief 0"].cpus == []
    for name, one in asked.items():
        runs_script = name in ("chief 0", "evaluator 0")
        assert (one.command, one.is_module) == (
            __file__ if runs_script else SERVER,
            not runs_script,
        )
        assert one.args == (["--x"] if runs_script else [])
        assert one.variables["DRUMBEAT_RANK"] == ("0" if name == "chief 0" else "-1")
        assert one.variables["DRUMBEAT_WORLD_SIZE"] == "1"
        assert one.variables["GRPC_FAIL_FAST"] == "use_caller"


def test_workers_in_step_share_with_an_evaluator():
    asked = requests(workers=2, evaluator=True)
    assert gpus(asked) == {"worker 0": "0", "worker 1": "1", "evaluator 0": "-1"}
    assert asked["worker 1"].variables["DRUMBEAT_LOCAL_WORLD_SIZE"] == "2"
    assert asked["worker 1"].variables["DRUMBEAT_WORLD_SIZE"] == "2"
    assert asked["evaluator 0"].variables["DRUMBEAT_RANK"] == "-1"
    assert "GRPC_FAIL_FAST" not in asked["worker 1"].variables


def test_one_process_has_the_devices_of_all():
    asked = requests(workers=2, strategy="mirrored")
    assert gpus(asked) == {"worker 0": "0,1"}
    assert asked["worker 0"].variables["DRUMBEAT_DEVICES_PER_WORKER"] == "2"
    assert gpus(requests()) == {"worker 0": "0,1"}  # as python script.py
    assert gpus(requests(workers=1)) == {"worker 0": "0"}
