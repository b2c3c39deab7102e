"""Shares of a node and the variables of its workers."""

from __future__ import annotations

import os
import stat

import pytest

from drumbeat.cluster.identity import Identity
from drumbeat.launch.environment import (
    Share,
    choose_collectives,
    find_gpus,
    parent_variables,
    share_of,
    worker_environment,
)

IDENTITY = Identity(
    rank=1,
    world_size=2,
    local_rank=1,
    local_world_size=2,
    collectives="mpi",
    run_dir="/run",
    name="worker 1",
    timeout_s=600.0,
)


@pytest.mark.parametrize(
    ("cpus", "workers", "shares"),
    [
        ((0, 1, 2, 3), 2, [(0, 1), (2, 3)]),
        ((4, 5, 8, 9, 11), 2, [(4, 5), (8, 9)]),
        ((0, 1, 2), 1, [(0, 1, 2)]),
        ((3, 7), 3, [(3,), (7,), (3,)]),
        ((), 2, [(), ()]),
    ],
)
def test_cpus_are_shared_equally(cpus, workers, shares):
    given = [share_of(cpus, (), rank, workers) for rank in range(workers)]
    assert [share.cpus for share in given] == shares
    assert [share.threads for share in given] == [max(len(cpus), 1) for cpus in shares]


@pytest.mark.parametrize(
    ("gpus", "given"),
    [((), [None] * 3), (("0", "1"), ["0", "1", "0"]), (("GPU-a",), ["GPU-a"] * 3)],
)
def test_gpus_go_round(gpus, given):
    assert [share_of((0, 1), gpus, rank, 3).gpu for rank in range(3)] == given


def test_a_worker_with_several_devices():
    gpus = ("a", "b", "c", "d")
    assert [share_of((0, 1), gpus, rank, 2, None, 2).gpu for rank in range(2)] == ["a,b", "c,d"]
    assert share_of((0, 1), gpus, 0, 1, None, None).gpu == "a,b,c,d"
    assert share_of((0, 1), gpus, 0, 1, None, 9).gpu == "a,b,c,d"
    assert share_of((0, 1), (), 0, 1, None, None).gpu is None


def environment_of(environ: dict[str, str], *, gpu: str | None = None) -> dict[str, str]:
    share = Share(cpus=(0, 1), threads=2, gpu=gpu)
    made = worker_environment(
        environ=environ,
        share=share,
        identity=IDENTITY,
        tf_config="{}",
        mpi={"PMI_RANK": "1", "PMI_FD": "7"},
    )
    return dict(made.variables)


def test_threads_and_onednn_are_chosen_unless_the_user_has():
    chosen = environment_of({})
    assert chosen["TF_NUM_INTRAOP_THREADS"] == chosen["OMP_NUM_THREADS"] == "2"
    assert chosen["TF_ENABLE_ONEDNN_OPTS"] == "1"
    own = {"TF_NUM_INTRAOP_THREADS": "5", "TF_ENABLE_ONEDNN_OPTS": "0", "TF_CPP_MIN_LOG_LEVEL": "0"}
    assert environment_of(own).items() >= own.items()


def test_strings_are_hashed_alike_unless_the_user_wants_otherwise():
    assert environment_of({})["PYTHONHASHSEED"] == "0"
    assert environment_of({"PYTHONHASHSEED": "random"})["PYTHONHASHSEED"] == "random"


def test_the_parent_gets_the_same_choices_and_no_secret():
    share = Share(cpus=(0,), threads=1)
    variables = parent_variables({"DRUMBEAT_TOKEN": "secret", "HOME": "/home"}, share)
    assert variables["OMP_NUM_THREADS"] == "1"
    assert variables["HOME"] == "/home"
    assert "DRUMBEAT_TOKEN" not in variables
    assert "DRUMBEAT_TOKEN" not in environment_of({"DRUMBEAT_TOKEN": "secret"})


def test_identity_cluster_and_mpi_replace_what_was_there():
    left_over = {"PMI_RANK": "9", "PMI_PORT": "a:1", "PMIX_RANK": "9", "TF_CONFIG": "old"}
    variables = environment_of(left_over)
    assert variables["PMI_RANK"] == "1"
    assert variables["PMI_FD"] == "7"
    assert "PMI_PORT" not in variables
    assert "PMIX_RANK" not in variables
    assert variables["TF_CONFIG"] == "{}"
    assert Identity.from_env(variables) == IDENTITY


def test_a_worker_sees_its_own_gpu_and_no_gpu_setting_without_gpus():
    assert environment_of({"CUDA_VISIBLE_DEVICES": "2,3"}, gpu="3")["CUDA_VISIBLE_DEVICES"] == "3"
    assert "CUDA_VISIBLE_DEVICES" not in environment_of({})


@pytest.mark.parametrize(
    ("listed", "gpus"),
    [
        ("0,1", ("0", "1")),
        ("", ()),
        ("-1", ()),
        ("2, -1, 3", ("2",)),
        ("GPU-8,MIG-9", ("GPU-8", "MIG-9")),
    ],
)
def test_cuda_visible_devices_decides(listed, gpus):
    assert find_gpus({"CUDA_VISIBLE_DEVICES": listed, "PATH": ""}) == gpus


@pytest.mark.parametrize(
    ("script", "gpus"),
    [
        ("echo 'GPU 0: H (UUID: a)'; echo '  MIG 1g'; echo 'GPU 1: H (UUID: b)'", ("0", "1")),
        ("echo failed; exit 9", ()),
    ],
)
def test_the_driver_is_asked(tmp_path, script, gpus):
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    assert find_gpus({"PATH": f"{tmp_path}{os.pathsep}{os.defpath}"}) == gpus
    assert find_gpus({"PATH": "/nowhere"}) == ()


@pytest.mark.parametrize(
    ("requested", "gpus", "mpi", "chosen"),
    [
        ("auto", False, True, "mpi"),
        ("auto", True, True, "tensorflow"),
        ("auto", False, False, "tensorflow"),
        ("mpi", True, False, "mpi"),
        ("tensorflow", False, True, "tensorflow"),
    ],
)
def test_collectives(requested, gpus, mpi, chosen):
    engine, why = choose_collectives(requested, gpus=gpus, mpi=mpi)
    assert engine == chosen
    assert why
