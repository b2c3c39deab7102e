"""The options --sync-every and --outer: steps of a worker's own between averages. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass

from drumbeat.cluster.wording import shown
from drumbeat.errors import ConfigError

NESTEROV = "nesterov"
OUTER_METAVAR = "nesterov[:LR[,MOMENTUM]]"
DEFAULT_OUTER_RATE, DEFAULT_OUTER_MOMENTUM = 0.7, 0.9
"""Of Douillard et al. 2023 (DiLoCo), for both."""
MAX_STEPS = 1_000_000
_EXPECTED = (
    f"expected {NESTEROV}, or with its learning rate and momentum behind a colon, such as "
    f"{NESTEROV}:{DEFAULT_OUTER_RATE},{DEFAULT_OUTER_MOMENTUM}"
)


@dataclass(frozen=True, kw_only=True)
class Averaging:
    """How often workers average their weights, and what follows from the average.

    Attributes:
        every: So many steps each worker makes by itself before that; 0: none, gradients are
            summed in every step.
        rate: How much of the way from the old weights to the average is gone.
        momentum: How much of the last ways is gone again (Nesterov's); 0 for none.
    """

    every: int = 0
    rate: float = 1.0
    momentum: float = 0.0

    @classmethod
    def of(cls, every: object, outer: object = None) -> Averaging:
        """What a user asked for.

        Args:
            every: A number of steps, or None.
            outer: Such as "nesterov:0.7,0.9", or None.

        Raises:
            ConfigError: One of them can't be used, or `outer` comes without `every`.
        """
        if every is None:
            if outer:
                raise ConfigError(
                    f"outer is {shown(str(outer))}, but gradients are summed in every step, so "
                    "there is no outer one. Give sync_every too, such as --sync-every 64."
                )
            return cls()
        if isinstance(every, bool) or not isinstance(every, int) or not 1 <= every <= MAX_STEPS:
            raise ConfigError(
                f"sync_every is {every!r}; expected a number of steps from 1 to {MAX_STEPS}, after "
                "which the workers average their weights."
            )
        if not outer:
            return cls(every=every)
        rate, momentum = _outer(str(outer))
        return cls(every=every, rate=rate, momentum=momentum)

    @classmethod
    def parse(cls, text: str) -> Averaging:
        """Inverse of `str()`."""
        every, _, outer = text.partition(" ")
        return cls.of(int(every) if every else None, outer)

    def __str__(self) -> str:
        if not self.every:
            return ""
        outer = f" {NESTEROV}:{self.rate!r},{self.momentum!r}" if self.has_outer else ""
        return f"{self.every}{outer}"

    @property
    def is_on(self) -> bool:
        """Whether workers make steps of their own at all."""
        return self.every > 0

    @property
    def has_outer(self) -> bool:
        """Whether the average is more than a mean."""
        return (self.rate, self.momentum) != (1.0, 0.0)

    def check(
        self,
        *,
        exact: int | None = None,
        compresses: bool = False,
        measures_shares: bool = False,
        is_elastic: bool = False,
    ) -> None:
        """Looks whether it can go together with what else was asked for.

        Raises:
            ConfigError: It can't.
        """
        others = (
            (
                exact is not None,
                f"exact={exact}",
                "weights would not be the same for any number of workers",
            ),
            (compresses, "compress", "no gradients are sent that could be made smaller"),
            (
                measures_shares,
                "shares=auto",
                "workers that don't wait for each other in every step can't be measured by it",
            ),
            (
                is_elastic,
                "-n MIN:MAX",
                "each worker's optimizer has a state of its own, which other workers can't take "
                "over",
            ),
        )
        for is_asked, what, why in others:
            if self.is_on and is_asked:
                raise ConfigError(
                    f"sync_every={self.every} and {what} were both asked for, but they don't go "
                    f"together: {why}. Leave one of the two out."
                )


def _outer(text: str) -> tuple[float, float]:
    name, colon, numbers = text.partition(":")
    if name != NESTEROV:
        raise ConfigError(f"outer is {shown(text)}; {_EXPECTED}.")
    if not colon:
        return DEFAULT_OUTER_RATE, DEFAULT_OUTER_MOMENTUM
    rate, comma, momentum = numbers.partition(",")
    found = _number(rate), _number(momentum) if comma else DEFAULT_OUTER_MOMENTUM
    if not (0 < found[0] < math.inf and 0 <= found[1] < 1):
        raise ConfigError(
            f"outer is {shown(text)}; {_EXPECTED}: a learning rate above 0, and a momentum from 0 "
            "to below 1."
        )
    return found


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
