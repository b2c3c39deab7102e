"""Options of `drumbeat run` that no other key of the job file stands for."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from drumbeat.cluster import strategy_names
from drumbeat.cluster.averaging import MAX_STEPS, NESTEROV, Averaging
from drumbeat.cluster.compression import CHOICES, POWERSGD, TOPK, Compress
from drumbeat.cluster.identity import AUTO_SHARES, MAX_SHARE, parse_shares
from drumbeat.platforms.jobfile.amounts import Seconds, plain_number
from drumbeat.platforms.jobfile.sections import Section, Text

Count = Annotated[int, Field(ge=0)]


def _check_compress(value: str) -> str:
    Compress.parse(value)
    return value


def _check_shares(value: str) -> str:
    parse_shares(value)
    return value


def _option(text: str, default: Any = None, **more: Any) -> Any:
    return Field(default=default, description=text, **more)


_NUMBERED = {POWERSGD: r"(:\d+)?", TOPK: r"(:[\d.eE+-]+)?"}
_METHODS = "|".join(method + _NUMBERED.get(method, "") for method in CHOICES)
Compression = Annotated[
    Text,
    AfterValidator(_check_compress),
    WithJsonSchema({"type": "string", "pattern": f"^({_METHODS})$"}),
]
Shares = Annotated[
    Text,
    AfterValidator(_check_shares),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "pattern": rf"^({AUTO_SHARES}|\s*\d+\s*(,\s*\d+\s*)*)$"},
                {"type": "integer", "minimum": 1, "maximum": MAX_SHARE},
            ]
        }
    ),
]


Outer = Annotated[
    Text,
    WithJsonSchema({"type": "string", "pattern": f"^{NESTEROV}(:[^,]+(,[^,]+)?)?$"}),
]


class RunOptions(Section):
    """Each as `drumbeat run --help` explains it, with _ for -."""

    strategy: Literal[strategy_names.CHOICES] | None = _option(  # pyright: ignore[reportInvalidTypeForm]
        "How the script is made parallel; by default what fits."
    )
    backend: Literal["tensorflow", "jax"] | None = _option("Keras's; tensorflow by default.")
    exact: bool = _option("The same bytes for 1, 2, 4 or 8 workers; slower.", False)
    exact_shards: Count | None = _option("`exact` for all numbers of workers that divide it.")
    shares: Shares | None = _option(
        "Rows of each batch that go to each worker, or auto, which measures.", examples=["2,1"]
    )
    seed: Count | None = _option("Set before the script starts; by default new in each run.")
    compress: Compression | None = _option(
        "Sends smaller gradients, for slow networks; changes the training a little.",
        examples=["int8", "powersgd:4", "topk:0.01"],
    )
    sync_every: Annotated[int, Field(ge=1, le=MAX_STEPS)] | None = _option(
        "Steps that workers make by themselves before they average: another algorithm."
    )
    outer: Outer | None = _option(
        "With sync_every, what is made of the average.", examples=["nesterov:0.7,0.9"]
    )
    jit: Literal["auto", "on", "off"] | None = _option("Compiles steps with XLA.")
    collectives: Literal["auto", "mpi", "tensorflow"] | None = _option("What carries the data.")
    keep_tf_strategies: bool = _option("Leaves TensorFlow's strategies alone.", False)
    strict_names: bool = _option("Takes no names that Keras 3 has no more.", False)
    keras: Literal[2, 3] | None = _option("What tf.keras is; 2 is the package tf_keras.")
    rejoin_timeout: Seconds | None = _option(
        "How long the others wait for a machine that was lost; 10m by default."
    )
    hang_timeout: Annotated[float, Field(ge=0)] | None = _option(
        "Seconds without progress after which a worker is taken for dead; 0: never."
    )
    snapshot_every: Count | None = _option("Steps from one snapshot in memory to the next.")
    backup_dir: str | None = _option(
        "Folder or URL of backups; by default backups/ in the output.",
        examples=["gs://bucket/backups"],
    )
    backup_every: Seconds | None = _option("From one backup to the next; 5m by default.")
    grace: Seconds | None = _option("After SIGTERM, for a last backup; 25s by default.")
    run_dir: str | None = _option("Folder of logs; runs/<script>-<time>/ by default.")

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
