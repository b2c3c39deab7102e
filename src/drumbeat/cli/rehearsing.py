"""The processes of `drumbeat rehearse`, from the manifest to the verdict."""

from __future__ import annotations

import dataclasses
import re
import secrets
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from drumbeat.cluster.rehearsing import Rehearsing, Report
from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.launch.ports import PortReservation, reserve_ports
from drumbeat.launch.together import LIMIT_CODE, Part, Result, run_together
from drumbeat.platforms import plain_python
from drumbeat.platforms import rehearsing as preparing
from drumbeat.platforms.command import DATA, TOKEN, starts_agent
from drumbeat.platforms.platform import Manifest, Platform, Process, Rehearsal

_NAME = re.compile(r"[\w][\w.-]{0,200}")
_FIRST_SIGNAL = 128
LAST_LINES, LINE_WIDTH = 30, 300
"""Shown of what a process has written last."""
_BUCKETS = ("gs://", "s3://")
_ON_BUCKETS = (
    "The job's data is in a bucket. Where this machine can't reach that, rehearse with a sample "
    "that lies here: drumbeat rehearse PLATFORM --set data=./sample."
)
ALONE_CODE = 1
"""All processes have succeeded, but each by itself."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What was asked for.

    Attributes:
        steps: After which agents end the job.
        timeout_s: After which everything is ended.
        max_processes: More are refused.
        environ: The environment of this process.
        variables: More of them for all processes, each NAME, or NAME=VALUE.
        make_folder: Called once nothing is left to be refused: for logs and outputs.
    """

    steps: int
    timeout_s: float
    max_processes: int
    environ: Mapping[str, str]
    variables: Sequence[str]
    make_folder: Callable[[], Path]


class _FreePorts:
    """See `drumbeat.platforms.platform.Places`; the ports are held until `close`."""

    def __init__(self) -> None:
        self._held: list[PortReservation] = []

    def port(self) -> int:
        self._held.append(reserve_ports(1))
        return self._held[-1].ports[0]

    def close(self) -> None:
        for each in self._held:
            each.close()


def rehearse(platform: Platform, manifest: Manifest, options: Options) -> int:
    """Runs the manifest's processes, says how it went, and returns the exit code.

    Raises:
        ConfigError: It can't be rehearsed, and why.
    """
    if platform.rehearse is None:
        raise ConfigError(
            f"{platform.title} can't be rehearsed: what is rendered for it starts no processes."
        )
    ports = _FreePorts()
    try:
        rehearsal = platform.rehearse(manifest, ports)
        _check_processes(rehearsal, options.max_processes)
        notes: list[str] = []
        # Differences speak of it where the platform had no way to give any.
        texts = "\n".join([manifest.text, *rehearsal.differences])
        told = preparing.told_token(rehearsal.processes, texts)
        processes, folder = _prepared(rehearsal, told, options, notes)
        problems = platform.problems(manifest) if platform.problems is not None else []
        _announce(platform.title, processes, [*problems, *notes], options)
        orders = {each.name: _order(each, folder, options.steps) for each in processes}
        parts = [
            Part(
                name=each.name,
                argv=each.command,
                env={**each.env, **orders[each.name].to_env()},
                is_main=each.is_main,
            )
            for each in processes
        ]
        result = run_together(
            parts, logs=folder, timeout_s=options.timeout_s, environ=options.environ
        )
    finally:
        ports.close()
    found = {name: Report.read(order.report) for name, order in orders.items()}
    return _tell(result, processes, found, rehearsal, folder, options)


def _check_processes(rehearsal: Rehearsal, most: int) -> None:
    count = len(rehearsal.processes)
    if not any(each.is_main for each in rehearsal.processes):
        raise ConfigError("The manifest has no process that trains; expected at least one worker.")
    if count > most:
        raise ConfigError(
            f"The manifest has {count} processes, more than the {most} that one machine is taken "
            "to have room for. Rehearse a smaller job (drumbeat rehearse PLATFORM -n 2), or allow "
            f"them with --max-processes {count}."
        )
    names = [each.name for each in rehearsal.processes]
    # They are names of files, too.
    if odd := [name for name in names if not _NAME.fullmatch(name)]:
        raise ConfigError(
            f"The manifest has a process called {shown(odd[0])}; expected letters, digits, . _ and "
            "- in names."
        )
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            f"The manifest has several processes called {listed(twice)}; expected a name for each."
        )


def _prepared(
    rehearsal: Rehearsal, told: frozenset[str], options: Options, notes: list[str]
) -> tuple[list[Process], Path]:
    """The processes as this machine runs them, and the folder for what they write.

    Args:
        rehearsal: As the platform would start them.
        told: Names of those that have the agents' secret.
        options: What was asked for.
        notes: For what is to be said.
    """
    machine = preparing.Machine(folder=Path.cwd(), python=sys.executable, environ=options.environ)
    extra = _variables(options.variables, options.environ)
    processes = preparing.all_of(
        rehearsal.processes, lambda each: preparing.at_home(each, machine), notes
    )
    folder = options.make_folder()
    processes = preparing.all_of(
        processes,
        lambda each: preparing.with_outputs(each, _order(each, folder, options.steps).outputs),
        notes,
    )
    token = {TOKEN: secrets.token_hex(32)}
    if len(processes) > 1 and TOKEN not in extra:
        agents = [each.name for each in rehearsal.processes if starts_agent(each.command)]
        notes += [_no_token(name) for name in agents if name not in told][:1]
    return [
        dataclasses.replace(each, env={**each.env, **(token if each.name in told else {}), **extra})
        for each in processes
    ], folder


def _no_token(name: str) -> str:
    return (
        f"Nothing gives {name} a {TOKEN}, so it has none here either. If there it comes from "
        f"elsewhere, give it: --env {TOKEN}=any-text."
    )


def _order(process: Process, folder: Path, steps: int) -> Rehearsing:
    order = Rehearsing(steps=steps, report=folder / f"{process.name}.json")
    order.outputs.mkdir(exist_ok=True)
    return order


def _variables(given: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals and name not in environ:
            raise ConfigError(
                f"--env is {shown(each)}, but no such variable is set here; expected NAME=VALUE, "
                "or the name of one that is set."
            )
        found[name] = value if equals else environ[name]
    return found


def _announce(
    title: str, processes: Sequence[Process], remarks: Sequence[str], options: Options
) -> None:
    names = listed([each.name for each in processes], options.max_processes)
    count = "1 process" if len(processes) == 1 else f"{len(processes)} processes"
    _say(f"Rehearsing {title}: {count} on this machine ({names}).")
    for remark in remarks:
        _say(remark)
    plain = [each for each in processes if not preparing.runs_drumbeat(each)]
    if plain:
        words = shlex.join(plain[0].command)
        _say(
            f"{listed([each.name for each in plain])} run {shown(words)}, without drumbeat run: "
            f"they go on until they end, or for {options.timeout_s:g} s; --steps has no effect."
        )


def _tell(
    result: Result,
    processes: Sequence[Process],
    reports: Mapping[str, Report | None],
    rehearsal: Rehearsal,
    folder: Path,
    options: Options,
) -> int:
    code = result.code
    if code == LIMIT_CODE and not result.failed:
        _say(
            f"Failed: not all had ended after {options.timeout_s:g} s (--timeout). Their last "
            f"lines are in {folder}."
        )
    elif result.failed:
        failed = f"Failed: {result.failed} ended with exit code {code}."
        logs = [folder / f"{each.name}.log" for each in processes]
        if _are_short(logs):
            _say(failed)  # all is still on the screen
        else:
            _say(f"{failed} Its last lines:")
            print(_last_lines(result.text), flush=True)
        if code != ConfigError.exit_code and _is_in_a_bucket(processes):
            _say(_ON_BUCKETS)
    elif code == 0:
        main = {each.name for each in processes if each.is_main}
        text, alone = together(
            {name: report for name, report in reports.items() if name in main and report}
        )
        without = plain_python.alone(processes, Path.cwd(), "trained")
        if without is not None:
            text, alone = f"Failed: {without}", True
        _say(text)
        code = ALONE_CODE if alone else 0
    if 0 < code < _FIRST_SIGNAL and plain_python.keras_cannot(processes, Path.cwd()):
        _say(plain_python.KERAS_CANNOT)
    _say(f"Logs are in {folder}.")
    was_stopped = not result.failed and code > _FIRST_SIGNAL
    if rehearsal.differences and not was_stopped and code != ConfigError.exit_code:
        _say("On the platform it will be different:")
        print("\n".join(f"  - {each}" for each in rehearsal.differences), flush=True)
    return code


def _are_short(logs: Sequence[Path]) -> bool:
    """Whether what all have written is little enough to be seen at once."""
    count = 0
    for log in logs:
        try:
            with log.open("rb") as file:
                text = file.read(LAST_LINES * LINE_WIDTH)
        except OSError:
            continue
        count += max(text.count(b"\n"), len(text) // LINE_WIDTH)
    return count < LAST_LINES


def _last_lines(text: str) -> str:
    """The end of a text, with lines that are not endless."""
    lines = text.split("\n")
    cut = [f"{line[:LINE_WIDTH]}…" if len(line) > LINE_WIDTH else line for line in lines]
    left_out = [f"… ({len(lines) - LAST_LINES} lines before)"] if len(lines) > LAST_LINES else []
    return "\n".join(left_out + cut[-LAST_LINES:])


def _is_in_a_bucket(processes: Sequence[Process]) -> bool:
    """Whether the job's data is, as far as its variables and arguments say so."""
    said = [word for each in processes for word in (each.env.get(DATA, ""), *each.command)]
    return any(word.startswith(_BUCKETS) for word in said)


def together(reports: Mapping[str, Report]) -> tuple[str, bool]:
    """Whether the processes found each other, in words, and whether they did not.

    Args:
        reports: Of those main processes that have an agent, by name.
    """
    training = {name: report for name, report in reports.items() if not report.task}
    if not training:
        return "Succeeded. None of them has an agent of drumbeat's, so nobody counted steps.", False
    alone = [name for name, report in training.items() if report.nodes == 1]
    if len(training) > 1 and alone:
        return (
            f"Failed: {listed(alone)} trained alone, as nothing in the environment says that the "
            f"{len(training)} processes belong together. drumbeat whoami, run there, shows what it "
            "says.",
            True,
        )
    some = next(iter(training.values()))
    if any(report.apart for report in training.values()):
        return (
            f"Failed: each of the {some.workers} workers trained a model of its own on all of the "
            "data, though they found each other: the log above says why.",
            True,
        )
    # Those that serve a coordinator on another node count none.
    steps = min((report.steps for report in training.values() if report.steps), default=0)
    met = f"The agents of {some.nodes} processes found each other. " if some.nodes > 1 else ""
    if not steps:
        return f"Succeeded. {met}The script has ended without a step that is counted.", False
    workers = f"{some.workers} workers trained together" if some.workers > 1 else "1 worker trained"
    return f"Succeeded. {met}{workers.capitalize()}: {steps} steps.", False


def _say(text: str) -> None:
    print(f"[drumbeat] {text}", flush=True)
