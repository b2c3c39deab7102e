"""Amounts as people write them: 8Gi of memory, 24h, half a CPU.

Memory is written as in Kubernetes, where Gi is 2**30 bytes and G is 10**9; durations as a number
of seconds, or with s, m, h or d.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_MEMORY = re.compile(r"(\d{1,12}(?:\.\d{1,6})?)\s*(|k|[KMGTP]i?)B?", re.ASCII)
_DURATION = re.compile(r"(\d{1,9}(?:\.\d{1,6})?)\s*(|s|m|h|d)", re.ASCII)
_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_POWERS = "KMGTP"
LEAST_BYTES, MOST_BYTES, MOST_SECONDS = 1024**2, 2**60, 365 * 86400


def _written(number: dict[str, Any], form: re.Pattern[str], *examples: object) -> WithJsonSchema:
    """The JSON schema of an amount: a number, or text of a form, with blanks around it."""
    text = {"type": "string", "pattern": rf"^\s*(?:{form.pattern})\s*$"}
    return WithJsonSchema({"anyOf": [number, text], "examples": list(examples)})


def _to_bytes(value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        if value < LEAST_BYTES:
            raise ValueError("expected at least 1Mi; a number alone is bytes, so write 8Gi for GiB")
        return value
    found = _MEMORY.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("expected an amount of memory such as 8Gi or 512Mi")
    number, unit = float(found[1]), found[2]
    if not unit:
        return int(number)
    power = _POWERS.index(unit[0].upper()) + 1
    return int(number * (1024 if unit.endswith("i") else 1000) ** power)


def _to_seconds(value: object) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    found = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise ValueError("expected a time such as 90m, 24h or a number of seconds")
    return float(found[1]) * _SECONDS[found[2]]


Memory = Annotated[
    int,
    BeforeValidator(_to_bytes),
    Field(ge=LEAST_BYTES, le=MOST_BYTES),
    _written(
        {"type": "integer", "minimum": LEAST_BYTES, "maximum": MOST_BYTES}, _MEMORY, "8Gi", "512Mi"
    ),
]
"""Bytes; at least 1Mi."""
Seconds = Annotated[
    float,
    BeforeValidator(_to_seconds),
    Field(gt=0, le=MOST_SECONDS),
    _written(
        {"type": "number", "exclusiveMinimum": 0, "maximum": MOST_SECONDS}, _DURATION, "90m", "24h"
    ),
]


def kubernetes_memory(size_bytes: int) -> str:
    """`size_bytes` with the largest unit that it is a whole number of: 8Gi."""
    for power, letter in reversed(list(enumerate(_POWERS, start=1))):
        if size_bytes % 1024**power == 0:
            return f"{size_bytes // 1024**power}{letter}i"
    return str(size_bytes)


def mebibytes(size_bytes: int) -> int:
    """`size_bytes` in MiB, rounded up."""
    return -(-size_bytes // 1024**2)


def plain_number(value: float) -> int | float:
    """2 for 2.0, and 0.5 as it is."""
    return int(value) if value == int(value) else value
