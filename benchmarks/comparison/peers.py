"""What drumbeat is compared with, each in an environment of its own under build/.

An environment is made with pip when a comparison first needs it, with the versions given
here, and keeps a marker with its packages once it is complete; other packages, or none,
and it is made anew.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build"
PIP_TIMEOUT_S = 1800


class PeerMissing(RuntimeError):
    """An environment could not be made; says why."""


@dataclass(frozen=True, kw_only=True)
class Environment:
    """Packages in a folder.

    Attributes:
        folder: In build/.
        packages: As pip takes them, with versions.
    """

    folder: str
    packages: tuple[str, ...]

    @property
    def python(self) -> Path:
        """Its interpreter, whether it has been made or not."""
        return BUILD / self.folder / "bin" / "python"

    @property
    def marker(self) -> Path:
        """The file that lists the packages once all are there."""
        return BUILD / self.folder / "complete"

    def is_complete(self) -> bool:
        """Whether it has been made, with these packages."""
        return self.marker.is_file() and self.marker.read_text().split() == list(self.packages)

    def make(self) -> None:
        """Makes it if it isn't complete.

        Raises:
            PeerMissing: With the end of what pip said.
        """
        if self.is_complete():
            return
        print(f"Installing {' '.join(self.packages)} into build/{self.folder}", file=sys.stderr)
        self.marker.unlink(missing_ok=True)
        folder = BUILD / self.folder
        _run([sys.executable, "-m", "venv", "--clear", str(folder)])
        pip = [str(self.python), "-m", "pip", "-qq", "--disable-pip-version-check"]
        _run([*pip, "install", *self.packages])
        self.marker.write_text("\n".join(self.packages) + "\n")


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=PIP_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise PeerMissing(f"{command[0]} had not ended after {error.timeout:g} s") from error
    if done.returncode != 0:
        said = (done.stdout + done.stderr).strip().splitlines()
        raise PeerMissing(said[-1] if said else f"{command[0]} ended with {done.returncode}")


def _ours(*names: str) -> list[str]:
    return [f"{name}=={importlib.metadata.version(name)}" for name in names]


def _tf_keras() -> str:
    return f"tf_keras=={importlib.metadata.version('tensorflow').rpartition('.')[0]}.*"


# The same TensorFlow, Keras and NumPy as ours; tf_keras has the release of TensorFlow.
TENSORFLOW = Environment(
    folder="bench-peer", packages=(*_ours("tensorflow"), _tf_keras(), *_ours("keras", "numpy"))
)
# Where an index has no CPU build under this number, pip takes one for CUDA of some
# gigabytes, which computes the same on CPUs.
TORCH = Environment(
    folder="bench-torch", packages=("torch==2.13.0", *_ours("numpy"), "pillow==12.0.0")
)
JAX = Environment(
    folder="bench-jax",
    packages=("jax==0.10.2", *_ours("keras", "numpy"), "pillow==12.0.0"),
)
RAY = Environment(
    folder="bench-ray",
    packages=("ray[train]==2.60.0", *_ours("tensorflow"), _tf_keras(), *_ours("numpy")),
)


TUNED = {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_NUM_INTRAOP_THREADS": "1", "OMP_NUM_THREADS": "1"}
LEGACY = {"TF_USE_LEGACY_KERAS": "1"}


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A way to train.

    Attributes:
        title: For tables.
        launcher: Which function of `launchers` starts it.
        environment: None for drumbeat's own.
        workers: How many; the global batch has as many times a worker's rows.
        processes: How many of them there are, where they aren't the workers.
        pinned: Whether process i gets core i alone. drumbeat does so by itself, so there it
            matters with one worker only.
        variables: Added to the environment of the processes.
        options: Of `drumbeat run`.
        arguments: Added to those of the worker script.
        alone: The same with one worker, pinned, by which its scaling is judged.
        at_once: As many of these at the same time, which have nothing to tell each other.
        in_all_rounds: At which workloads; at others in the first only. None: at all.
    """

    title: str
    launcher: str
    environment: Environment | None = None
    workers: int = 2
    processes: int | None = None
    pinned: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    alone: str | None = None
    at_once: str | None = None
    in_all_rounds: tuple[str, ...] | None = None


PEERS = {
    "drumbeat": Peer(
        title="drumbeat", launcher="drumbeat", alone="drumbeat-1", at_once="drumbeat-apart"
    ),
    "drumbeat-1": Peer(
        title="drumbeat, one worker alone", launcher="drumbeat", workers=1, pinned=True
    ),
    "drumbeat-apart": Peer(
        title="drumbeat, two workers alone at once",
        launcher="apart",
        workers=1,
        processes=2,
        pinned=True,
    ),
    "drumbeat-hook": Peer(
        title="drumbeat, a callback looks at each batch",
        launcher="drumbeat",
        arguments=("--batch-hook",),
        alone="drumbeat-1",
    ),
    "tensorflow": Peer(
        title="TensorFlow, as a user starts it",
        launcher="tf_config",
        environment=TENSORFLOW,
        variables=LEGACY,
    ),
    "tensorflow-tuned": Peer(
        title="TensorFlow, tuned",
        launcher="tf_config",
        environment=TENSORFLOW,
        pinned=True,
        variables={**LEGACY, **TUNED},
        alone="tensorflow-1",
    ),
    "tensorflow-1": Peer(
        title="TensorFlow, tuned, one worker alone",
        launcher="alone",
        environment=TENSORFLOW,
        workers=1,
        pinned=True,
        variables={**LEGACY, **TUNED},
        in_all_rounds=("dense",),  # of which the exchange is compared
    ),
    "keras": Peer(
        title="Keras 3, one process, all cores",
        launcher="alone",
        environment=TENSORFLOW,
        processes=1,
        in_all_rounds=(),
    ),
    "keras-onednn": Peer(
        title="Keras 3, one process, all cores, oneDNN",
        launcher="alone",
        environment=TENSORFLOW,
        processes=1,
        variables={"TF_ENABLE_ONEDNN_OPTS": "1"},
    ),
    "torch": Peer(
        title="PyTorch DDP, gloo",
        launcher="torch",
        environment=TORCH,
        pinned=True,
        variables={"OMP_NUM_THREADS": "1"},
        alone="torch-1",
    ),
    "torch-1": Peer(
        title="PyTorch, one worker alone",
        launcher="torch",
        environment=TORCH,
        workers=1,
        pinned=True,
        variables={"OMP_NUM_THREADS": "1"},
        in_all_rounds=(),
    ),
    "jax": Peer(
        title="Keras on JAX, DataParallel",
        launcher="jax",
        environment=JAX,
        pinned=True,
        variables={"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"},
    ),
    "ray": Peer(
        title="Ray Train, TensorflowTrainer",
        launcher="ray",
        environment=RAY,
        variables={**LEGACY, "RAY_USAGE_STATS_ENABLED": "0"},
        in_all_rounds=(),
    ),
}

# Jobs that only share the machine say how fast it is with all cores busy; they are no peers.
NO_PEERS = {peer.at_once for peer in PEERS.values()}


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Ours, without what would tune a peer behind the comparison's back."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("TF_", "OMP_", "DRUMBEAT_", "KERAS_", "PYTHON", "XLA_", "JAX_"))
    }
    return {**ours, **variables}
