"""`drumbeat init`: a first job file for a script, and the schema that editors complete it with."""

from __future__ import annotations

import json
import re
from pathlib import Path, PurePosixPath
from typing import Any

from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile import problems
from drumbeat.platforms.jobfile.documents import check_text, parse_yaml
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.yaml_text import reads_otherwise

SCHEMA_FILE = "drumbeat.schema.json"
_TEMPLATE = """\
# yaml-language-server: $schema={schema}
# One job for every platform: drumbeat render PLATFORM shows what each would run,
# drumbeat rehearse runs that here, drumbeat submit PLATFORM starts it there.
name: {name}
script: {script}
# args: [--epochs, "3", --data, "{{data}}", --model, "{{output}}/model.keras"]

image: {image}  # drumbeat render docker writes a Dockerfile for it
workers: {workers}  # training processes, one for each device
devices: {{type: cpu, count: 1}}  # of each node; gpu: each has a worker
# machine_type: n1-standard-8
# resources: {{cpu: 4, memory: 8Gi, shm: 2Gi}}

# data: gs://bucket/digits  # DRUMBEAT_DATA in the script
# output: gs://bucket/runs/digits  # DRUMBEAT_OUTPUT in the script; backups go there, too
# environment: {{TF_CPP_MIN_LOG_LEVEL: "1"}}
# secrets:
#   - {{name: gcp-key, key: sa.json, path: /secrets/gcp, env: GOOGLE_APPLICATION_CREDENTIALS}}
# restarts: 3  # in a row without progress
# timeouts: {{total: 24h}}
# run: {{compress: int8}}  # other options of drumbeat run
"""


def write(script: str, folder: Path, *, image: str | None, workers: int, force: bool) -> Path:
    """Writes `drumbeat.yaml` and its schema into `folder`, and returns the former's path.

    Raises:
        ConfigError: There is no such script, there is a job file already, or none can be
            written.
    """
    check_text(script, "SCRIPT")
    if Path(script).is_absolute() and Path(script).is_relative_to(folder):
        script = str(Path(script).relative_to(folder))  # as shells complete it
    if Path(script).is_absolute() or ".." in Path(script).parts or script.startswith("-"):
        raise ConfigError(
            f"{script} is not within {folder}; expected a script's path from there, which is the "
            "one in the image, too."
        )
    if (folder / script).is_dir():
        raise ConfigError(f"{script} is a folder; expected a Python script, such as train.py.")
    if not (folder / script).is_file():
        raise ConfigError(f"{script} does not exist in {folder}; expected a Python script.")
    path = folder / "drumbeat.yaml"
    if path.exists() and not force:
        raise ConfigError(f"{path} exists; --force writes it anew.")
    name = name_of(script)
    text = _TEMPLATE.format(
        schema=SCHEMA_FILE,
        name=json.dumps(name) if reads_otherwise(name) else name,
        script=_quoted(script),
        image=_quoted(check_text(image, "--image")) if image is not None else f"{name}:1",
        workers=workers,
    )
    problems.check(Job, parse_yaml(text, path.name)[0], path.name)
    try:
        path.write_text(text)
        (folder / SCHEMA_FILE).write_text(schema_text())
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror or error}.") from None
    return path


def _quoted(text: str) -> str:
    """As YAML reads it as text."""
    is_plain = re.fullmatch(r"[A-Za-z_][\w./-]*[./:@][\w./:@-]*\w", text, re.ASCII)
    return text if is_plain else json.dumps(text, ensure_ascii=False)


def name_of(script: str) -> str:
    """A name for the job: the script's, as platforms allow it."""
    name = re.sub(r"[^a-z0-9]+", "-", PurePosixPath(script).stem.lower()).strip("-")
    name = re.sub(r"^[^a-z]+", "", name)[:40].strip("-")
    return name or "train"


def schema() -> dict[str, Any]:
    """The JSON schema (2020-12) of job files."""
    found = Job.model_json_schema(mode="validation")
    for each in (found, *found["$defs"].values()):
        for key in each["properties"].values():
            key.pop("title", None)  # the key again
            if not isinstance(key.get("default"), (str, bool, int)):
                key.pop("default", None)  # nothing, which editors would write out
    # As `Job` and `Secret` say in words.
    found["oneOf"] = [{"required": [key]} for key in ("script", "module")]
    found["$defs"]["Secret"]["anyOf"] = [{"required": [key]} for key in ("env", "path")]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def schema_text() -> str:
    """`schema` as a file."""
    return json.dumps(schema(), indent=1) + "\n"
