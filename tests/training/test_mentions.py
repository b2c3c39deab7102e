"""What counts as a mention of a name in code that an object may run."""

from __future__ import annotations

import functools
import sys
import types
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from drumbeat.training.mentions import MOST_OBJECTS, mentions

WORD = "stop_training"


def sets(model: Any) -> None:
    model.stop_training = True


def sets_by_name(model: Any) -> None:
    setattr(model, "stop_training", True)  # noqa: B010


def helps(model: Any) -> None:
    sets(model)


def helps_from_within(model: Any) -> Callable[[], None]:
    def inner() -> None:
        return [sets(each) for each in [model]][0]

    return inner


def is_quiet(model: Any) -> float:
    return max(model.losses) + len(sys.argv)


helper: Any = types.ModuleType("a_helper_of_test_mentions")
helper.sets = sets
helper.quiet = is_quiet


def asks_the_helper(model: Any) -> None:
    helper.sets(model)


def asks_quietly(model: Any) -> None:
    helper.quiet(model)


def imports_what_is_there(model: Any) -> None:
    import a_helper_of_test_mentions as inner  # pyright: ignore[reportMissingImports]

    inner.sets(model)


def imports_what_nobody_knows(model: Any) -> None:
    import not_yet_there  # pyright: ignore[reportMissingImports]

    not_yet_there.acts(model)


def imports_a_known_one(model: Any) -> None:
    import wave

    wave.Wave_read(model)


def evaluates(model: Any) -> None:
    exec("model.stop_training = True")  # noqa: S102


@functools.lru_cache
def keeps(model: Any) -> None:
    model.stop_training = True


@functools.wraps(is_quiet)
def wraps(model: Any) -> float:
    return is_quiet(model)


class Sets:
    def act(self, model: Any) -> None:
        model.stop_training = True


class Inherits(Sets): ...


class Property:
    @property
    def act(self) -> bool:
        return self.stop_training  # pyright: ignore[reportAttributeAccessIssue]


class Static:
    @staticmethod
    def act(model: Any) -> None:
        model.stop_training = True


class Slots:
    __slots__ = ("held",)

    def __init__(self, held: Any) -> None:
        self.held = held


class Holds:
    def __init__(self, held: Any) -> None:
        self.held = held


def closes_over(value: Any) -> Callable[[], Any]:
    return lambda: value


KNOWN = {
    "attribute": sets,
    "text": sets_by_name,
    "function it calls": helps,
    "function within": helps_from_within,
    "function of a module": asks_the_helper,
    "import within": imports_what_is_there,
    "import that is yet to be made": imports_what_nobody_knows,
    "exec": evaluates,
    "cache": keeps,
    "closure": closes_over(sets),
    "text in a closure": closes_over(WORD),
    "default": functools.partial(print, sets),
    "method": Sets().act,
    "instance": Inherits(),
    "class": Inherits,
    "property": Property(),
    "static method": Static(),
    "slots": Slots([sets]),
    "held": Holds({"a": [(Sets(),)]}),
    "held by its name": Holds({WORD: 1}),
    "in a namespace": SimpleNamespace(a=sets),
    "very many": [Holds(i) for i in range(MOST_OBJECTS + 1)],
}
UNKNOWN = {
    "quiet": is_quiet,
    "quiet function of a module with another": asks_quietly,
    "import of the standard library": imports_a_known_one,
    "wraps": wraps,
    "numbers": [1.0] * (2 * MOST_OBJECTS),
    "nothing": None,
    "itself": closes_over(closes_over),
}


@pytest.mark.parametrize("case", [*KNOWN, *UNKNOWN])
def test_mentions(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, helper.__name__, helper)
    root = (KNOWN | UNKNOWN)[case]
    assert mentions([None, root], WORD) == (case in KNOWN)


def test_cycles_end() -> None:
    held: list[Any] = []
    held.append(Holds(held))
    assert not mentions(held, WORD)
