"""Finds the job file and reads it; options of the command line win over it."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile import problems
from drumbeat.platforms.jobfile.documents import (
    Document,
    check_text,
    parse_toml,
    parse_yaml,
    read_text,
)
from drumbeat.platforms.jobfile.model import Job

NAMES = ("drumbeat.yaml", "drumbeat.yml")
PYPROJECT = "pyproject.toml"


class NoJobFile(ConfigError):
    """There is none in the folder."""


def find(given: str | None, folder: Path) -> Path:
    """The job file: the one that was given, else the one in `folder`.

    Raises:
        NoJobFile: There is none.
        ConfigError: There may be one, in a pyproject.toml that can't be read.
    """
    if given is not None:
        return Path(given)
    for name in NAMES:
        if (folder / name).exists():
            return folder / name
    pyproject = folder / PYPROJECT
    if pyproject.is_file() and _section(parse_toml(read_text(pyproject), PYPROJECT)) is not None:
        return pyproject
    raise NoJobFile(
        f"There is no job file in {folder}; expected drumbeat.yaml, or [tool.drumbeat] in "
        "pyproject.toml. `drumbeat init train.py` writes a first one; -f names another."
    )


def read(path: Path, changes: Sequence[str] = ()) -> Job:
    """The job that the file describes, with what the command line says.

    Args:
        path: A YAML file, or a TOML file with a table `tool.drumbeat`.
        changes: As "workers=4" or "kubernetes.namespace=team".

    Raises:
        ConfigError: It can't be used; a line for each problem.
    """
    name, text = path.name, read_text(path)
    if path.suffix == ".toml":
        document = parse_toml(text, name)
        section = _section(document)
        if section is None:
            raise ConfigError(f"{name} has no table [tool.drumbeat].")
        document, name = Document(value=section), f"{name}, [tool.drumbeat]"
    else:
        documents = parse_yaml(text, name)
        if not documents:
            raise ConfigError(
                f"{name} is empty; expected a job: name: and script:, at least. `drumbeat init "
                "train.py` writes a first one."
            )
        if len(documents) > 1:
            raise ConfigError(f"{name} has {len(documents)} documents; expected one, a job.")
        document = documents[0]
    if changes and isinstance(document.value, dict):
        problems.check(Job, document, name)  # what is wrong in the file is said to be there
        value, own = _changed(document.value, changes), "the command line"
        return problems.check(Job, Document(value=value), f"{name} with {own}")
    return problems.check(Job, document, name)


def looks_like_job(documents: Sequence[Document]) -> bool:
    """Whether a file that no platform knows is meant as a job file, though it may be wrong."""
    if len(documents) != 1 or not isinstance(documents[0].value, dict):
        return not documents
    keys = set(documents[0].value)
    return bool({"script", "module"} & keys) or 2 * len(keys & set(Job.model_fields)) > len(keys)


def _section(document: Document) -> Any:
    tool = document.value.get("tool")
    return tool.get("drumbeat") if isinstance(tool, dict) else None


def _changed(value: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    changed = copy.deepcopy(dict(value))
    for change in changes:
        path, equals, text = change.partition("=")
        if not equals or not path.strip():
            raise ConfigError(f"--set is {shown(change)}; expected KEY=VALUE, such as workers=4.")
        check_text(path, "--set")
        keys = [key.strip().replace("-", "_") for key in path.split(".")]
        here: Any = changed
        for key in keys[:-1]:
            here = here.setdefault(key, {})
            if not isinstance(here, dict):
                raise ConfigError(f"--set is {shown(change)}, but {key} holds no other keys.")
        here[keys[-1]] = _value(check_text(text, "--set"))
    return changed


def _value(text: str) -> Any:
    """As YAML reads it: a number, true, [a, b], or text."""
    try:
        documents = parse_yaml(text, "--set")
    except ConfigError:
        return text
    if not documents and text.strip() in ("null", "~"):
        return None
    return documents[0].value if len(documents) == 1 else text
