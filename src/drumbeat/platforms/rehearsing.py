"""From a platform's process to one of this machine: its variables, its program, its paths."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.command import OUTPUT, TOKEN, TOKEN_FILE
from drumbeat.platforms.plain_python import find_script, is_file
from drumbeat.platforms.platform import Process

KEPT = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "TERM",
    "LANG",
    "LANGUAGE",
    "TZ",
    "TMPDIR",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "PYTHONPATH",
    "LD_LIBRARY_PATH",
    "XDG_CACHE_HOME",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
"""What any process of this machine needs, or finds its packages and the network by."""
CREDENTIALS = ("GOOGLE_APPLICATION_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE")
"""Variables that name a file which platforms mount."""
# These describe the image, and not this machine.
_OF_IMAGE = ("PATH", "HOME", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "CONDA_PREFIX")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SCRIPT = re.compile(r".*\.(py|sh|bash)", re.DOTALL)
_DRUMBEAT = "from drumbeat.cli.main import main; main()"


@dataclass(frozen=True, kw_only=True)
class Machine:
    """This machine, as far as a process needs to know of it.

    Attributes:
        folder: The current one, where scripts are looked for.
        python: Path of the interpreter.
        environ: The environment.
    """

    folder: Path
    python: str
    environ: Mapping[str, str]

    @property
    def variables(self) -> dict[str, str]:
        """Those of the environment that any process needs; this Python's programs come first."""
        found = {
            name: value
            for name, value in self.environ.items()
            if name in KEPT or name.startswith("LC_")
        }
        programs = str(Path(self.python).parent)
        found["PATH"] = ":".join(filter(None, (programs, found.get("PATH", "/usr/bin:/bin"))))
        return found


def at_home(process: Process, machine: Machine) -> tuple[Process, list[str]]:
    """`process` with programs, scripts and variables as this machine has them; what was changed.

    Raises:
        ConfigError: There is no such program or script here.
    """
    notes: list[str] = []
    env = _env(process, machine, notes)
    words = _located(process, machine, notes)
    if process.command and _is_drumbeat(process.command[0]):
        words = [machine.python, "-c", _DRUMBEAT, *words[1:]]
    elif _PYTHON.fullmatch(PurePosixPath(words[0]).name):
        words = [machine.python, *words[1:]]
    elif shutil.which(words[0], path=env["PATH"]) is None:
        raise ConfigError(
            f"{process.name} runs {shown(words[0])}, which is not on this machine; expected a "
            "program that is here, such as drumbeat, python or bash."
        )
    return dataclasses.replace(process, command=tuple(words), env=env), notes


def with_outputs(process: Process, outputs: Path) -> tuple[Process, list[str]]:
    """`process` with what it writes for the job in `outputs`: a rehearsal leaves the job's alone.

    Args:
        process: As `at_home` returned it.
        outputs: Takes the place of DRUMBEAT_OUTPUT.
    """
    output = process.env.get(OUTPUT, "").rstrip("/")
    if not output:
        return process, []
    pattern = re.compile(rf"(?<![\w/.-]){re.escape(output)}(?=/|$)")

    def here(text: str) -> str:
        return pattern.sub(lambda _: str(outputs), text)

    env = {name: here(value) for name, value in process.env.items()} | {OUTPUT: str(outputs)}
    command = tuple(here(word) for word in process.command)
    changed = dataclasses.replace(process, command=command, env=env)
    return changed, [f"What goes to {output} there goes to {outputs} here."]


def runs_drumbeat(process: Process) -> bool:
    """Whether its command is `drumbeat run`, as far as can be seen, or has it in a script."""
    return any(re.search(r"\bdrumbeat\b", word) for word in process.command)


def _is_drumbeat(word: str) -> bool:
    return PurePosixPath(word).name == "drumbeat"


def _env(process: Process, machine: Machine, notes: list[str]) -> dict[str, str]:
    here, given = machine.variables, dict(process.env)
    of_image = [name for name in _OF_IMAGE if given.pop(name, None) is not None]
    if of_image:
        notes.append(f"{listed(of_image)} of the image stay as they are on this machine.")
    if "PYTHONPATH" in given and here.get("PYTHONPATH"):
        given["PYTHONPATH"] += f":{here['PYTHONPATH']}"
    for name in CREDENTIALS:
        file = given.get(name)
        if file is None or is_file(Path(file)):
            continue
        own = machine.environ.get(name)
        if own is None:
            del given[name]
            notes.append(f"{name} is not set here: there is no {file} on this machine.")
        else:
            given[name] = own
            notes.append(f"{name} is {own} here, not {file}.")
    if TOKEN_FILE in given:
        del given[TOKEN_FILE]  # nobody has written it; the token itself is given
    return {**here, **given}


def told_token(processes: Sequence[Process], text: str) -> frozenset[str]:
    """Names of those that the platform gives the agents' secret, wherever it comes from.

    Args:
        processes: As the platform would start them.
        text: Of the manifest, and what will be different there. Where it names the variable and no
            process has it, such as in a shell's text, all are taken to have it.
    """
    found = [each.name for each in processes if not {TOKEN, TOKEN_FILE}.isdisjoint(each.env)]
    if not found and TOKEN in text:
        found = [each.name for each in processes]
    return frozenset(found)


def _located(process: Process, machine: Machine, notes: list[str]) -> list[str]:
    """The command with its script where it is on this machine."""
    words = list(process.command)
    if not words:
        raise ConfigError(
            f"{process.name} has no command: it runs what its image starts, which is not here. "
            "Write the command into the manifest."
        )
    if "-c" in words[:3] and not _is_drumbeat(words[0]):
        return words  # a shell's text or Python's, which finds its own way
    for index, word in enumerate(words[1:], start=1):
        if word == "-m" and index + 1 < len(words) and words[index + 1] != "drumbeat":
            _check_module(process.name, words[index + 1], machine.folder)
            break
        if _SCRIPT.fullmatch(word) and "=" not in word:
            words[index] = _script(process.name, word, machine.folder, notes)
            break
    return words


def _script(name: str, word: str, folder: Path, notes: list[str]) -> str:
    if is_file(folder / word):
        return word
    path = find_script(word, folder)
    if path is not None:
        found = path.relative_to(folder)
        notes.append(f"{word} is {found} of {folder} here.")
        return str(found)
    raise ConfigError(
        f"{name} runs {shown(word)}, which is not here: neither it nor any end of its path is in "
        f"{folder}. Expected the "
        "folder that the image is made of; change to it."
    )


def _check_module(name: str, module: str, folder: Path) -> None:
    parts = module.split(".")
    path = folder.joinpath(*parts)
    if is_file(Path(f"{path}.py")) or is_file(path / "__main__.py") or _is_installed(parts[0]):
        return
    raise ConfigError(
        f"{name} runs the module {shown(module)}, which is neither in {folder} nor installed. "
        "Expected the folder that the image is made of; change to it."
    )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False


Placed = Callable[[Process], tuple[Process, list[str]]]


def all_of(processes: Sequence[Process], change: Placed, notes: list[str]) -> list[Process]:
    """Each process as `change` returns it; what it says is added to `notes`, once."""
    changed = []
    for process in processes:
        made, said = change(process)
        changed.append(made)
        notes += [each for each in said if each not in notes]
    return changed
