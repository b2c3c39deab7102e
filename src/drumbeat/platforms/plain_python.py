"""Processes that run Python without drumbeat: whether they train together. Pure but for reading.

Scripts are read, not run. What a script does to find the others may be anywhere in its code: the
files that it imports from its own folder are read, too, and what names a way is given the benefit
of the doubt.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from drumbeat.cluster import ClusterSpec, launched_by
from drumbeat.cluster.wording import listed
from drumbeat.errors import ConfigError
from drumbeat.platforms.platform import Process

KERAS_CANNOT = (
    "Keras 3's fit can't train under TensorFlow's multi-worker strategies: put drumbeat run (or "
    "python -m drumbeat) before the script, or import drumbeat.auto at its top."
)
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_STRATEGIES = re.compile(
    r"\w*(MultiWorkerMirrored|CollectiveAllReduce|ParameterServer)Strategy\w*|estimator"
)
# Other ways to find each other than TF_CONFIG.
_OTHER_WAYS = re.compile(
    r"horovod|mpi4py|MPI|drumbeat|deepspeed|accelerate|torch|ray|dask|\w*ClusterResolver|"
    r"ClusterSpec|gethostname|getfqdn|uname|initialize|add_process|\w*coordinator\w*"
)
_LEGACY = re.compile(r"drumbeat|tf_keras|TF_USE_LEGACY_KERAS")
_MAX_FILES = 100
_MAX_BYTES = 1 << 20


@dataclass(frozen=True, kw_only=True)
class Alone:
    """Processes that train alone.

    Attributes:
        names: Theirs.
        why: The rest of a sentence that begins with them, and what to do.
    """

    names: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{listed(self.names)} {self.why}"


def is_plain(process: Process) -> bool:
    """Whether it runs Python, and drumbeat nowhere in its command."""
    words = _words(process)
    return _at_python(words) is not None and not any(map(_is_ours, words))


def alone(processes: Sequence[Process], folder: Path, verb: str) -> Alone | None:
    """Those main processes that run one program and don't learn of each other; None if unsure.

    Args:
        processes: Of a job.
        folder: Where scripts are looked for.
        verb: "trained" or "would train".
    """
    same = _same_program([each for each in processes if each.is_main])
    if len(same) < 2:
        return None
    try:
        found = [launched_by.find(each.env) for each in same]
        has_tf_config = any(_is_told(each) for each in same)
    except ConfigError:  # they would not even start, or are told something else
        return None
    names = tuple(each.name for each in same)
    code = _code_of(same[0], folder)
    is_told = has_tf_config or any(each is not None and each.nodes > 1 for each in found)
    if code is None and is_told:
        return None
    differing = _differing(each.env for each in same)
    if any(_OTHER_WAYS.fullmatch(name) or name in differing for name in code or ()):
        return None
    if has_tf_config:
        if any(_STRATEGIES.fullmatch(name) for name in code or ()):
            return None
        why = (
            "alone: TF_CONFIG tells them of each other, but the script has no strategy of "
            "TensorFlow's that goes by it. Write drumbeat run before the script."
        )
    elif is_told:
        source = next(each.source for each in found if each is not None)
        why = (
            f"alone: without drumbeat, Python goes by TF_CONFIG, which nobody sets, and not by "
            f"{source}. Write drumbeat run before the script."
        )
    else:
        why = (
            f"alone, as nothing in the environment says that the {len(same)} processes belong "
            "together. drumbeat whoami, run there, shows what it says."
        )
    return Alone(names=names, why=f"{verb} {why}")


def keras_cannot(processes: Sequence[Process], folder: Path) -> tuple[str, ...]:
    """Names of those that TF_CONFIG tells of each other, where Keras 3 refuses to train so.

    Args:
        processes: Of a job.
        folder: Where scripts are looked for.
    """
    return tuple(each.name for each in processes if is_plain(each) and _keras_cannot(each, folder))


def _keras_cannot(process: Process, folder: Path) -> bool:
    legacy = process.env.get("TF_USE_LEGACY_KERAS", "").lower()
    if legacy in ("1", "true") or process.env.get("KERAS_BACKEND", "tensorflow") != "tensorflow":
        return False
    try:
        if not _is_told(process):
            return False
    except ConfigError:
        return False
    code = _code_of(process, folder)
    if code is None:
        return True
    has_strategy = any(_STRATEGIES.fullmatch(name) for name in code)
    return "fit" in code and has_strategy and not any(_LEGACY.fullmatch(name) for name in code)


def _is_told(process: Process) -> bool:
    """Whether TF_CONFIG tells it of others.

    Raises:
        ConfigError: TF_CONFIG is malformed.
    """
    cluster = ClusterSpec.from_env(process.env)
    return cluster is not None and cluster.task is not None and len(cluster.tasks) > 1


def _same_program(processes: Sequence[Process]) -> list[Process]:
    """Those that run the same plain Python with the same arguments as another does."""
    commands = [each.command for each in processes]
    return [each for each in processes if is_plain(each) and commands.count(each.command) > 1]


def _differing(environments: Iterable[Mapping[str, str]]) -> set[str]:
    """Variables that not all have alike: by them a script can tell which process it is."""
    first, *others = environments
    names = set(first).union(*others)
    return {name for name in names if any(env.get(name) != first.get(name) for env in others)}


def _words(process: Process) -> list[str]:
    """Its command, with that of a shell in place of the shell."""
    words = list(process.command)
    if "-c" in words[:3] and not _PYTHON.fullmatch(PurePosixPath(words[0]).name):
        text = words[words.index("-c") + 1 :][:1]
        try:
            return shlex.split(text[0]) if text else words
        except ValueError:
            return text
    return words


def _is_ours(word: str) -> bool:
    """Whether it is the program, its module, or code that imports that."""
    if " " in word:
        return re.search(r"\bdrumbeat\b", word) is not None
    return PurePosixPath(word).name == "drumbeat" or word.partition(".")[0] == "drumbeat"


def _at_python(words: Sequence[str]) -> int | None:
    names = [PurePosixPath(word).name for word in words]
    return next((at for at, name in enumerate(names) if _PYTHON.fullmatch(name)), None)


def _code_of(process: Process, folder: Path) -> set[str] | None:
    """Names and texts in the code of its script and of what that imports from its folder.

    None where the script is not there, or is no Python.
    """
    words = _words(process)
    at = _at_python(words)
    if at is None:
        return None
    if words[at + 1 : at + 2] == ["-c"]:
        tree = _parsed(" ".join(words[at + 2 : at + 3]))
        return None if tree is None else _names(tree)
    path = _script(words[at + 1 :], folder)
    if path is None:
        return None
    code: set[str] = set()
    waiting, seen = [path], {path}
    while waiting and len(seen) <= _MAX_FILES:
        tree = _tree(waiting.pop())
        if tree is None:
            return None
        code |= _names(tree)
        for module in _imported(tree):
            new = [file for file in _files(module, (path.parent, folder)) if file not in seen]
            waiting += new
            seen.update(new)
    return code if not waiting else None


def _script(words: Sequence[str], folder: Path) -> Path | None:
    for at, word in enumerate(words):
        if word == "-m":
            parts = PurePosixPath(*(words[at + 1 : at + 2] or ["."])[0].split("."))
            return _first_file([folder / f"{parts}.py", folder / parts / "__main__.py"])
        if word.endswith(".py"):
            return find_script(word, folder)
    return None


def find_script(word: str, folder: Path) -> Path | None:
    """The file that a path of an image is in the folder that the image is made of.

    Args:
        word: The path, of which any end is looked for.
        folder: Where.
    """
    parts = [part for part in PurePosixPath(word).parts if part not in ("/", ".", "..")]
    ends = [folder.joinpath(*parts[begin:]) for begin in range(len(parts))]
    return _first_file([folder / word, *ends])


def _first_file(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if is_file(path)), None)


def is_file(path: Path) -> bool:
    """Whether there is such a file; False where that can't be looked up."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, a folder that can't be looked into
        return False


def _tree(path: Path) -> ast.Module | None:
    try:
        if path.stat().st_size > _MAX_BYTES:
            return None
        return _parsed(path.read_bytes())
    except OSError:
        return None


def _parsed(text: str | bytes) -> ast.Module | None:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _names(tree: ast.Module) -> set[str]:
    """What the code calls something by, with texts; without what is only explained."""
    found: set[str] = set()
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found |= set() if id(node) in docs else set(re.findall(r"\w+", node.value))
    return found | {part for module in _imported(tree) for part in module.split(".")}


def _imported(tree: ast.Module) -> list[str]:
    """Modules, with what is imported of them."""
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            of = f"{node.module}." if node.module else ""
            found += [f"{of}{alias.name}" for alias in node.names]
    return found


def _files(module: str, folders: Iterable[Path]) -> list[Path]:
    """Those of a module and its packages, where it is one of these folders."""
    parts = module.split(".")
    ends = [PurePosixPath(*parts[:count]) for count in range(1, len(parts) + 1)]
    wanted = [
        path
        for folder in folders
        for end in ends
        for path in (folder / f"{end}.py", folder / end / "__init__.py")
    ]
    return [path for path in wanted if is_file(path)]
