"""What of a job's folder goes neither into an image nor to a server: keys, leftovers, data.

What the job file itself names goes there all the same, but for keys. Patterns as .gitignore and
.dockerignore have them alike; `**/` means any folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from drumbeat.platforms.jobfile.model import Job

SECRETS = [
    "**/.env",
    "**/.env.*",
    "**/*.pem",
    "**/*.key",
    "**/*.p12",
    "**/*.pfx",
    "**/.netrc",
    "**/.pypirc",
    "**/.aws",
    "**/.azure",
    "**/.config/gcloud",
    "**/.docker",
    "**/.kube",
    "**/.ssh",
    "**/id_rsa*",
    "**/id_ed25519*",
    "**/secrets",
    "**/*credentials*.json",
    "**/*service*account*.json",
    "**/*sa.json",
    "**/*-key.json",
    "**/kaggle.json",
]
LEFTOVERS = [
    ".venv*",
    "venv",
    "env",
    "**/__pycache__",
    "**/*.pyc",
    "**/.*_cache",
    "**/.ipynb_checkpoints",
    ".drumbeat",
    "**/*.egg-info",
    "build",
    "dist",
]
DATA = [
    "runs",
    "logs",
    "data",
    "datasets",
    "output",
    "outputs",
    "checkpoints",
    "**/*.keras",
    "**/*.h5",
    "**/*.tfrecord*",
]


def named(job: Job, folder: Path) -> list[str]:
    """Data and files among the arguments that a job file names in its folder, keys among them.

    Args:
        job: The job.
        folder: The job file's.
    """
    words = [part for word in job.args for part in (word, word.partition("=")[2])]
    found = [word for word in words if _is_within(word) and _is_there(folder / word, file=True)]
    if job.data is not None and _is_within(job.data) and _is_there(folder / job.data):
        found.insert(0, job.data)
    return list(dict.fromkeys(str(PurePosixPath(each)) for each in found))


def is_secret(path: str) -> bool:
    """Whether a path of the folder has the name of a key."""
    return is_left_out(path, SECRETS)


def is_left_out(path: str, patterns: Iterable[str]) -> bool:
    """By the last pattern that matches a path of the folder, or a folder that it is in.

    Args:
        path: From the folder, with /.
        patterns: Lines of a .dockerignore.
    """
    wanted = str(PurePosixPath(path))
    found = False
    for line in patterns:
        pattern = line.strip()
        lets_in = pattern.startswith("!")
        pattern = pattern.removeprefix("!").strip().strip("/").removeprefix("./")
        if pattern and not pattern.startswith("#") and _matches(pattern, wanted):
            found = not lets_in
    return found


def is_left_out_by_git(path: str, patterns: Iterable[str]) -> bool:
    """The same for lines of a .gitignore, in which a name alone means one in any folder."""
    lines = []
    for line in patterns:
        pattern = line.strip().removeprefix("!")
        anywhere = "" if "/" in pattern.rstrip("/") or pattern.startswith("#") else "**/"
        sign = "!" if line.strip().startswith("!") else ""
        lines.append(f"{sign}{anywhere if pattern else ''}{pattern}")
    return is_left_out(path, lines)


def exceptions(paths: Iterable[str]) -> list[str]:
    """Lines of a .dockerignore that let these paths of the folder in."""
    return [f"!{_escaped(path)}" for path in paths]


def exceptions_of_git(paths: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """The same where nothing is looked for in a folder that is left out, as by git and Ray.

    Args:
        paths: To be let in.
        patterns: That are written before them.
    """
    wanted, lines = list(paths), list(patterns)
    closed: set[PurePosixPath] = set()
    for path in wanted:
        # From the top: all within a folder that is left out has to be opened.
        for parent in list(PurePosixPath(path).parents)[-2::-1]:
            if parent.parent in closed or is_left_out(str(parent), lines):
                closed.add(parent)
    opened = [
        line
        for parent in sorted(closed, key=lambda each: (len(each.parts), each))
        for line in (f"!/{_escaped(str(parent))}", f"/{_escaped(str(parent))}/*")
    ]
    return [*opened, *(f"!/{_escaped(path)}" for path in wanted)]


def _is_within(word: str) -> bool:
    path = PurePosixPath(word)
    is_path = "://" not in word and "\0" not in word and "\n" not in word
    return is_path and bool(path.parts) and not path.is_absolute() and ".." not in path.parts


def _is_there(path: Path, *, file: bool = False) -> bool:
    try:
        return path.is_file() if file else path.exists()
    except OSError:  # too long for a name
        return False


def _escaped(path: str) -> str:
    return re.sub(r"([\\*?\[\]])", r"\\\1", path)


def _matches(pattern: str, path: str) -> bool:
    parts = []
    for each in re.findall(r"\*\*/?|\*|\?|\[[^]]*\]|\\.|.", pattern):
        if each.startswith("**"):
            parts.append("(?:.*/)?" if each.endswith("/") else ".*")
        elif each in ("*", "?"):
            parts.append("[^/]*" if each == "*" else "[^/]")
        elif each.startswith("[") and len(each) > 2:
            parts.append(each.replace("\\", ""))
        else:
            parts.append(re.escape(each[-1]))
    try:
        return re.fullmatch("".join(parts) + "(?:/.*)?", path, re.DOTALL) is not None
    except re.error:  # such as [z-a], which Docker refuses
        return False
