"""What is wrong with a platform's own file, as far as it shows before it runs."""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from drumbeat.cluster import ClusterSpec, launched_by
from drumbeat.cluster.wording import listed, shown
from drumbeat.control.doctor import places
from drumbeat.control.doctor.result import OK, WARNING, Result, error, ok, warning
from drumbeat.errors import ConfigError, DrumbeatError
from drumbeat.platforms import plain_python
from drumbeat.platforms.command import TOKEN, TOKEN_FILE, starts_agent
from drumbeat.platforms.doctor import stores
from drumbeat.platforms.platform import Advice, Manifest, NoCommand, Platform, Process

_TOKENS = (TOKEN, TOKEN_FILE)
_FIRST_PORT = 20_000
_MAX_PROCESSES = 64


def _none(words: Sequence[str]) -> str:
    return ""


class _Ports:
    """Stands for free ports where nothing is going to listen."""

    def __init__(self) -> None:
        self._numbers = itertools.count(_FIRST_PORT)
        self.addresses: set[str] = set()

    def port(self) -> int:
        number = next(self._numbers)
        self.addresses.add(f"127.0.0.1:{number}")
        return number


def check(
    manifest: Manifest, platform: Platform, *, refused: Callable[[Sequence[str]], str] = _none
) -> list[Result]:
    """All that is to be said about a platform's file, each mistake once.

    Args:
        manifest: The file.
        platform: Whose it is.
        refused: From the words behind `drumbeat run` to the first option that it has not, or "".
    """
    name = manifest.path.name
    problems = platform.problems(manifest) if platform.problems is not None else []
    found = [ok("platform", f"{name} is for {platform.title}.")]
    found += [_problem(name, text) for text in problems]
    found += _written_tf_config(manifest)
    if not any("shm" in text for text in problems) and platform.name != "compose":
        found += _shm(manifest)
    found += _of_processes(manifest, platform, problems, refused)
    return each_once(found, name)


def _problem(name: str, text: str) -> Result:
    said = text if text.startswith(name) else f"{name}: {text}"
    return (warning if isinstance(text, Advice) else error)("manifest", said)


def _of_processes(
    manifest: Manifest,
    platform: Platform,
    problems: list[str],
    refused: Callable[[Sequence[str]], str],
) -> list[Result]:
    if platform.rehearse is None:
        return []
    name, ports = manifest.path.name, _Ports()
    try:
        rehearsal = platform.rehearse(manifest, ports)
    except DrumbeatError as problem:
        if not all(isinstance(text, Advice) for text in problems):
            return []  # it follows from what was said, or can wait until that is mended
        text = str(problem)
        return [_problem(name, Advice(text) if isinstance(problem, NoCommand) else text)]
    says_token = _says_token(manifest) or any(TOKEN in text for text in problems)
    # Compose has no variables but the file's, and its problems compare these.
    has_said = platform.name == "compose" or any(
        "TF_CONFIG" in text and not isinstance(text, Advice) for text in problems
    )
    found = check_processes(
        rehearsal.processes,
        says_token,
        is_same_checked=has_said,
        stand_ins=ports.addresses,
        said="\n".join(problems),
    )
    # Each is told of all others, which takes the square of their number to read.
    found += _of_plain_python(rehearsal.processes[:_MAX_PROCESSES], " ".join(problems))
    words = dict.fromkeys(_behind_run(each.command) for each in rehearsal.processes)
    found += [
        _problem(
            name,
            f"drumbeat run has no option {option}. It would refuse it; what belongs to the script "
            "stands behind the script.",
        )
        for option in dict.fromkeys(filter(None, map(refused, words)))
    ]
    if any(result.state == WARNING for result in found) or "alone" in " ".join(problems):
        found = [result for result in found if result.state != OK]
    return [*stores.check(manifest, platform.name, rehearsal.processes), *found]


def _of_plain_python(processes: tuple[Process, ...], said: str) -> list[Result]:
    """What becomes of processes that run Python without drumbeat; `said` are problems so far."""
    found: list[Result] = []
    alone = plain_python.alone(processes, Path.cwd(), "would train")
    if alone is not None and "alone" not in said and "TF_CONFIG is set before srun" not in said:
        found.append(warning("processes", str(alone)))
    names = plain_python.keras_cannot(processes, Path.cwd())
    if names:
        found.append(warning("keras", f"{listed(names)}: {plain_python.KERAS_CANNOT}"))
    return found


def _behind_run(words: tuple[str, ...]) -> tuple[str, ...]:
    """The words behind `drumbeat run`, where it is the command itself."""
    for at, word in enumerate(words[:3]):
        if word.rpartition("/")[2] == "drumbeat" and words[at + 1 : at + 2] == ("run",):
            return words[at + 2 :]
    return ()


def each_once(results: list[Result], name: str) -> list[Result]:
    """The results without what an earlier one says, too, in other words before it.

    Args:
        results: Of several, who look at the same file.
        name: The file's, which some put first.
    """
    kept: list[Result] = []
    said = _follow(result.text for result in results if result.state != OK)
    for result in results:
        if result.state == OK:
            kept.append(result)
            continue
        lines = {_core(line, name): line for line in result.text.splitlines()}
        new = [line for core, line in lines.items() if not said & {core, line}]
        said |= set(lines)
        if new:
            kept.append(dataclasses.replace(result, text="\n".join(new)))
    return kept


def _core(text: str, name: str) -> str:
    """What is wrong, without whom it is wrong of."""
    at = text.find("TF_CONFIG: ")
    return text[at:] if at >= 0 else text.removeprefix(f"{name}: ")


def _follow(lines: Iterable[str]) -> set[str]:
    """Those of the lines that others make plain: a key that is missing, since it is misspelt."""
    text = "\n".join(lines)
    misspelt = set(re.findall(r"\bdid you mean ([\w.]+)\?", text))
    missing = misspelt | set(re.findall(r"([\w.]+) is missing\b", text))
    found = [rf"\bhas no {re.escape(key)}\b" for key in misspelt]
    found += [rf"(?<![\w.]){re.escape(key)}[\w.]* is missing\b" for key in misspelt]
    found += [rf"(?<![\w.]){re.escape(key)}[\w.]* is None\b" for key in missing]
    return {line for line in text.splitlines() if any(re.search(each, line) for each in found)}


def check_processes(
    processes: tuple[Process, ...],
    says_token: bool,
    *,
    is_same_checked: bool = False,
    stand_ins: Collection[str] = (),
    said: str = "",
) -> list[Result]:
    """What the platform would tell each process of the others.

    Args:
        processes: As the platform would start them.
        says_token: The file gives them a secret, wherever it comes from, or lacks it, as was said.
        is_same_checked: That they were told the same is looked at elsewhere.
        stand_ins: Addresses in place of those of the file's hosts.
        said: What was said of the file.
    """
    found: list[Result] = []
    strangers: list[str] = []
    is_wrong = False
    clusters: dict[str, ClusterSpec] = {}
    for process in processes[:_MAX_PROCESSES]:
        try:
            cluster = ClusterSpec.from_env(process.env)
            if cluster is None:
                launched_by.find(process.env)
        except ConfigError as problem:
            text = str(problem)
            used = [address for address in stand_ins if address in text]
            others = _strangers(process.env, stand_ins) if used else []
            strangers += others
            is_wrong = True
            if others or (used and is_same_checked):
                continue  # said below, or before
            for address in used:
                text = text.replace(address, "HOST:PORT")
            found.append(error("TF_CONFIG", f"{process.name}: {text}"))
            continue
        if cluster is not None and cluster.task is not None:
            clusters[process.name] = cluster
    names = [process.name for process in processes]
    new = [each for each in dict.fromkeys(strangers) if each not in said]
    if new and not is_same_checked:
        found.append(
            error(
                "TF_CONFIG",
                f"TF_CONFIG has {listed(new)}, which no host of this file "
                "is, while its other addresses are. Correct the name.",
            )
        )
    if len(processes) <= _MAX_PROCESSES and not found and not is_same_checked:
        found += places.check_same_cluster(clusters, names)
    is_ours = any(starts_agent(process.command) for process in processes)
    has_token = says_token or all(
        any(process.env.get(name) for name in _TOKENS) for process in processes
    )
    if len(processes) > 1 and is_ours and not has_token:
        found.append(
            error(
                "token",
                f"Its {len(processes)} processes are given no DRUMBEAT_TOKEN, by which the agents "
                "know each other. Give all of them one secret in that variable, or its file in "
                "DRUMBEAT_TOKEN_FILE.",
            )
        )
    if not found and not is_wrong:
        many = f"{len(processes)} processes, each with a place of its own."
        found.append(ok("processes", many if len(processes) > 1 else "One process."))
    return found


def _strangers(env: Mapping[str, str], stand_ins: Collection[str]) -> list[str]:
    """Addresses of a TF_CONFIG that are none of those of the file's hosts."""
    try:
        cluster = json.loads(env.get("TF_CONFIG", ""))["cluster"]
        lists = [list(each.values() if isinstance(each, dict) else each) for each in
                 cluster.values()]  # fmt: skip
    except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return []
    addresses = [each for some in lists for each in some if isinstance(each, str)]
    return [each for each in addresses if each not in stand_ins]


def _says_token(manifest: Manifest) -> bool:
    return any(name in manifest.text for name in _TOKENS)


def _written_tf_config(manifest: Manifest) -> list[Result]:
    """TF_CONFIG as it stands in the file, with the hosts' names."""
    found: list[Result] = []
    texts = dict.fromkeys(
        text for document in manifest.documents for text in _tf_configs(document.value)
    )
    for text in texts:
        if "$" in text:
            continue  # the platform fills something in
        try:
            cluster = ClusterSpec.from_tf_config(text)
        except ConfigError as problem:
            found.append(error("TF_CONFIG", str(problem)))
            continue
        if cluster is not None:
            several = f"the file starts {len(cluster.tasks)} containers or machines"
            found += places.check_loopback(cluster, several=several)
    return found


def _tf_configs(value: Any) -> Iterator[str]:
    """The values of variables of that name, in the forms that platforms have for them."""
    for each in _mappings(value):
        if each.get("name") == "TF_CONFIG" and isinstance(each.get("value"), str):
            yield each["value"]
        elif isinstance(each.get("TF_CONFIG"), str):
            yield each["TF_CONFIG"]


def _mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for item in value.values():
            yield from _mappings(item)
    elif isinstance(value, list):
        for item in value:
            yield from _mappings(item)


def _shm(manifest: Manifest) -> list[Result]:
    """Containers that keep the 64 MiB of /dev/shm that they have by default."""
    small: list[str] = []
    for document in manifest.documents:
        for each in _mappings(document.value):
            containers = each.get("containers")
            if isinstance(containers, list):
                small += [str(c.get("name")) for c in containers if _is_small(c)]
            services = each.get("services")
            if isinstance(services, dict):
                small += [name for name, s in services.items() if _is_small_service(s)]
    if not small:
        return []
    return [
        warning(
            "shm",
            f"{shown(small[0])} keeps the 64 MiB of /dev/shm that containers have: too little for "
            "NCCL between several GPUs, and for data loaders in processes of their own. Mount an "
            "emptyDir of medium Memory at /dev/shm (Kubernetes), or set shm_size (Compose).",
        )
    ]


def _is_small(container: Any) -> bool:
    if not isinstance(container, dict):
        return False
    mounts = container.get("volumeMounts")
    mounted = mounts if isinstance(mounts, list) else []
    return not any(isinstance(m, dict) and m.get("mountPath") == "/dev/shm" for m in mounted)  # noqa: S108


def _is_small_service(service: Any) -> bool:
    return isinstance(service, dict) and "shm_size" not in service and service.get("ipc") != "host"
