"""What the nodes of a job run, and the variables that they run it with, alike on all platforms."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable

from drumbeat.platforms.jobfile.amounts import plain_number
from drumbeat.platforms.jobfile.model import Job

DATA, OUTPUT = "DRUMBEAT_DATA", "DRUMBEAT_OUTPUT"
TOKEN, TOKEN_FILE = "DRUMBEAT_TOKEN", "DRUMBEAT_TOKEN_FILE"
PORT = 2222
"""Where the agents meet on node 0."""
CHIEF_OF_PS = (
    "Parameter servers have a chief that runs the script, so there is one besides the workers."
)
"""Where the platform has tasks for them."""
NO_OUTPUT = (
    "output is not given: what the script saves in a container, and the backups that a job goes "
    "on from, are gone with it. Expected a URL (gs://, s3://) or a path in one of mounts:, which "
    "the script finds in DRUMBEAT_OUTPUT, and args as {output}."
)
_AGENT = re.compile(r"(?:^|[\s/;&'\"])drumbeat['\"]?\s+['\"]?run(?:[\s'\"]|$)")
EXTRAS = {"gs": "gcs", "gcs": "gcs", "s3": "s3"}
"""Of drumbeat, by the URLs that they have the driver for."""


def drumbeat_run(job: Job, *, ps: int | None = None) -> list[str]:
    """The command of each node: `drumbeat run` with its options, the script and its arguments.

    Args:
        job: The job.
        ps: Parameter servers to start beside the chief; None for those of the job, 0 where the
            platform has tasks of their own for them.
    """
    return ["drumbeat", "run", *_options(job, job.ps if ps is None else ps), *script(job)]


def script(job: Job) -> list[str]:
    """The script or module, and its arguments."""
    words = ["-m", job.module] if job.module is not None else [str(job.script)]
    return [*words, *(_filled(job, word) for word in job.args)]


def environment(job: Job) -> dict[str, str]:
    """The variables of every node that are the same on all platforms."""
    found = dict(job.environment)
    if job.data is not None:
        found[DATA] = job.data
    if job.output is not None:
        found[OUTPUT] = job.output
    return found


def backup_dir(job: Job) -> str | None:
    """Where backups go: as said, or beside what the job puts out."""
    if job.run.backup_dir is not None:
        return job.run.backup_dir
    return f"{job.output.rstrip('/')}/backups" if job.output else None


def shell(words: Iterable[str]) -> str:
    """The words as a shell reads them."""
    return shlex.join(words)


def starts_agent(words: Iterable[str]) -> bool:
    """Whether a command has `drumbeat run` in it, as words or in a shell's text.

    `python -m drumbeat train.py` has no agent: it trains in the process that TF_CONFIG describes.
    """
    return _AGENT.search(" ".join(words)) is not None


def in_pod(text: str) -> str:
    """Text of a container's command or variable, from which the kubelet makes `text` again.

    It replaces $(NAME), also where a word only looks so, and $$.
    """
    return text.replace("$", "$$") if re.search(r"\$[$(]", text) else text


def _options(job: Job, ps: int) -> list[str]:
    words: list[str] = []
    if job.min_workers is not None and job.nodes > 1:
        words += ["-n", f"{job.min_workers}:{job.workers}"]
    elif job.devices.count > 1:
        # A worker task among ps tasks of the platform is one process with all of its devices.
        has_tasks = job.ps and not ps
        words += ["--devices-per-worker" if has_tasks else "-n", str(job.devices.count)]
    if ps:
        words += ["--ps", str(ps)]
    if job.evaluator:
        words.append("--evaluator")
    if job.restarts is not None:
        words += ["--max-restarts", str(job.restarts)]
    for option, seconds in (
        ("--start-timeout", job.timeouts.start),
        ("--collective-timeout", job.timeouts.collective),
    ):
        if seconds is not None:
            words += [option, str(plain_number(seconds))]
    words += job.run.words()
    if job.run.backup_dir is None and (folder := backup_dir(job)) is not None:
        words += ["--backup-dir", folder]
    return words


def _filled(job: Job, word: str) -> str:
    """`word` with what {data}, {output} and {name} stand for."""
    stand_for = {"data": job.data, "output": job.output, "name": job.name}
    return re.sub(r"\{(data|output|name)\}", lambda found: stand_for[found[1]] or found[0], word)
