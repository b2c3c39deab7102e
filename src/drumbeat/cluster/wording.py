"""How messages about a cluster quote what was received and name what was meant."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable

JOBS = ("chief", "worker", "ps", "evaluator")
"""Job names TensorFlow allows, in the order drumbeat lists them."""

# Names seen in bug reports and other tools' configuration that spelling
# distance alone would not, or wrongly, lead to the valid name.
_MEANT = {
    "parameter_server": "ps",
    "parameter_servers": "ps",
    "parameterserver": "ps",
    "param_server": "ps",
    "server": "ps",
    "ps_hosts": "ps",
    "ps_host": "ps",
    "pss": "ps",
    "worker_hosts": "worker",
    "worker_host": "worker",
    "slave": "worker",
    "node": "worker",
    "master": "chief",
    "coordinator": "chief",
    "leader": "chief",
    "launcher": "chief",
    "eval": "evaluator",
    "evaluators": "evaluator",
    "workerpool0": "chief",
    "workerpool1": "worker",
    "workerpool2": "ps",
    "workerpool3": "evaluator",
}


def shown(value: object, limit: int = 100) -> str:
    """`repr(value)`, cut to `limit` characters so that a message stays readable."""
    short = reprlib.Repr()
    short.maxstring = short.maxother = short.maxlong = limit
    try:
        text = short.repr(value)
    except ValueError:  # an int of so many digits that Python won't print it
        text = "a number too long to show"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def listed(items: Iterable[object], limit: int = 8) -> str:
    """The first `limit` items joined by commas, and how many more there are."""
    texts = [str(item) for item in items]
    more = len(texts) - limit
    return ", ".join(texts[:limit]) + (f" and {more} more" if more > 0 else "")


def printed_by(text: str, otherwise: str = "nothing", limit: int = 10) -> str:
    """What a program has printed, to stand after a colon: one line, or several indented below.

    Args:
        text: Its output.
        otherwise: Stands for none.
        limit: Of many lines the last ones are shown.
    """
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return f" {lines[0].strip() if lines else otherwise}"
    left = len(lines) - limit
    above = [f"({left} more lines above)"] if left > 0 else []
    return "".join(f"\n  {line}" for line in [*above, *lines[-limit:]])


def nearest_job(name: str) -> str | None:
    """The valid job name that an unknown one most likely stands for, or None."""
    key = name.strip().lower().replace("-", "_")
    if key in JOBS:
        return key
    if key in _MEANT:
        return _MEANT[key]
    close = difflib.get_close_matches(key, [*JOBS, *_MEANT], n=1, cutoff=0.6)
    return _MEANT.get(close[0], close[0]) if close else None


def unknown_job(where: str, name: str) -> str:
    """The message for a job name or task type that TensorFlow does not know."""
    meant = nearest_job(name)
    hint = f" Did you mean {meant!r}?" if meant else ""
    pool = (
        " Names like workerpool0 belong to Vertex AI's CLUSTER_SPEC, which is not a TF_CONFIG."
        if name.strip().lower().startswith("workerpool")
        else ""
    )
    return f"{where} {shown(name)} is unknown; expected one of {', '.join(JOBS)}.{hint}{pool}"
