"""The commands of Slurm that `drumbeat submit slurm` and its like call."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from drumbeat.cluster.hostlist import expand
from drumbeat.cluster.wording import printed_by, shown
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.platform import Rendered, Status, check_task

CALL_TIMEOUT_S = 60.0
"""Slurm's own clients give up on their controller after some 10 to 30 s."""
POLL_S = 1.0
_LAST_OUTPUT_S = 3.0
"""A network file system may show the end of the output some time after the job's."""
_READ_BYTES = 1 << 20
_ID = re.compile(r"\d{1,12}(_\d{1,9}|\+\d{1,9})?", re.ASCII)
_FIELD = re.compile(r"(?:^|\s)([A-Z][\w/:]*)=(.*?)(?=\s[A-Z][\w/:]*=|\s*$)")
_NO_SUCH_JOB = "Invalid job id"
_STATES = {
    "pending": "PENDING CONFIGURING REQUEUED REQUEUE_FED REQUEUE_HOLD RESV_DEL_HOLD SPECIAL_EXIT",
    "running": "RUNNING COMPLETING STAGE_OUT SIGNALING SUSPENDED STOPPED RESIZING",
    "succeeded": "COMPLETED",
    "failed": "FAILED BOOT_FAIL DEADLINE NODE_FAIL OUT_OF_MEMORY TIMEOUT LAUNCH_FAILED",
    "stopped": "CANCELLED PREEMPTED REVOKED",
}
_LIVING = ("pending", "running", "unknown")


class SlurmClient:
    """A job as sbatch numbers it.

    Args:
        job: Its name is that of the output file.
        environ: The environment; by default this process's.
        folder: Where jobs are submitted from, and their output is; by default the current one.
    """

    def __init__(
        self, job: Job, *, environ: Mapping[str, str] | None = None, folder: Path | None = None
    ) -> None:
        self._job = job
        self._environ = os.environ if environ is None else environ
        self._folder = folder or Path.cwd()

    def plan(self, job: Job, rendered: Rendered) -> list[str]:
        """See `Client.plan`."""
        name = next(iter(rendered.files))
        return [f"sbatch --parsable < {name}", f"# ---- {name}", rendered.main.rstrip()]

    def submit(self, job: Job, rendered: Rendered) -> str:
        """See `Client.submit`."""
        self._check_secrets(job)
        answer = self._call(["sbatch", "--parsable"], text_in=rendered.main)
        job_id = answer.strip().splitlines()[-1].partition(";")[0] if answer.strip() else ""
        if not _ID.fullmatch(job_id):
            raise ConfigError(f"sbatch said {shown(answer)}; expected the number of a job.")
        return job_id

    def status(self, job_id: str) -> Status:
        """See `Client.status`."""
        fields = self._fields(job_id)
        words = fields["JobState"]
        reason, code = fields.get("Reason", ""), fields.get("ExitCode", "")
        said = [words]
        if reason not in ("", "None", "(null)"):
            said.append(reason)
        if (number := code.partition(":")[0]) not in ("", "0"):
            said.append(f"exit code {number}")
        if (restarts := fields.get("Restarts", "")) not in ("", "0"):
            said.append(f"requeues: {restarts}")
        return Status(
            job_id=job_id,
            state=_state(words),
            detail=", ".join(said),
            tasks=_tasks(fields, words),
        )

    def logs(self, job_id: str, *, task: str | None, follow: bool) -> Iterator[str]:
        """See `Client.logs`."""
        fields = self._fields(job_id)
        tasks = _tasks(fields, "")
        if task is not None and tasks:
            check_task(job_id, task, tasks)
        path = self._output(job_id, fields)
        # os.path, since a Path raises where a folder of another user's is in the way.
        if not os.path.exists(path) and not (follow and _state(fields["JobState"]) in _LIVING):
            raise ConfigError(
                f"{job_id} has printed nothing yet, or where it can't be seen from here: there is "
                f"no {path}. It is {fields['JobState']}."
            )
        for line in self._lines(job_id, path, follow):
            if task is None or line.lstrip().startswith(f"{task}: "):
                yield line

    def stop(self, job_id: str) -> None:
        """See `Client.stop`."""
        self._fields(job_id)  # scancel is silent about a job that is none
        self._call(["scancel", job_id])

    def _check_secrets(self, job: Job) -> None:
        unset = [each.env for each in job.secrets if each.env and not self._environ.get(each.env)]
        if unset:
            raise ConfigError(
                f"{', '.join(unset)} is not set, for the secrets of the job. Set it in this shell: "
                "sbatch hands it on to the job."
            )

    def _fields(self, job_id: str) -> dict[str, str]:
        """What is known of the job, under scontrol's names.

        Raises:
            ConfigError: There is none.
        """
        if not _ID.fullmatch(job_id):
            raise ConfigError(f"{shown(job_id)} is no job of Slurm's; expected a number.")
        done = self._run(["scontrol", "--oneliner", "show", "job", job_id])
        if done.returncode == 0:
            return _parse(done.stdout)
        if _NO_SUCH_JOB not in done.stderr:
            raise _refused("scontrol", done)
        # The controller forgets jobs some minutes after their end; the accounting does not.
        done = self._run(
            ["sacct", "--noheader", "--parsable2", "--allocations", f"--jobs={job_id}",
             "--format=State,ExitCode,NodeList,WorkDir"]
        )  # fmt: skip
        line = done.stdout.strip().splitlines()[-1:] if done.returncode == 0 else []
        values = line[0].split("|") if line else []
        if len(values) != 4:
            why = " and keeps no accounts" if done.returncode else ""
            raise ConfigError(
                f"Slurm knows no job {job_id}{why}. It forgets jobs some minutes after their end; "
                f"its output may still be in {self._output(job_id, {})}."
            )
        names = ("JobState", "ExitCode", "NodeList", "WorkDir")
        return dict(zip(names, values, strict=True))

    def _output(self, job_id: str, fields: Mapping[str, str]) -> Path:
        if name := fields.get("StdOut"):
            return Path(name)
        return Path(fields.get("WorkDir") or self._folder) / f"{self._job.name}-{job_id}.out"

    def _lines(self, job_id: str, path: Path, follow: bool) -> Iterator[str]:
        at, rest, over_s = 0, b"", 0.0
        while True:
            data = _read(path, at)
            at += len(data)
            *complete, rest = (rest + data).split(b"\n")
            for line in complete:
                yield line.decode("utf-8", "backslashreplace")
            if data:
                continue
            if not follow or (over_s and time.monotonic() >= over_s):
                break
            if not over_s and self._is_over(job_id):
                over_s = time.monotonic() + _LAST_OUTPUT_S
            time.sleep(POLL_S)
        if rest:
            yield rest.decode("utf-8", "backslashreplace")

    def _is_over(self, job_id: str) -> bool:
        try:
            return _state(self._fields(job_id)["JobState"]) not in _LIVING
        except ConfigError as error:
            if "knows no job" in str(error):
                return True
            raise

    def _call(self, words: Sequence[str], text_in: str | None = None) -> str:
        done = self._run(words, text_in)
        if done.returncode:
            raise _refused(words[0], done)
        return done.stdout

    def _run(
        self, words: Sequence[str], text_in: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        try:
            return subprocess.run(
                words,
                input=text_in if text_in is not None else "",
                capture_output=True,
                text=True,
                errors="replace",
                timeout=CALL_TIMEOUT_S,
                env=dict(self._environ),
                cwd=self._folder,
            )
        except FileNotFoundError:
            raise ConfigError(
                f"There is no {words[0]} on this machine; expected a machine of the cluster that "
                "jobs are submitted from. Or take the script there: drumbeat render slurm -o "
                "FOLDER, then sbatch FOLDER/job.sbatch."
            ) from None
        except subprocess.TimeoutExpired:
            raise DrumbeatError(
                f"{words[0]} gave no answer within {CALL_TIMEOUT_S:g} s. Is Slurm's controller "
                "down? `scontrol ping` says."
            ) from None
        except OSError as error:
            raise ConfigError(f"{words[0]} can't be run: {error.strerror or error}.") from None


def _parse(text: str) -> dict[str, str]:
    """The fields of `scontrol --oneliner show job`; of a heterogeneous job, the first's."""
    line = text.strip().splitlines()[0] if text.strip() else ""
    # Values may have spaces, such as paths.
    found = dict(_FIELD.findall(line))
    found.setdefault("JobState", "UNKNOWN")
    return found


def _refused(program: str, done: subprocess.CompletedProcess[str]) -> ConfigError:
    said = printed_by(done.stderr.strip() or done.stdout)
    return ConfigError(f"{program} ended with code {done.returncode} and said:{said}")


def _state(words: str) -> str:
    first = words.split()[0].rstrip("+") if words.split() else ""
    return next((name for name, them in _STATES.items() if first in them.split()), "unknown")


def _tasks(fields: Mapping[str, str], words: str) -> dict[str, str]:
    """One for each machine of the job, by rank; none before it has any."""
    try:
        hosts = expand(fields.get("NodeList", ""))
    except ConfigError:
        return {}
    if hosts == ["None", "assigned"] or "null" in fields.get("NodeList", ""):
        return {}
    return {str(rank): f"{words} on {host}" for rank, host in enumerate(hosts)}


def _read(path: Path, at: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(at)
            return file.read(_READ_BYTES)
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror or error}.") from None
