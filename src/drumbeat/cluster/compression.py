"""The option --compress: how gradients are made smaller before they travel. Pure."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from drumbeat.cluster.wording import listed, shown
from drumbeat.errors import ConfigError

NONE, AUTO = "none", "auto"
BFLOAT16, FLOAT16, INT8, POWERSGD, TOPK = "bf16", "fp16", "int8", "powersgd", "topk"
CHOICES = (NONE, BFLOAT16, FLOAT16, INT8, POWERSGD, TOPK, AUTO)
METAVAR = "none|bf16|fp16|int8|powersgd[:RANK]|topk[:RATIO]|auto"
DEFAULT_RANK = 4
"""Of the largest networks in Vogels et al. 2019; their smaller ones did with 2."""
DEFAULT_RATIO = 0.01
"""Lin et al. 2018 end at 0.001, after a warm-up through higher ones, which we have not."""
MAX_RANK = 1024


@dataclass(frozen=True, kw_only=True)
class Compress:
    """What was asked for.

    Attributes:
        method: One of `CHOICES`.
        rank: Of powersgd: how many columns each factor of a gradient has.
        ratio: Of topk: the part of the gradient's elements that is sent in a step.
    """

    method: str = NONE
    rank: int = DEFAULT_RANK
    ratio: float = DEFAULT_RATIO

    @classmethod
    def parse(cls, text: str) -> Compress:
        """Inverse of `str()`: a method, with its number behind a colon where it takes one.

        Raises:
            ConfigError: There is no such method, or its number can't be used.
        """
        # A script may give anything.
        method, colon, number = str(text).partition(":")
        if method not in CHOICES:
            near = difflib.get_close_matches(method.lower(), CHOICES, n=1)
            hint = f" Did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"compress is {shown(text)}; expected one of {listed(CHOICES)}, such as int8 or "
                f"powersgd:{DEFAULT_RANK}.{hint}"
            )
        if not colon:
            return cls(method=method)
        if method == POWERSGD:
            return cls(method=method, rank=_rank(text, number))
        if method == TOPK:
            return cls(method=method, ratio=_ratio(text, number))
        raise ConfigError(
            f"compress is {shown(text)}, but {method} takes no number; expected {method} alone. "
            f"{POWERSGD} takes a rank and {TOPK} a ratio."
        )

    def __str__(self) -> str:
        if self.method == POWERSGD:
            return f"{POWERSGD}:{self.rank}"
        if self.method == TOPK:
            return f"{TOPK}:{self.ratio!r}"
        return self.method

    @property
    def is_on(self) -> bool:
        """Whether anything may be compressed."""
        return self.method != NONE

    def check(self, *, exact: int | None) -> None:
        """Looks whether it can go together with what else was asked for.

        Raises:
            ConfigError: Exact mode.
        """
        if exact is not None and self.is_on:
            raise ConfigError(
                f"compress={self} and exact={exact} were both asked for, but compressed gradients "
                "are not the same for any number of workers: what each leaves out depends on its "
                "own rows. Leave one of the two out."
            )


def _rank(text: str, number: str) -> int:
    rank = int(number) if number.isdecimal() else 0
    if not 1 <= rank <= MAX_RANK:
        raise ConfigError(
            f"compress is {shown(text)}; expected a rank from 1 to {MAX_RANK} behind the colon: "
            f"a higher one sends more and loses less, such as {POWERSGD}:{DEFAULT_RANK}."
        )
    return rank


def _ratio(text: str, number: str) -> float:
    try:
        ratio = float(number)
    except ValueError:
        ratio = 0.0
    if not 0 < ratio <= 1:
        raise ConfigError(
            f"compress is {shown(text)}; expected a ratio above 0 and up to 1 behind the colon: "
            f"the part of the elements that is sent, such as {TOPK}:{DEFAULT_RATIO}."
        )
    return ratio
