"""Which packages a script and the modules beside it import, and whether an image has them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, requires

from drumbeat.cluster.wording import listed
from drumbeat.control.doctor.result import Result, ok, warning
from drumbeat.platforms.doctor import script as scripts

# Come with drumbeat, or are it, whatever is installed here.
_OURS = frozenset({"drumbeat", "tensorflow", "keras", "numpy", "tensorboard", "mpi4py", "fsspec"})
_PACKAGES = {
    "bs4": "beautifulsoup4",
    "cv2": "opencv-python-headless",
    "PIL": "pillow",
    "skimage": "scikit-image",
    "sklearn": "scikit-learn",
    "yaml": "PyYAML",
}
"""Where nothing is installed that says so."""
_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""\bextra\s*==\s*["']([^"']+)""")
_MORE = re.compile(r"^\s*(-r|-e|--requirement|--editable|\.|git\+|https?:)", re.MULTILINE)
_MAX_MODULES = 200


def normal(name: str) -> str:
    """A package's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def required(text: str) -> list[tuple[str, frozenset[str]]]:
    """Names and extras of what is listed in the text of a requirements.txt."""
    found = []
    for line in text.splitlines():
        match = _REQUIREMENT.match(line.partition("#")[0])
        if match:
            extras = frozenset(part.strip() for part in (match[2] or "").split(","))
            found.append((normal(match[1]), extras))
    return found


def brought(extras: Iterable[str] = ()) -> frozenset[str]:
    """Names of all packages that come with drumbeat and these extras of it, as installed here."""
    seen: set[tuple[str, frozenset[str]]] = set()
    ahead = [("drumbeat", frozenset(extras))]
    while ahead:
        name, wanted = ahead.pop()
        try:
            needs = requires(name) or []
        except PackageNotFoundError:
            continue
        for need in needs:
            asks = _EXTRA.search(need)
            each = next(iter(required(need.partition(";")[0])), None)
            if each is not None and each not in seen and (not asks or asks[1] in wanted):
                seen.add(each)
                ahead.append(each)
    return frozenset(name for name, _ in seen)


def modules(text: str, read: Callable[[str], tuple[str, str] | None]) -> dict[str, tuple[str, str]]:
    """Names and texts of the local modules that a script imports, by what they are imported as.

    Args:
        text: The script's.
        read: From a module's name to its file's name and text; None where it is not local.
    """
    found: dict[str, tuple[str, str]] = {}
    ahead = [text]
    while ahead and len(found) < _MAX_MODULES:
        for name in scripts.look(ahead.pop(), "").imports:
            if name not in found and (each := read(name)) is not None:
                found[name] = each
                ahead.append(each[1])
    return found


def check(
    sources: Iterable[tuple[str, str]],
    local: frozenset[str],
    distributions: Mapping[str, list[str]],
    requirements: tuple[str, str] | None,
    brought: frozenset[str],
) -> list[Result]:
    """What is to be said of them.

    Args:
        sources: Names and texts of the script and its modules.
        local: What can be imported from the folder.
        distributions: Which packages have what is imported by a name, as installed here.
        requirements: Name and text of the file that lists more packages; None without one.
        brought: Packages that come with drumbeat.
    """
    named = list(sources)
    imports = _imports(named, local)
    if requirements is None:
        return _without_list(imports, distributions, brought)
    file, text = requirements
    if _MORE.search(text):
        return []  # more than can be seen here
    has = {name for name, _ in required(text)}
    missing: dict[str, tuple[str, str]] = {}
    for name, where in imports.items():
        packages = {normal(each) for each in distributions.get(name, [])}
        # Only of what is installed here is it sure which package it comes from.
        if packages and not packages & has:
            missing[name] = (where, sorted(packages)[0])
    if not missing:
        return [ok("requirements", f"{file} has what {named[0][0]} imports.")]
    return [
        warning(
            "requirements",
            f"{where} imports {name}, but {file} does not list {package}. Add it, unless another "
            "package brings it.",
        )
        for name, (where, package) in missing.items()
    ]


def _imports(sources: list[tuple[str, str]], local: frozenset[str]) -> dict[str, str]:
    """Where each is imported first that is neither local nor of drumbeat's own."""
    found: dict[str, str] = {}
    for file, text in sources:
        for name, line in scripts.look(text, "").imports.items():
            if name not in local and name not in _OURS:
                found.setdefault(name, f"{file}:{line}")
    return found


def _without_list(
    imports: Mapping[str, str], distributions: Mapping[str, list[str]], brought: frozenset[str]
) -> list[Result]:
    missing: dict[str, str] = {}
    for name in imports:
        guess = [_PACKAGES.get(name, name)]
        packages = sorted(normal(each) for each in distributions.get(name, guess))
        if not brought.intersection(packages):
            missing[name] = packages[0]
    if not missing:
        return []
    said = listed(f"{imports[name]} imports {name}" for name in missing)
    return [
        warning(
            "requirements",
            f"{said}: not of drumbeat's packages, and there is no requirements.txt from which "
            "drumbeat render docker takes others. Write one with "
            f"{listed(dict.fromkeys(missing.values()))}, unless your image has all that is "
            "imported.",
        )
    ]
