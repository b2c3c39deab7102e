"""Anybody's Ray job: what `ray job submit` is given as YAML or JSON, or KubeRay's RayJob.

Source: Ray 2.60 (JobSubmissionClient.submit_job); KubeRay v1 RayJob (entrypoint, runtimeEnvYAML).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.platform import Advice, Manifest, Places, Process, Rehearsal
from drumbeat.platforms.ray.driver import variables
from drumbeat.platforms.ray.options import MODULE, Options, parse
from drumbeat.platforms.secret_names import names_secret

_SHELL = re.compile(r"[|&;<>`\n]|\$\(")
_KNOWN = frozenset(
    [
        "entrypoint",
        "runtime_env",
        "metadata",
        "submission_id",
        "job_id",
        "entrypoint_num_cpus",
        "entrypoint_num_gpus",
        "entrypoint_memory",
        "entrypoint_resources",
        "entrypoint_label_selector",
    ]
)


def recognises(manifest: Manifest) -> bool:
    """Whether it has an entrypoint, as Ray's jobs have."""
    value = manifest.documents[0].value if len(manifest.documents) == 1 else None
    if not isinstance(value, dict):
        return False
    if value.get("kind") == "RayJob":
        return True
    return "entrypoint" in value and "kind" not in value and "services" not in value


def rehearse(manifest: Manifest, places: Places) -> Rehearsal:
    """The agents that the entrypoint would start in Ray; another entrypoint as it is.

    Raises:
        ConfigError: The job can't be used.
    """
    entrypoint, runtime_env = _read(manifest)
    env = _env_vars(runtime_env)
    words, options = _driver(entrypoint)
    if options is None:
        processes = (Process(name="driver", command=tuple(words), env=env),)
        differences = [
            "There is no cluster of Ray here: where the entrypoint calls ray.init(), it starts a "
            "small one of this machine."
        ]
    else:
        place = ("127.0.0.1", places.port())
        processes = tuple(
            Process(
                name=f"node-{rank}",
                command=options.command,
                env={**env, **variables(rank, options.nodes, place, "rehearsed")},
            )
            for rank in range(options.nodes)
        )
        differences = [
            f"Ray would place {options.nodes} node{'s' * (options.nodes > 1)} by "
            f"{options.placement}, with "
            f"{_amounts(options)} for each; here they share this machine.",
            "Ray starts a node again whose actor it loses; here nothing does.",
            "Ray's own variables (RAY_…) are not set here.",
        ]
    differences += _of_runtime_env(runtime_env)
    return Rehearsal(platform="ray", processes=processes, differences=tuple(differences))


def problems(manifest: Manifest) -> list[str]:
    """What Ray would refuse, or do otherwise than meant; see `Platform.problems`."""
    try:
        entrypoint, runtime_env = _read(manifest)
        env = _env_vars(runtime_env)
        words, options = _driver(entrypoint)
    except ConfigError as error:
        return [str(error)]
    found = list(_of_entrypoint(words, options, env))
    found += _of_env(runtime_env, env)
    value = manifest.documents[0].value
    if value.get("kind") != "RayJob":
        found += [
            f"{name} is none of the keys of Ray's jobs." for name in sorted(set(value) - _KNOWN)
        ]
    return found


def _read(manifest: Manifest) -> tuple[str, Mapping[str, Any]]:
    name = manifest.path.name
    value = manifest.documents[0].value if len(manifest.documents) == 1 else None
    if not isinstance(value, dict):
        raise ConfigError(f"{name} is no job of Ray; expected a mapping with an entrypoint.")
    if value.get("kind") == "RayJob":
        spec = value.get("spec")
        value = dict(spec) if isinstance(spec, dict) else {}
        value["runtime_env"] = _yaml_in(value.get("runtimeEnvYAML"), name)
    entrypoint, runtime_env = value.get("entrypoint"), value.get("runtime_env") or {}
    if not isinstance(entrypoint, str) or not entrypoint.strip():
        raise ConfigError(f"{name}: entrypoint is {shown(entrypoint)}; expected a command.")
    if not isinstance(runtime_env, dict):
        raise ConfigError(f"{name}: runtime_env is {shown(runtime_env)}; expected a mapping.")
    return entrypoint, runtime_env


def _yaml_in(text: Any, name: str) -> Any:
    if text is None:
        return {}
    documents = parse_yaml(str(text), f"{name}, runtimeEnvYAML")
    return documents[0].value if documents else {}


def _env_vars(runtime_env: Mapping[str, Any]) -> dict[str, str]:
    given = runtime_env.get("env_vars") or {}
    if not isinstance(given, dict):
        raise ConfigError(f"env_vars is {shown(given)}; expected a mapping.")
    for name, value in given.items():
        if not isinstance(value, str):
            raise ConfigError(
                f"env_vars has {shown(value)} for {name}, and Ray takes text; write it in quotes."
            )
        if not name or "=" in name:
            raise ConfigError(f"env_vars has {shown(name)}, which can't be a variable.")
    return dict(given)


def _driver(entrypoint: str) -> tuple[list[str], Options | None]:
    """The entrypoint's words, and the driver's options where it is drumbeat's."""
    try:
        words = shlex.split(entrypoint)
    except ValueError as error:
        raise ConfigError(f"entrypoint is {shown(entrypoint)}: {error}.") from None
    if MODULE in words:
        return words, parse(words[words.index(MODULE) + 1 :])
    if _SHELL.search(entrypoint) or not words or "=" in words[0]:
        return ["sh", "-c", entrypoint], None
    return words, None


def _amounts(options: Options) -> str:
    words = [f"{options.cpus:g} CPUs"]
    if options.gpus:
        words.append(f"{options.gpus:g} GPUs")
    if options.memory:
        words.append(f"{options.memory / 2**30:.1f} GiB")
    return ", ".join(words)


def _of_runtime_env(runtime_env: Mapping[str, Any]) -> Iterator[str]:
    for name in ("pip", "uv", "conda", "image_uri", "container", "py_modules"):
        if name in runtime_env:
            yield (
                f"Ray would prepare {name} ({shown(runtime_env[name])}); here are this Python and "
                "its packages."
            )
    if "working_dir" in runtime_env:
        yield (
            f"Ray would run in a copy of {runtime_env['working_dir']}, without what it excludes; "
            "here it is the folder itself."
        )


def _of_entrypoint(
    words: Sequence[str], options: Options | None, env: Mapping[str, str]
) -> Iterator[str]:
    program = PurePosixPath(words[0]).name
    if options is None and program == "drumbeat" and "run" in words[1:2]:
        yield Advice(
            "The entrypoint is drumbeat run itself, which trains on the machine that Ray runs it "
            f"on, and on no other; expected python -m {MODULE} --nodes N -- drumbeat run …"
        )
    if options is None:
        return
    if PurePosixPath(options.command[0]).name != "drumbeat":
        yield Advice(f"Each node runs {options.command[0]}; expected drumbeat run and a script.")
    if options.gpus and any(name == "CUDA_VISIBLE_DEVICES" for name in env):
        yield "env_vars has CUDA_VISIBLE_DEVICES, which Ray sets for each node itself."
    if "--nodes" in options.command or "--node-rank" in options.command:
        yield "The nodes' command has --nodes or --node-rank, which the entrypoint says itself."


def _of_env(runtime_env: Mapping[str, Any], env: Mapping[str, str]) -> Iterator[str]:
    if "TF_CONFIG" in env:
        yield "env_vars has TF_CONFIG: all processes would be the same task; leave it out."
    for name in env:
        if names_secret(name):
            yield f"env_vars has the value of {name}, which everybody sees who sees the job."
    if "working_dir" not in runtime_env and "image_uri" not in runtime_env:
        yield Advice(
            "runtime_env has no working_dir: the script must be there on Ray's nodes, at the same "
            "path."
        )
