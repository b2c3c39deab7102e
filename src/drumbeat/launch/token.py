"""The secret by which a job's agents know each other: in a variable, or in a file."""

from __future__ import annotations

import queue
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.state.folders import open_folder

if TYPE_CHECKING:
    from drumbeat.launch.place import Place

TOKEN_FILE = "DRUMBEAT_TOKEN_FILE"  # noqa: S105  (a variable's name)
"""For platforms that show a job's variables to everyone who sees the job."""
READ_TIMEOUT_S = 60.0


def token_of(place: Place, env: Mapping[str, str]) -> str:
    """The secret of the job's agents, "" where there is one agent.

    Raises:
        ConfigError: Neither DRUMBEAT_TOKEN nor DRUMBEAT_TOKEN_FILE is set, or the file can't
            be read.
    """
    if place.nodes == 1:
        return ""
    token = env.get("DRUMBEAT_TOKEN", "").strip()
    if not token and (file := env.get(TOKEN_FILE, "").strip()):
        token = _read_token(file)
    if not token:
        raise ConfigError(
            f"DRUMBEAT_TOKEN is not set. The agents of the {place.nodes} nodes prove to each other "
            "with it that they belong to the same job. Make one secret, for instance with "
            "`openssl rand -hex 32`, and set DRUMBEAT_TOKEN to that same value on every node, or "
            f"{TOKEN_FILE} to the path or URL of a file that holds it."
        )
    return token


def _read_token(name: str) -> str:
    answers: queue.SimpleQueue[bytes | Exception] = queue.SimpleQueue()

    def read() -> None:
        folder, slash, file = name.rpartition("/")
        try:
            answers.put(open_folder(folder or slash or ".").read(file))
        except (OSError, ValueError) as error:  # a ConfigError is one, too
            answers.put(error)

    # Drivers of object stores have deadlines of their own, of many minutes.
    threading.Thread(target=read, name="drumbeat-token", daemon=True).start()
    try:
        answer = answers.get(timeout=READ_TIMEOUT_S)
    except queue.Empty:
        answer = TimeoutError(f"no answer within {READ_TIMEOUT_S:g} s")
    if isinstance(answer, Exception):
        raise ConfigError(f"{TOKEN_FILE} is {shown(name)}, which can't be read: {answer}") from None
    token = answer.decode("ascii", "replace").strip()
    if not token:
        raise ConfigError(f"{TOKEN_FILE} is {shown(name)}, which is empty; expected a secret.")
    return token
