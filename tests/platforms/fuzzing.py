"""What the fuzz tests have in common: odd values, and ways to break good ones."""

from __future__ import annotations

import copy
import os
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

EXAMPLES = int(os.environ.get("DRUMBEAT_FUZZ_EXAMPLES", "10"))
"""Of each fuzz test; `make test` has little time, a hunt for bugs takes 2000."""

fuzz = settings(
    deadline=None,
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)

ODD_TEXT = st.sampled_from(
    ["", " ", "\0", "\n", "\udcff", "\u202e", "é", "\U0001f600", "-", "--", "..", "/", "~", "null",
     "true", "NaN", "1e999", "0", "-1", "9" * 400, "a" * 5000, "${X}", "$(X)", "{data}", "%s",
     "a:b:c", "[::1]:2", "a=b", "*", "&a", "!!python/object:os.system x", "<<", "tag:x", "\x85"]
)  # fmt: skip
TEXT = ODD_TEXT | st.text(max_size=12)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([0, -1, 10**30, 1e308, float("inf"), float("nan")])
    | TEXT
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)
DEEP = st.integers(2, 300).map(lambda depth: _nested(depth))


def _nested(depth: int) -> Any:
    value: Any = "x"
    for level in range(depth):
        value = [value] if level % 2 else {"a": value}
    return value


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path to every value inside `value`, itself not included."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    found = []
    for key, inner in items:
        found.append((*path, key))
        if isinstance(inner, (dict, list)):
            found += places(inner, (*path, key))
    return found


def put_at(value: Any, path: tuple[Any, ...], put: Any) -> Any:
    """A copy of `value` that has `put` at a path."""
    value = copy.deepcopy(value)
    holder = value
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = put
    return value


@st.composite
def broken(draw: st.DrawFn, value: Any) -> Any:
    """`value` with up to three of its parts replaced, removed, renamed or moved."""
    value = copy.deepcopy(value)
    for _ in range(draw(st.integers(1, 3))):
        found = places(value)
        if not found:
            break
        *parents, last = draw(st.sampled_from(found))
        holder = value
        for key in parents:
            holder = holder[key]
        how = draw(st.sampled_from(["replace", "remove", "rename", "copy", "empty"]))
        if how == "replace":
            holder[last] = draw(VALUES)
        elif how == "copy":
            source = value
            for key in draw(st.sampled_from(found)):
                source = source[key]
            holder[last] = copy.deepcopy(source)
        elif how == "empty":
            holder[last] = draw(st.sampled_from([None, [], {}, ""]))
        elif how == "rename" and isinstance(holder, dict):
            holder[draw(TEXT)] = holder.pop(last)
        else:
            del holder[last]
    return value


@st.composite
def scratched(draw: st.DrawFn, text: str) -> str:
    """`text` with a few of its characters gone or others in their place."""
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(text) - 1)))
        length = draw(st.sampled_from([0, 1, 1, 5, 40]))
        put = draw(TEXT | st.sampled_from(list("{}[]:,-#&*!|>'\"%@`\\\t\n=")))
        text = text[:at] + put + text[at + length :]
    return text


def message(error: BaseException) -> str:
    """The text of an error that a user may see; fails where there is none."""
    text = str(error)
    assert text.strip(), f"{error!r} has no text"
    text.encode("utf-8", "backslashreplace")
    return text
