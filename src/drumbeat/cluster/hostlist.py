"""Slurm's lists of hosts and of tasks on them, in full.

Source: Slurm's hostlist(3) and srun(1); tried against `scontrol show hostnames` of 22.05. A list
is names with commas between them, each with any number of [..] that hold numbers and ranges:
rack[1-2]n[01-03,7]. Zeros in front stay, and the last brackets run fastest.
"""

from __future__ import annotations

import itertools
import re

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

MAX_HOSTS = 100_000
_PART = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?", re.ASCII)
_NAME = re.compile(r"[A-Za-z0-9._:-]*")
_COUNT = re.compile(r"(\d{1,7})(?:\(x(\d{1,7})\))?", re.ASCII)


def expand(text: str) -> list[str]:
    """The hosts that a list names, in its order.

    Raises:
        ConfigError: It is no such list, or names more than `MAX_HOSTS`.
    """
    hosts: list[str] = []
    for name in _split(text):
        hosts += _expand_one(name, text, MAX_HOSTS - len(hosts))
    return hosts


def expand_counts(text: str) -> list[int]:
    """The numbers that 2(x3),1 stands for: 2, 2, 2, 1.

    Raises:
        ConfigError: It is no such list, or holds more than `MAX_HOSTS`.
    """
    counts: list[int] = []
    for part in text.split(","):
        found = _COUNT.fullmatch(part.strip())
        times = int(found[2] or 1) if found else 0
        if found is None or not 1 <= times <= MAX_HOSTS - len(counts):
            raise ConfigError(
                f"{shown(text)} is no list of numbers of tasks; expected one such as 2(x3),1."
            )
        counts += [int(found[1])] * times
    return counts


def _split(text: str) -> list[str]:
    """At the commas that are not within brackets."""
    names, depth, begin = [], 0, 0
    for at, letter in enumerate(text):
        depth += (letter == "[") - (letter == "]")
        if not 0 <= depth <= 1:
            raise _wrong(text)
        if letter == "," and depth == 0:
            names.append(text[begin:at])
            begin = at + 1
    if depth:
        raise _wrong(text)
    return [*names, text[begin:]]


def _expand_one(name: str, text: str, limit: int) -> list[str]:
    pieces = _PART.split(name)
    fixed, varied = pieces[::2], pieces[1::2]
    if not name.strip() or not all(_NAME.fullmatch(piece) for piece in fixed):
        raise _wrong(text)
    choices: list[list[str]] = []
    total = 1
    for numbers in varied:
        choices.append(_numbers(numbers, text, limit))
        total *= len(choices[-1])
        if total > limit:
            raise _too_many(text)
    if limit < 1:
        raise _too_many(text)
    hosts = []
    for chosen in itertools.product(*choices):
        between = itertools.chain.from_iterable(zip(fixed, chosen, strict=False))
        hosts.append("".join((*between, fixed[-1])))
    return hosts


def _numbers(text: str, whole: str, limit: int) -> list[str]:
    found: list[str] = []
    for part in text.split(","):
        match = _RANGE.fullmatch(part.strip())
        if match is None:
            raise _wrong(whole)
        first, last = int(match[1]), int(match[2] or match[1])
        if last < first:
            raise _wrong(whole)
        if last - first + 1 > limit - len(found):
            raise _too_many(whole)
        found += [str(number).zfill(len(match[1])) for number in range(first, last + 1)]
    return found


def _wrong(text: str) -> ConfigError:
    return ConfigError(
        f"{shown(text)} is no list of hosts; expected one such as n[1-3,7] or "
        "rack[1-2]n[01-16],login."
    )


def _too_many(text: str) -> ConfigError:
    return ConfigError(f"{shown(text)} names more than {MAX_HOSTS:,} hosts.")
