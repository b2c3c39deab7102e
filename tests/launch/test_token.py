"""The secret of a job's agents: in a variable, or in a file."""

from __future__ import annotations

import os
import threading

import pytest

from drumbeat.errors import ConfigError
from drumbeat.launch import token
from drumbeat.launch.place import Place

TWO = Place(nodes=2, rendezvous=("a", 1))


def test_one_node_needs_none(tmp_path):
    assert token.token_of(Place(), {"DRUMBEAT_TOKEN_FILE": str(tmp_path / "missing")}) == ""


def test_the_variable_wins_over_the_file(tmp_path):
    env = {"DRUMBEAT_TOKEN": " secret\n", "DRUMBEAT_TOKEN_FILE": str(tmp_path / "missing")}
    assert token.token_of(TWO, env) == "secret"


@pytest.mark.parametrize("kind", ["absolute", "relative", "file://", "memory://"])
def test_a_file_holds_it(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "token").write_text("secret\n")
    name = {
        "absolute": str(tmp_path / "token"),
        "relative": "token",
        "file://": f"file://{tmp_path}/token",
        "memory://": "memory://job/token",
    }[kind]
    if kind == "memory://":
        import fsspec

        fsspec.filesystem("memory").pipe_file("/job/token", b"secret\n")
    env = {"DRUMBEAT_TOKEN": "", "DRUMBEAT_TOKEN_FILE": name}
    assert token.token_of(TWO, env) == "secret"


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({}, "DRUMBEAT_TOKEN is not set. The agents of the 2 nodes"),
        ({"DRUMBEAT_TOKEN": "  "}, "DRUMBEAT_TOKEN is not set."),
        ({"DRUMBEAT_TOKEN_FILE": "missing"}, "DRUMBEAT_TOKEN_FILE is 'missing', which can't be "),
        ({"DRUMBEAT_TOKEN_FILE": "."}, "DRUMBEAT_TOKEN_FILE is '.', which can't be read"),
        ({"DRUMBEAT_TOKEN_FILE": "empty"}, "DRUMBEAT_TOKEN_FILE is 'empty', which is empty"),
        ({"DRUMBEAT_TOKEN_FILE": "nope://x/token"}, "can't be read: nope://x can't be used"),
        ({"DRUMBEAT_TOKEN_FILE": "a\0b"}, "DRUMBEAT_TOKEN_FILE is 'a\\x00b', which can't be read"),
    ],
)
def test_a_missing_secret_is_explained(tmp_path, monkeypatch, env, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError) as refused:
        token.token_of(TWO, env)
    assert message in str(refused.value)


def test_a_file_that_never_answers_has_a_deadline(tmp_path, monkeypatch):
    """Such as a network file system whose server is gone."""
    os.mkfifo(tmp_path / "token")
    monkeypatch.setattr(token, "READ_TIMEOUT_S", 0.2)
    with pytest.raises(ConfigError, match=r"no answer within 0\.2 s"):
        token.token_of(TWO, {"DRUMBEAT_TOKEN_FILE": str(tmp_path / "token")})
    writer = os.open(tmp_path / "token", os.O_WRONLY)  # lets the reader go
    os.close(writer)
    for thread in threading.enumerate():
        if thread.name == "drumbeat-token":
            thread.join(10)
