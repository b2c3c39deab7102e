"""Options of `drumbeat run` that no other key of the job file stands for."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

from drumbeat.cluster import strategy_names
from drumbeat.cluster.averaging import Averaging
from drumbeat.cluster.compression import Compress
from drumbeat.cluster.identity import parse_shares
from drumbeat.platforms.jobfile.amounts import Seconds, plain_number
from drumbeat.platforms.jobfile.sections import Section, Text

Count = Annotated[int, Field(ge=0)]


def _check_compress(value: str) -> str:
    Compress.parse(value)
    return value


def _check_shares(value: str) -> str:
    parse_shares(value)
    return value


class RunOptions(Section):
    """Each as `drumbeat run --help` explains it, with _ for -."""

    strategy: Literal[strategy_names.CHOICES] | None = None  # pyright: ignore[reportInvalidTypeForm]
    backend: Literal["tensorflow", "jax"] | None = None
    exact: bool = False
    exact_shards: Count | None = None
    shares: Annotated[Text, AfterValidator(_check_shares)] | None = None
    seed: Count | None = None
    compress: Annotated[Text, AfterValidator(_check_compress)] | None = None
    sync_every: Count | None = None
    outer: Text | None = None
    jit: Literal["auto", "on", "off"] | None = None
    collectives: Literal["auto", "mpi", "tensorflow"] | None = None
    keep_tf_strategies: bool = False
    strict_names: bool = False
    keras: Literal[2, 3] | None = None
    rejoin_timeout: Seconds | None = None
    hang_timeout: Annotated[float, Field(ge=0)] | None = None
    snapshot_every: Count | None = None
    backup_dir: str | None = Field(default=None, description="By default backups/ in the output.")
    backup_every: Seconds | None = None
    grace: Seconds | None = None
    run_dir: str | None = None

    @model_validator(mode="after")
    def _averages(self) -> RunOptions:
        Averaging.of(self.sync_every, self.outer)
        return self

    def words(self) -> list[str]:
        """The options that are set, as they are typed, in the order of the fields."""
        words: list[str] = []
        for name, value in self:
            if value is None or value is False:
                continue
            words.append("--" + name.replace("_", "-"))
            if value is not True:
                words.append(str(plain_number(value) if isinstance(value, float) else value))
        return words
