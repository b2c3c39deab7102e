"""One thing that `drumbeat check` has to say."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What differs, why, and what to do about it.

    Attributes:
        kind: One word or two, the same for all findings of a kind.
        what: What differs, by how much, since which step.
        why: The probable cause.
        do: What to do.
        harmless: It does not make the training another one.
        spoils_from: First step whose gradients can't be the same any more; None for none.
    """

    kind: str
    what: str
    why: str
    do: str
    harmless: bool = False
    spoils_from: int | None = None
