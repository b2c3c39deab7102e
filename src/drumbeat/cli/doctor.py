"""`drumbeat doctor`: the mistakes that people make, before the cluster finds them."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from drumbeat.cli.jobs import manifest_for, recognised
from drumbeat.cli.refused import option_of_run
from drumbeat.errors import ConfigError, RendezvousError

if TYPE_CHECKING:
    from drumbeat.cluster import ClusterSpec
    from drumbeat.control.doctor.result import Result
    from drumbeat.launch.place import Place
    from drumbeat.launch.settings import RunArguments
    from drumbeat.platforms.jobfile import Job
    from drumbeat.platforms.platform import Manifest, Platform

Text = Optional[str]  # noqa: UP045  (typer evaluates it, on Python 3.10 too)
Number = Optional[int]  # noqa: UP045
WAIT_S = 120.0
_MACHINES = "With --together"


def doctor(
    file: Annotated[
        Text,
        typer.Argument(
            metavar="FILE|PLATFORM",
            help="A job file, a platform's own file, or a platform's name: then what is rendered "
            "of the job file for it (default: drumbeat.yaml, where there is one).",
        ),
    ] = None,
    together: Annotated[
        bool,
        typer.Option(
            "--together",
            metavar="",
            help="Meet the other nodes, which run the same command: who reaches whom, and what "
            "differs.",
        ),
    ] = False,
    data: Annotated[
        Text, typer.Option("--data", metavar="PATH|URL", help="That all nodes have to see.")
    ] = None,
    output: Annotated[
        Text, typer.Option("--output", metavar="PATH|URL", help="That all nodes have to share.")
    ] = None,
    workers: Annotated[
        int, typer.Option("-n", "--workers", metavar="N", help="Workers of this machine.")
    ] = 1,
    as_json: Annotated[
        bool, typer.Option("--json", metavar="", help="For programs: one object.")
    ] = False,
    nodes: Annotated[
        Number,
        typer.Option(
            "--nodes",
            metavar="N",
            help="As of `drumbeat run`, where no platform says it.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    node_rank: Annotated[
        Number, typer.Option("--node-rank", metavar="N", rich_help_panel=_MACHINES)
    ] = None,
    rendezvous: Annotated[
        Text, typer.Option("--rendezvous", metavar="HOST:PORT", rich_help_panel=_MACHINES)
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            min=1,
            max=86400,
            help="How long to wait for the others.",
            rich_help_panel=_MACHINES,
        ),
    ] = WAIT_S,
) -> None:
    """Find what a job would fail of, before it does.

    Looks at TF_CONFIG and its addresses, this machine, the script, data, output and
    credentials, and at a job file or a manifest. The exit code is 1 where there is
    something to mend.
    """
    from drumbeat.launch.settings import RunArguments

    arguments = RunArguments(command=("",), nodes=nodes, node_rank=node_rank, rendezvous=rendezvous)
    given = {name: value for name, value in (("data", data), ("output", output)) if value}
    if together:
        results, lines = _together(file, arguments, given, workers, timeout)
    elif nodes is not None or node_rank is not None or rendezvous is not None:
        raise ConfigError("--nodes, --node-rank and --rendezvous go with --together; add it.")
    else:
        results, lines = _alone(file, given, workers), []
    _show(results, lines, as_json)


def _alone(file: str | None, given: dict[str, str], workers: int) -> list[Result]:
    from drumbeat.launch.place import environ_here
    from drumbeat.platforms import registry
    from drumbeat.platforms.doctor import manifest as manifests

    if file in registry.PLATFORMS and not Path(file).is_file():
        return _of_platform(registry.get(file))
    found: list[Result] = []
    job, manifest, folder = _read(file)
    if manifest is not None:
        return manifests.check(*manifest, refused=option_of_run)
    if file is None:
        env = environ_here(os.environ)
        found += _here(env, _places(env, None, given), folder, workers)
    if job is not None:
        found += _of_job(job, folder)
    return found


def _read(file: str | None) -> tuple[Job | None, tuple[Manifest, Platform] | None, Path]:
    """The job or the manifest that is meant, and its folder."""
    from drumbeat.platforms.jobfile import read

    if file is None:
        here = Path.cwd()
        try:
            path = read.find(None, here)
        except read.NoJobFile:
            return None, None, here
        return read.read(path), None, here
    path = Path(file)
    found = recognised(path)
    if found is None:
        return read.read(path), None, path.parent
    return None, found, path.parent


def _places(env: Mapping[str, str], job: Job | None, given: dict[str, str]) -> dict[str, str]:
    """Data and output: as given, else of the job, else what a platform has set."""
    from drumbeat.platforms.command import DATA, OUTPUT

    found = {"data": env.get(DATA, ""), "output": env.get(OUTPUT, "")}
    if job is not None:
        found |= {
            key: value for key, value in (("data", job.data), ("output", job.output)) if value
        }
    return {key: value for key, value in (found | given).items() if value}


def _here(
    env: Mapping[str, str], places: dict[str, str], folder: Path, workers: int
) -> list[Result]:
    """This process and its machine."""
    from drumbeat.control.doctor import credentials, machine
    from drumbeat.control.doctor import places as judge
    from drumbeat.control.doctor.result import OK
    from drumbeat.launch.doctor import facts

    tf_config, cluster = judge.check_tf_config(env)
    found = [tf_config, *_who(env)]
    if cluster is not None:
        found += _cluster(env, cluster)
    logins = credentials.check(places, env, facts.credential_facts(env))
    can_log_in = all(each.state == OK for each in logins)
    tried = {key: place for key, place in places.items() if can_log_in or "://" not in place}
    this = facts.of_this_machine(
        env, folder=folder, data=tried.get("data"), output=tried.get("output")
    )
    return [*found, *machine.check(this, workers=workers), *logins]


def _who(env: Mapping[str, str]) -> list[Result]:
    """What the platform's variables say, and the agents' secret."""
    from drumbeat.cli.whoami import describe
    from drumbeat.control.doctor.places import check_token
    from drumbeat.control.doctor.result import error, ok
    from drumbeat.launch.place import find_place
    from drumbeat.launch.settings import RunArguments

    lines, wrong = describe(env)
    lines = [line for line in lines if not line.startswith(("TF_CONFIG", "DRUMBEAT_TOKEN"))]
    found = [(error if wrong else ok)("place", " ".join(lines))] if lines else []
    try:
        place = find_place(RunArguments(command=("",)), env)
    except ConfigError:
        return found  # said above
    return found + check_token(env, place.nodes)


def _cluster(env: Mapping[str, str], cluster: ClusterSpec) -> list[Result]:
    """The addresses of TF_CONFIG, tried from here."""
    from drumbeat.cluster.address import parse_address
    from drumbeat.control.doctor import places as judge
    from drumbeat.launch.doctor import reach

    assert cluster.task is not None, "check_tf_config sees to it"  # noqa: S101
    found = _loopback(env, cluster)
    own = cluster.address(cluster.task) if cluster.task in cluster.tasks else ""
    if own:
        address = parse_address(own, "")
        here = True if address.loopback else reach.is_here(address.host)
        busy = reach.why_busy(address.port) if here is not False else ""
        found += judge.check_own(cluster, judge.Own(is_here=here, busy=busy))
    names = {cluster.address(task): str(task) for task in cluster.tasks}
    others = [name for name in names if name != own]
    reached = asyncio.run(reach.probe_all(others, timeout_s=reach.PROBE_TIMEOUT_S))
    ips = {parse_address(name, "").host: each.ips for name, each in reached.items()}
    if own:
        host = parse_address(own, "").host
        ips[host] = reach.addresses_of(host)
    found += judge.check_same_place(cluster, ips)
    return found + judge.check_reach(reached, names)


def _loopback(env: Mapping[str, str], cluster: ClusterSpec) -> list[Result]:
    from drumbeat.control.doctor.places import check_loopback

    for name in _COUNTS:
        if (count := env.get(name, "1")) != "1":
            return check_loopback(cluster, several=f"{name} is {count}")
    several = next((f"{name} is set" for name in _STARTED if env.get(name)), "")
    return check_loopback(cluster, several=several, is_sure=False)


_COUNTS = ("SLURM_STEP_NUM_NODES", "SKYPILOT_NUM_NODES")
"""How many machines the job has."""
_STARTED = ("KUBERNETES_SERVICE_HOST", "SLURM_JOB_ID", "CLOUD_ML_JOB_ID", "SM_HOSTS")
"""Set where a platform has started this process, perhaps on one of several machines."""


def _of_job(job: Job, folder: Path, platform: Platform | None = None) -> list[Result]:
    from importlib.metadata import packages_distributions

    from drumbeat.control.doctor.result import ok
    from drumbeat.launch.doctor import facts
    from drumbeat.platforms.docker.render import extras
    from drumbeat.platforms.doctor import job as jobs
    from drumbeat.platforms.doctor.packages import brought

    own_disk = jobs.has_own_disk(job) if platform is None else platform.has_own_disk(job)
    there = jobs.look(job, folder, packages_distributions(), brought(extras(job)))
    files = None
    if job.data is not None and "://" not in job.data:
        files = facts.look_at(job.data, folder).files
    return [ok("job file", jobs.told(job)), *jobs.check(job, there, files, own_disk=own_disk)]


def _of_platform(platform: Platform) -> list[Result]:
    """The folder's job file, and what is rendered of it for a platform."""
    from drumbeat.control.doctor.result import error
    from drumbeat.platforms import needed
    from drumbeat.platforms.doctor import manifest as manifests
    from drumbeat.platforms.jobfile import read

    if platform.render is None:
        raise ConfigError(
            f"{platform.name} has files of its own alone; expected one, such as config.yaml."
        )
    path = read.find(None, Path.cwd())
    job = read.read(path)
    found = _of_job(job, path.parent, platform)
    try:
        _, manifest = needed.both(
            lambda: platform.connect(job) if platform.connect is not None else None,
            lambda: manifest_for(platform, None, []),
        )
    except ConfigError as problem:
        return [*found, error("platform", str(problem))]
    checked = manifests.check(manifest, platform, refused=option_of_run)
    # More can be seen in the manifest than in the job file.
    seen = {each.check for each in checked}
    return [*(each for each in found if each.check not in seen), *checked]


def _together(
    file: str | None, arguments: RunArguments, given: dict[str, str], workers: int, timeout_s: float
) -> tuple[list[Result], list[str]]:
    from drumbeat.control.doctor import together
    from drumbeat.control.doctor.result import error
    from drumbeat.launch.doctor import facts, meet
    from drumbeat.launch.place import environ_here, find_place
    from drumbeat.launch.token import token_of

    env = environ_here(os.environ)
    place = find_place(arguments, env)
    _check_several(place)
    token = token_of(place, env)
    job, _, folder = _read(file) if file is not None or _has_job() else (None, None, Path.cwd())
    places = _places(env, job, given)
    logins = facts.login_problems(env, places)
    if logins:
        places = {key: place for key, place in places.items() if "://" not in place}
    this = facts.of_this_machine(
        env,
        folder=folder,
        script=job.script if job is not None else None,
        data=places.get("data"),
        output=places.get("output"),
    )
    meeting = meet.meet(
        place,
        token,
        dataclasses.replace(this, problems=logins),
        output=places.get("output"),
        folder=folder,
        timeout_s=timeout_s,
        say=lambda text: print(f"drumbeat: {text}", file=sys.stderr, flush=True),
    )
    try:
        met = asyncio.run(meeting)
    except RendezvousError as problem:
        text = f"{problem}{_hint(place)}"
        return [error("meeting", text), *_here(env, places, folder, workers)], []
    found = [
        error(
            "meeting",
            f"Node {rank} did not come within {timeout_s:g} s. Start the same command on all "
            "nodes; if it was, it could not reach node 0, and says so there.",
        )
        for rank in met.absent
    ]
    found += together.check(met.machines, met.reached, workers=workers)
    if place.node_rank and place.nodes > 1:
        return found, [f"Node {place.node_rank} of {place.nodes}; node 0 shows the table."]
    names = {rank: f"{met.hosts[rank]} ({each.hostname})" for rank, each in met.machines.items()}
    return found, together.table(names, met.reached) if len(names) > 1 else []


def _hint(place: Place) -> str:
    """What else is to be said of a meeting that came to nothing."""
    from drumbeat.cluster.address import parse_address

    assert place.rendezvous is not None  # noqa: S101
    host, port = place.rendezvous
    name = f"[{host}]" if ":" in host else host
    if place.node_rank == 0 or not parse_address(f"{name}:{port}", "").loopback:
        return ""
    return (
        f" {host} is each machine itself: if node 0 is on another one, give all of them the name "
        "or address by which they reach it."
    )


def _has_job() -> bool:
    from drumbeat.platforms.jobfile import read

    return any(Path(name).is_file() for name in read.NAMES)


def _check_several(place: Place) -> None:
    if place.nodes == 1:
        raise ConfigError(
            "--together is for several nodes, and nothing here says that there are: expected "
            "TF_CONFIG, a platform's variables (drumbeat whoami shows them), or --nodes, "
            "--node-rank and --rendezvous."
        )
    if place.lone_task is not None:
        raise ConfigError(f"{place.lone_task} does not meet the others; leave it out here.")


def _show(results: list[Result], lines: list[str], as_json: bool) -> None:
    from drumbeat.control.doctor.result import ERROR, row, summary

    is_wrong = any(each.state == ERROR for each in results)
    if as_json:
        print(
            json.dumps(
                {"ok": not is_wrong, "checks": [dataclasses.asdict(each) for each in results]}
            )
        )
        raise typer.Exit(int(is_wrong))
    if lines:
        print("\n".join(lines) + "\n")
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    width = max((len(each.check) for each in results), default=0)
    for each in results:
        print(row(each, width, columns))
    print(summary(results))
    raise typer.Exit(int(is_wrong))
