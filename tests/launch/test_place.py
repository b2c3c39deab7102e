"""Where an agent's place comes from a file of the platform."""

from __future__ import annotations

import json

import pytest

from drumbeat.cluster.launched_by import sagemaker
from drumbeat.launch.place import environ_here, find_place
from drumbeat.launch.settings import RunArguments

JOB = {"TRAINING_JOB_NAME": "digits", "TRAINING_JOB_ARN": "arn:aws:sagemaker:r:1:training-job/d"}


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "resourceconfig.json"
    monkeypatch.setattr(sagemaker, "FILE", str(path))
    return path


def test_a_container_of_sagemaker_finds_itself_by_its_file(file):
    hosts = ["algo-1", "algo-10", "algo-2"]
    file.write_text(json.dumps({"current_host": "algo-10", "hosts": hosts}))
    place = find_place(RunArguments(command=("train.py",)), environ_here(JOB))
    assert (place.nodes, place.node_rank) == (3, 1)
    assert place.rendezvous == ("algo-1", 2222)
    assert "resourceconfig.json" in place.notes[0]


@pytest.mark.parametrize("content", [None, b"\xff\xfe"])
def test_a_file_that_cant_be_read_says_nothing_and_that_is_said(file, content):
    if content is not None:
        file.write_bytes(content)
    env = environ_here(JOB)
    assert env == JOB
    place = find_place(RunArguments(command=("train.py",)), env)
    assert place.nodes == 1
    assert "trains alone" in place.notes[0]


def test_elsewhere_no_file_is_read(file):
    file.mkdir()
    assert environ_here({"A": "1"}) == {"A": "1"}
