"""What pydantic found wrong in a file, as messages for its author."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from types import UnionType
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ValidationError

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError
from drumbeat.platforms.jobfile import hints
from drumbeat.platforms.jobfile.documents import Document
from drumbeat.platforms.jobfile.model import Job
from drumbeat.platforms.secret_names import SECRET_WRITTEN

_MAX_SHOWN = 8
_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "dict_type": "keys and values",
    "model_type": "keys and values",
    "greater_than_equal": "at least {ge}",
    "greater_than": "more than {gt}",
    "less_than_equal": "at most {le}",
}
"""What was expected, by pydantic's kind of error."""
_EXAMPLES = {"list_type": "[a, b]", "dict_type": "{a: b}", "model_type": "{a: b}"}


def check(model: type[BaseModel], document: Document, name: str) -> Any:
    """`document` as a `model`.

    Args:
        model: What it has to be.
        document: What was read.
        name: As messages call the file.

    Raises:
        ConfigError: It is something else; a line for each problem.
    """
    if not isinstance(document.value, dict):
        raise ConfigError(
            f"{name} holds {shown(document.value)}; expected keys such as "
            f"{listed(list(model.model_fields)[:3])}."
        )
    try:
        return model.model_validate(document.value)
    except ValidationError as error:
        found = error.errors(include_url=False)
        texts = [_text(model, problem, document, name) for problem in found[:_MAX_SHOWN]]
        if len(found) > _MAX_SHOWN:
            texts.append(f"and {len(found) - _MAX_SHOWN} more")
        raise ConfigError("\n".join(texts)) from None


def unknown(key: str, known: Iterable[str], where: str = "") -> str:
    """Says that `key` is none of those that are known, and which was probably meant."""
    return f"{where}{shown(key)} is unknown; {meant(key, known)}"


def meant(word: str, known: Iterable[str]) -> str:
    """Which of the known words `word` probably stands for, whatever its case; or all of them."""
    names = {name.lower().replace("-", "_"): name for name in known}
    close = difflib.get_close_matches(word.lower().replace("-", "_"), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {names[close[0]]}?"
    return f"expected one of {listed(names.values(), 40)}."


def _text(model: type[BaseModel], problem: Any, document: Document, name: str) -> str:
    path: tuple[str | int, ...] = problem["loc"]
    line = document.line(path)
    where = f"{name}:{line}: " if line else f"{name}: "
    if problem["type"] == "extra_forbidden":
        inner = ".".join(map(str, path[:-1]))
        where += f"in {inner}: " if inner else ""
        if model is Job and (hint := hints.meant(path)) is not None:
            return f"{where}{shown(path[-1])} is unknown; {hint}"
        return unknown(str(path[-1]), _fields(model, path[:-1]), where)
    dotted = ".".join(map(str, path)).removesuffix(".[key]")
    if problem["type"] == SECRET_WRITTEN:
        return f"{where}{dotted}: {problem['msg']}."
    if problem["type"] == "missing":
        return f"{where}{dotted} is missing."
    if problem["input"] is None:
        hint = "" if isinstance(path[-1], int) else " Leave the key out where there is none."
        return f"{where}{dotted} is empty; expected {_expected(model, problem)}.{hint}"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "value_error":
        said = message if message.endswith((".", "?")) else f"{message}."
        if isinstance(problem["input"], (dict, BaseModel)):
            return f"{where}{dotted}: {said}" if dotted else f"{where}{said}"
        if said.startswith((f"{path[-1]} is ", f"{path[-1]} are ")):
            return f"{where}{dotted.removesuffix(str(path[-1]))}{said}"
        return f"{where}{dotted} is {shown(problem['input'])}; {said}"
    return f"{where}{dotted} is {shown(problem['input'])}; expected {_expected(model, problem)}."


def _expected(model: type[BaseModel], problem: Any) -> str:
    kind = problem["type"]
    if (generic := _EXAMPLES.get(kind)) is not None:
        own = hints.example(problem["loc"]) if model is Job else None
        return f"{_EXPECTED[kind]}, such as {own or generic}"
    if (text := _EXPECTED.get(kind)) is not None:
        return text.format_map(problem.get("ctx", {}))
    message = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    return message.removeprefix("expected ")


def _fields(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """The keys that a mapping at `path` may have."""
    here: Any = model
    for step in path:
        if isinstance(step, int):
            here = next(iter(get_args(here)), None)
        elif isinstance(here, type) and issubclass(here, BaseModel):
            field = here.model_fields.get(step)
            here = field.annotation if field else None
        else:
            return []
        if get_origin(here) is UnionType:
            here = get_args(here)[0]
    is_model = isinstance(here, type) and issubclass(here, BaseModel)
    return list(here.model_fields) if is_model else []
