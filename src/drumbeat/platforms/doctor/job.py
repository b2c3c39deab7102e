"""What is wrong with a job before any platform has it. Pure: `Folder` says what is where."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from drumbeat.cluster.wording import listed
from drumbeat.control.comparison import workers as count_of
from drumbeat.control.doctor.credentials import DRIVERS, EXTRAS, GOOGLE, cloud_of
from drumbeat.control.doctor.machine import MIB, SHM_OF_GPUS, SHM_OF_WORKER
from drumbeat.control.doctor.result import Result, error, ok, warning
from drumbeat.errors import ConfigError
from drumbeat.platforms import command, left_out
from drumbeat.platforms.docker.render import is_local
from drumbeat.platforms.doctor import image, packages, urls
from drumbeat.platforms.doctor import script as scripts
from drumbeat.platforms.jobfile.documents import read_text
from drumbeat.platforms.jobfile.model import Job, Mount

DEFAULT_SHM = 64 * MIB
"""Of a container to which nobody gives another size."""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """What the checks look at beside the job.

    Attributes:
        script: The script's text; None where there is no such file.
        local_modules: Names that can be imported from the folder.
        modules: Names and texts of the files among these that the script imports.
        requirements: Text of the file of requirements; None without one.
        requirements_name: Its name.
        has_data: Whether the data's path is in the folder.
        named: Files of the folder that the job file names, and the data.
        ignored: Of these and the script, those that the folder's own .dockerignore leaves out.
        distributions: Which packages have what is imported by a name, as far as it is installed
            here.
        brought: Names of the packages that come with drumbeat.
    """

    script: str | None = None
    local_modules: frozenset[str] = frozenset()
    modules: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    requirements: str | None = None
    requirements_name: str = "requirements.txt"
    has_data: bool = False
    named: tuple[str, ...] = ()
    ignored: frozenset[str] = frozenset()
    distributions: Mapping[str, list[str]] = field(default_factory=dict)
    brought: frozenset[str] = frozenset()


def look(
    job: Job,
    folder: Path,
    distributions: Mapping[str, list[str]],
    brought: frozenset[str] = frozenset(),
) -> Folder:
    """Reads what is there.

    Args:
        job: The job.
        folder: The job file's.
        distributions: See `Folder`.
        brought: See `Folder`.
    """
    name = job.docker.requirements or "requirements.txt"
    path = _script_path(job, folder)
    script = _text(path)
    # Python looks beside the script, and in the folder for a module.
    places = dict.fromkeys([path.parent, folder])
    local = {each.stem for place in places for each in place.glob("*.py")}
    for place in places:
        local |= {each.parent.name for each in place.glob("*/*.py")}
        local |= {each.parents[1].name for each in place.glob("*/*/*.py")}

    def read(module: str) -> tuple[str, str] | None:
        for place in places:
            for file in (place / f"{module}.py", place / module / "__init__.py"):
                if (text := _text(file)) is not None:
                    return str(file.relative_to(place)), text
        return None

    data = job.data if job.data is not None and "://" not in job.data else None
    named = tuple(left_out.named(job, folder))
    ignores = (_text(folder / ".dockerignore") or "").splitlines()
    return Folder(
        script=script,
        local_modules=frozenset(local),
        modules=packages.modules(script, read) if script is not None else {},
        requirements=_text(folder / name),
        requirements_name=name,
        has_data=data is not None and not data.startswith("/") and (folder / data).exists(),
        named=named,
        ignored=frozenset(
            each for each in (*named, job.script) if each and left_out.is_left_out(each, ignores)
        ),
        distributions=distributions,
        brought=brought,
    )


def _script_path(job: Job, folder: Path) -> Path:
    if job.script is not None:
        return folder / job.script
    path = folder.joinpath(*str(job.module).split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def _text(path: Path) -> str | None:
    try:
        return read_text(path)
    except ConfigError:
        return None


def has_own_disk(job: Job) -> bool:
    """Whether its nodes are taken to be containers; not where it can only be meant for Slurm."""
    is_slurms = "slurm" in job.model_fields_set and job.slurm.container is None
    return not (is_slurms and job.image is None)


def check(
    job: Job, folder: Folder, files: int | None = None, *, own_disk: bool = True
) -> list[Result]:
    """All that is to be said about a job.

    Args:
        job: The job.
        folder: What is where.
        files: How many files the data has; None if unknown.
        own_disk: See `drumbeat.platforms.platform.Platform.has_own_disk`.
    """
    return [
        *_script(job, folder, files),
        *_requirements(job, folder, in_image=own_disk),
        *_credentials(job, folder, in_image=own_disk),
        *_data(job, folder, own_disk=own_disk),
        *(image.check(folder.named, folder.ignored) if own_disk else ()),
        *urls.check(job),
        *_output(job, own_disk=own_disk),
        *_shm(job),
    ]


def _script(job: Job, folder: Folder, files: int | None) -> list[Result]:
    name = job.script or f"module {job.module}"
    if folder.script is None:
        if job.module is not None:
            return [warning("script", f"{name} is not in this folder; is it in the image?")]
        if str(job.script).startswith("/"):
            return [warning("script", f"{name} is not here; expected it in the image.")]
        return [
            error(
                "script",
                f"{name} is not in the job file's folder, from which the image is made. Correct "
                "script: in the job file, or put it there.",
            )
        ]
    found: list[Result] = []
    if ".." in PurePosixPath(name).parts or name.startswith("/"):
        found.append(
            warning(
                "script",
                f"{name} is outside of the job file's folder, which is what the image has. "
                "Expected a path from that folder.",
            )
        )
    seen = scripts.look(folder.script, name)
    found += scripts.check(seen, name, workers=job.workers, files=files)
    return found


def _requirements(job: Job, folder: Folder, *, in_image: bool) -> list[Result]:
    if folder.script is None:
        return []
    given, file = folder.requirements, folder.requirements_name
    if given is None and job.docker.requirements is not None:
        return [
            error(
                "requirements",
                f"docker.requirements is {file}, which is not in the job file's folder. Correct "
                "it, or put the file there.",
            )
        ]
    # Ray's nodes have the packages that its own runtime environment lists.
    if given is None and (not in_image or {"pip", "uv", "conda"} & {*job.ray.runtime_env}):
        return []
    return packages.check(
        [(job.script or str(job.module), folder.script), *folder.modules.values()],
        folder.local_modules,
        folder.distributions,
        (file, given) if given is not None else None,
        folder.brought,
    )


def _credentials(job: Job, folder: Folder, *, in_image: bool) -> list[Result]:
    places = {"data": job.data, "output": job.output, "backups": command.backup_dir(job)}
    clouds: dict[str, str] = {}
    for url in places.values():
        if url is not None and (cloud := cloud_of(url)) is not None:
            clouds.setdefault(cloud, url)
    found: list[Result] = []
    for cloud, url in clouds.items():
        found += _driver(job, cloud, url, folder, in_image=in_image)
        names = {secret.env for secret in job.secrets} | set(job.environment)
        wanted = "GOOGLE_APPLICATION_CREDENTIALS" if cloud == GOOGLE else "AWS_ACCESS_KEY_ID"
        if wanted in names or (cloud != GOOGLE and "AWS_WEB_IDENTITY_TOKEN_FILE" in names):
            found.append(ok("credentials", f"{url}: by {wanted}, which the job sets."))
        elif job.kubernetes.service_account is not None:
            account = job.kubernetes.service_account
            found.append(ok("credentials", f"{url}: as the service account {account}."))
        else:
            found.append(
                warning(
                    "credentials",
                    f"{url} needs a login, and the job file gives none: fine on the cloud's own "
                    "machines (Vertex AI, SageMaker, nodes with a role), not elsewhere. Expected "
                    f"secrets: with env: {wanted}, or kubernetes.service_account.",
                )
            )
    for secret in job.secrets:
        if secret.env == "GOOGLE_APPLICATION_CREDENTIALS" and secret.path is None:
            found.append(
                error(
                    "credentials",
                    f"The secret {secret.name} puts its value into GOOGLE_APPLICATION_CREDENTIALS, "
                    "which has to name a file. Add path:, the folder where the file is to lie.",
                )
            )
    return found


def _driver(job: Job, cloud: str, url: str, folder: Folder, *, in_image: bool) -> list[Result]:
    """Whether the image has what reads the URL; what nodes without one have isn't known."""
    extra, driver, file = EXTRAS[cloud], DRIVERS[cloud], folder.requirements_name
    given = job.docker.drumbeat
    named = packages.required(f"{folder.requirements or ''}\n{given or ''}")
    if any(name == driver or (name == "drumbeat" and extra in extras) for name, extras in named):
        return [ok("driver", f"{url}: {driver} is in {file} or docker.drumbeat.")]
    if not in_image:
        return []
    if given is None or is_local(given):
        return [ok("driver", f"{url}: drumbeat render docker installs drumbeat[{extra}].")]
    return [
        error(
            "driver",
            f"{url} needs {driver}, which neither docker.drumbeat ({given}) nor {file} brings. "
            f"Write drumbeat[{extra}] there.",
        )
    ]


def _mount(job: Job, path: str) -> Mount | None:
    """The mount that a path of the container is in."""
    inside = PurePosixPath(path)
    mounts = [each for each in job.mounts if inside.is_relative_to(PurePosixPath(each.path))]
    return max(mounts, key=lambda each: len(each.path), default=None)


def _data(job: Job, folder: Folder, *, own_disk: bool) -> list[Result]:
    if job.data is None or "://" in job.data:
        return []
    if folder.has_data:
        where = "in the job file's folder"
        if not own_disk:
            return [ok("data", f"{job.data} is {where}, from which the job is submitted.")]
        if image.check([job.data], folder.ignored & {job.data}):
            return []  # said with the rest of the image
        return [ok("data", f"{job.data} is {where}, and goes into the image.")]
    if not job.data.startswith("/"):
        return [
            error(
                "data",
                f"data is {job.data}, which is not in the job file's folder, from which the image "
                "is made. Put it there, name a URL, or mount it (mounts:) and give its absolute "
                "path.",
            )
        ]
    if not own_disk:
        return [ok("data", f"{job.data} has to be {_ON_ALL}")]
    if _mount(job, job.data) is None:
        return [
            warning(
                "data",
                f"data is {job.data}, and no mount of the job file is there: containers do not see "
                "this machine's folders. Expected an entry of mounts: with that path, or a URL; on "
                "Slurm, a folder that all nodes share.",
            )
        ]
    return [ok("data", f"{job.data} is in a mount.")]


_ON_ALL = "the same on all nodes: drumbeat doctor --together looks, started there."


def _output(job: Job, *, own_disk: bool) -> list[Result]:
    found: list[Result] = []
    if command.backup_dir(job) is None and own_disk:
        found.append(warning("output", command.NO_OUTPUT))
    places = {"output": job.output, "run.backup_dir": job.run.backup_dir}
    for key, place in places.items():
        if place is None or "://" in place or urls.lacks_slash(place):
            continue
        mount = _mount(job, place) if place.startswith("/") else None
        if not own_disk:
            found.append(ok("output", f"{place} has to be {_ON_ALL}"))
        elif mount is None:
            found.append(_unshared(job, key, place))
        elif mount.read_only:
            found.append(
                error(
                    "output",
                    f"{key} is {place}, but the mount {mount.name} is read-only. Leave out "
                    "read_only, or name another place.",
                )
            )
        elif mount.source is not None and ":" not in mount.source and job.nodes > 1:
            found.append(
                warning(
                    "output",
                    f"{key} is {place}, in the mount {mount.name} of the folder {mount.source}: "
                    f"each of the {job.nodes} nodes has a folder of its own, unless it is one file "
                    "system on all of them. Expected a volume that they share, or a URL.",
                )
            )
        else:
            found.append(ok("output", f"{place} is in the mount {mount.name}."))
    return found


def _unshared(job: Job, key: str, place: str) -> Result:
    expected = "Expected a URL (gs://, s3://), or an absolute path in one of mounts:"
    if job.nodes > 1:
        return error(
            "output",
            f"{key} is {place}, in each of the {job.nodes} nodes' own file system: they do not "
            f"share it, and in containers it is gone with them. {expected}; on Slurm a folder "
            "that all nodes share will do.",
        )
    return warning(
        "output",
        f"{key} is {place}, in the container's own file system, which is gone with it. {expected}.",
    )


def _shm(job: Job) -> list[Result]:
    size, local = job.resources.shm, job.devices.count
    need = SHM_OF_GPUS if job.devices.gpus > 1 else SHM_OF_WORKER * local
    if size is not None and size < need:
        return [
            error(
                "shm",
                f"resources.shm is {size // MIB} MiB; {local} workers of one node need "
                f"{need // MIB} ({_WHY[job.devices.type]}). Raise it.",
            )
        ]
    if size is None and need > DEFAULT_SHM:
        text = f"{local} workers of one node need {need // MIB} MiB ({_WHY[job.devices.type]})"
        return [ok("shm", f"{text}, which what is rendered asks for; docker run: --shm-size 2g.")]
    if size is not None and job.resources.memory is not None and size > job.resources.memory:
        return [
            warning(
                "shm",
                "resources.shm is more than resources.memory, of which it is a part: the node's "
                "processes would be killed before it is full.",
            )
        ]
    return [ok("shm", f"Enough for {count_of(local)} on each node.")]


_WHY = {"gpu": "NCCL between GPUs", "cpu": "MPI"}


def told(job: Job) -> str:
    """What the job is, in a line."""
    parts = [f"{count_of(job.workers)} on {job.nodes} node{'s' * (job.nodes > 1)}"]
    parts += [f"{job.ps} ps"] if job.ps else []
    parts += ["an evaluator"] if job.evaluator else []
    return f"{job.name}: {listed(parts)}."
