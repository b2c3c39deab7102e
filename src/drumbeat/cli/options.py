"""The options of the commands, as typer reads them."""

from __future__ import annotations

import inspect
import os
import sys
from typing import Annotated, Optional

import typer

from drumbeat import __version__
from drumbeat.cli.check import check
from drumbeat.cli.doctor import doctor
from drumbeat.cli.hook import install_hook, remove_hook
from drumbeat.cli.jobs import init, logs, render, status, stop, submit
from drumbeat.cli.port import port
from drumbeat.cli.rehearse import rehearse
from drumbeat.cli.tune import tune
from drumbeat.cli.whoami import whoami
from drumbeat.cluster import strategy_names
from drumbeat.cluster.averaging import OUTER_METAVAR
from drumbeat.cluster.compression import METAVAR
from drumbeat.cluster.identity import DEFAULT_BACKUP_EVERY_S, EXACT_SHARDS, TENSORFLOW
from drumbeat.control.restart import DEFAULT_MAX_RESTARTS
from drumbeat.launch import settings
from drumbeat.launch.backends import preload_of
from drumbeat.launch.sizes import parse_workers
from drumbeat.launch.start import run_job

app = typer.Typer(
    help="Train the Keras script you already have on many workers.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_MACHINES = "On several machines"
_STRATEGY = "How to train"
_SAME = "The same model, to the bit or on uneven machines"
_FASTER = "Faster"
_FAILURES = "When something fails"
_SELDOM = "Seldom needed"
# Optional, not `X | None`: typer evaluates these at run time, on Python 3.10 too.
Number = Optional[int]  # noqa: UP045
Seconds = Optional[float]  # noqa: UP045
Text = Optional[str]  # noqa: UP045
Texts = Optional[list[str]]  # noqa: UP045


def _show_version(value: bool) -> None:
    if value:
        print(f"drumbeat {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            metavar="",
            callback=_show_version,
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    """Train the Keras script you already have on many workers."""


@app.command(
    context_settings={"allow_interspersed_args": False},
    no_args_is_help=True,
    options_metavar="[OPTIONS] [--]",
)
def run(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="SCRIPT",
            help="The script, or with -m the module; what follows it belongs to it.",
        ),
    ],
    workers: Annotated[
        Text,
        typer.Option(
            "-n",
            "--workers",
            metavar="N|MIN:MAX",
            help="Workers on this machine (default 1). MIN:MAX: of the whole job, which goes on "
            "without lost machines while MIN workers are left.",
        ),
    ] = None,
    module: Annotated[
        bool, typer.Option("-m", "--module", metavar="", help="SCRIPT is the name of a module.")
    ] = False,
    ps: Annotated[
        Number,
        typer.Option(
            "--ps",
            metavar="N",
            help="Parameter servers, which hold the variables; the script runs in a chief beside "
            "the workers.",
        ),
    ] = None,
    strategy: Annotated[
        str,
        typer.Option(
            "--strategy",
            metavar="NAME",
            help=f"{', '.join(strategy_names.CHOICES)} (default: what fits); wins over the one "
            "that the script names.",
            rich_help_panel=_STRATEGY,
        ),
    ] = strategy_names.AUTO,
    devices_per_worker: Annotated[
        Number,
        typer.Option(
            "--devices-per-worker",
            metavar="N",
            help="Devices of each worker: GPUs, or parts of the CPU that stand for them.",
            rich_help_panel=_STRATEGY,
        ),
    ] = None,
    processes_per_node: Annotated[
        Number,
        typer.Option(
            "--processes-per-node",
            metavar="N",
            help="In how many processes the devices of a machine are (default: one for each).",
            rich_help_panel=_STRATEGY,
        ),
    ] = None,
    backend: Annotated[
        str,
        typer.Option(
            "--backend",
            metavar="tensorflow|jax",
            help="Keras's. jax: several processes for keras.distribution (docs/strategies.md).",
            rich_help_panel=_STRATEGY,
        ),
    ] = TENSORFLOW,
    evaluator: Annotated[
        bool,
        typer.Option(
            "--evaluator",
            metavar="",
            help="One more process, which evaluates what the chief has saved.",
            rich_help_panel=_STRATEGY,
        ),
    ] = False,
    nodes: Annotated[
        Number,
        typer.Option(
            "--nodes",
            metavar="N",
            help="How many machines run this same command.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    node_rank: Annotated[
        Number,
        typer.Option(
            "--node-rank",
            metavar="N",
            help="Which of them this is, from 0.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    rendezvous: Annotated[
        Text,
        typer.Option(
            "--rendezvous",
            metavar="HOST:PORT",
            help="Where they meet: on machine 0. DRUMBEAT_TOKEN must be the same on all.",
            rich_help_panel=_MACHINES,
        ),
    ] = None,
    run_dir: Annotated[
        Text,
        typer.Option(
            "--run-dir", metavar="FOLDER", help="For logs (default runs/<script>-<time>/)."
        ),
    ] = None,
    exact: Annotated[
        bool,
        typer.Option(
            "--exact",
            metavar="",  # typer would show <bool>, as if a value could follow
            help="The same bytes for 1, 2, 4 or 8 workers; slower.",
            rich_help_panel=_SAME,
        ),
    ] = False,
    exact_shards: Annotated[
        Number,
        typer.Option(
            "--exact-shards",
            metavar="N",
            help=f"--exact for all numbers of workers that divide N (default {EXACT_SHARDS}).",
            rich_help_panel=_SAME,
        ),
    ] = None,
    shares: Annotated[
        Text,
        typer.Option(
            "--shares",
            metavar="2,1|auto",
            help="Rows of each batch that go to each worker, or measure it.",
            rich_help_panel=_SAME,
        ),
    ] = None,
    seed: Annotated[
        Number,
        typer.Option(
            "--seed",
            metavar="N",
            help="Seed before the script starts (default: new each run; 0 with --exact).",
            rich_help_panel=_SAME,
        ),
    ] = None,
    compress: Annotated[
        str,
        typer.Option(
            "--compress",
            metavar=METAVAR,
            help="Send smaller gradients: for slow networks; changes the training a little.",
            rich_help_panel=_FASTER,
        ),
    ] = "none",
    sync_every: Annotated[
        Number,
        typer.Option(
            "--sync-every",
            metavar="STEPS",
            help="Local SGD: each worker makes so many steps by itself, then they average their "
            "weights; for very slow networks; another algorithm.",
            rich_help_panel=_FASTER,
        ),
    ] = None,
    outer: Annotated[
        Text,
        typer.Option(
            "--outer",
            metavar=OUTER_METAVAR,
            help="With --sync-every: what is made of the average, as in DiLoCo (default: it is "
            "taken as it is).",
            rich_help_panel=_FASTER,
        ),
    ] = None,
    max_restarts: Annotated[
        Number,
        typer.Option(
            "--max-restarts",
            metavar="N",
            help="After a failure start all workers again, so often in a row without progress "
            f"(default {DEFAULT_MAX_RESTARTS}; 0: never).",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    rejoin_timeout: Annotated[
        float,
        typer.Option(
            "--rejoin-timeout",
            metavar="SECONDS",
            help="With several machines: how long the others wait for one that was lost.",
            rich_help_panel=_FAILURES,
        ),
    ] = settings.DEFAULT_REJOIN_TIMEOUT_S,
    hang_timeout: Annotated[
        Seconds,
        typer.Option(
            "--hang-timeout",
            metavar="SECONDS",
            help="A worker without progress for so long is taken for dead (default: 10 times its "
            "slowest step, at least 60; 0: never).",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    snapshot_every: Annotated[
        Number,
        typer.Option(
            "--snapshot-every",
            metavar="STEPS",
            help="From one snapshot in memory to the next (default: as often as they cost at most "
            "2% of the time; 0: none).",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    backup_dir: Annotated[
        Text,
        typer.Option(
            "--backup-dir",
            metavar="FOLDER|URL",
            help="Keep backups there (a path, gs://, s3://…), and go on from the newest.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    backup_every: Annotated[
        Seconds,
        typer.Option(
            "--backup-every",
            metavar="SECONDS",
            help=f"From one backup to the next (default: {DEFAULT_BACKUP_EVERY_S:g}).",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    grace: Annotated[
        float,
        typer.Option(
            "--grace",
            metavar="SECONDS",
            help="After SIGTERM, for a last backup; the job then ends with code 75.",
            rich_help_panel=_FAILURES,
        ),
    ] = settings.DEFAULT_GRACE_S,
    inject: Annotated[
        Texts,
        typer.Option(
            "--inject",
            metavar="FAULT",
            help="Rehearse a failure, such as kill:rank=1,step=37 (kinds: docs/recovery.md); "
            "repeatable.",
            rich_help_panel=_FAILURES,
        ),
    ] = None,
    jit: Annotated[
        str,
        typer.Option(
            "--jit",
            metavar="auto|on|off",
            help="Compile the steps of fit with XLA (auto: where it is measured to be faster).",
            rich_help_panel=_SELDOM,
        ),
    ] = "auto",
    collectives: Annotated[
        str,
        typer.Option(
            "--collectives",
            metavar="auto|mpi|tensorflow",
            help="What carries the data.",
            rich_help_panel=_SELDOM,
        ),
    ] = "auto",
    keep_tf_strategies: Annotated[
        bool,
        typer.Option(
            "--keep-tf-strategies",
            metavar="",
            help="Leave TensorFlow's strategies alone.",
            rich_help_panel=_SELDOM,
        ),
    ] = False,
    strict_names: Annotated[
        bool,
        typer.Option(
            "--strict-names",
            metavar="",
            help="Don't take names and arguments that Keras 3 has no more.",
            rich_help_panel=_SELDOM,
        ),
    ] = False,
    keras: Annotated[
        int | None,
        typer.Option(
            "--keras",
            min=2,
            max=3,
            metavar="2|3",
            help="What tf.keras is: 2 is the package tf_keras. By default 3, or what "
            "TF_USE_LEGACY_KERAS says.",
            rich_help_panel=_SELDOM,
        ),
    ] = None,
    start_timeout: Annotated[
        float,
        typer.Option(
            "--start-timeout",
            metavar="SECONDS",
            help="For everything before the script starts.",
            rich_help_panel=_SELDOM,
        ),
    ] = settings.DEFAULT_START_TIMEOUT_S,
    collective_timeout: Annotated[
        float,
        typer.Option(
            "--collective-timeout",
            metavar="SECONDS",
            help="How long workers wait for each other.",
            rich_help_panel=_SELDOM,
        ),
    ] = settings.DEFAULT_COLLECTIVE_TIMEOUT_S,
) -> None:
    """Run a script on several workers.

    The script runs once in every worker, unchanged. Where a platform has set
    TF_CONFIG, no option is needed.
    """
    arguments = settings.RunArguments(
        command=tuple(command),
        is_module=module,
        workers=parse_workers(workers),
        ps=ps,
        strategy=strategy,
        devices_per_worker=devices_per_worker,
        processes_per_node=processes_per_node,
        backend=backend,
        evaluator=evaluator,
        nodes=nodes,
        node_rank=node_rank,
        rendezvous=rendezvous,
        run_dir=run_dir,
        collectives=collectives,
        keep_tf_strategies=keep_tf_strategies,
        strict_names=strict_names,
        keras=keras,
        exact=EXACT_SHARDS if exact and exact_shards is None else exact_shards,
        shares=shares,
        compress=compress,
        sync_every=sync_every,
        outer=outer,
        jit=jit,
        seed=seed,
        start_timeout_s=start_timeout,
        collective_timeout_s=collective_timeout,
        max_restarts=max_restarts,
        rejoin_timeout_s=rejoin_timeout,
        hang_timeout_s=hang_timeout,
        snapshot_every=snapshot_every,
        backup_dir=backup_dir,
        backup_every_s=backup_every,
        grace_s=grace,
        inject=tuple(inject or ()),
    )
    raise typer.Exit(
        run_job(arguments, dict(os.environ), argv=sys.argv, preload=preload_of(backend))
    )


app.command(
    context_settings={"allow_interspersed_args": False},
    no_args_is_help=True,
    options_metavar="[OPTIONS] [--]",
)(check)
app.command()(tune)
app.command()(whoami)
app.command()(doctor)
app.command("install-hook")(install_hook)
app.command("remove-hook")(remove_hook)
app.command(no_args_is_help=True)(port)
app.command(no_args_is_help=True)(init)
app.command()(render)
app.command(no_args_is_help=True)(rehearse)
for command in (submit, status, logs, stop):
    app.command(no_args_is_help=True)(command)
for registered in app.registered_commands:
    # In lines of the terminal, not of the source.
    text = inspect.getdoc(registered.callback) or ""
    registered.help = "\n\n".join(" ".join(each.split()) for each in text.split("\n\n"))
