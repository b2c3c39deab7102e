"""An evaluator beside the training: the chief leaves its weights, the evaluator looks at them.

At the end of each epoch of a fit the chief writes the model's weights into the run's folder,
where there is an evaluator. In the evaluator's process, the same fit trains nothing: it
evaluates what the chief has left, the newest first, until the chief says which was the last.

    <run>/evaluation/fit-0/epoch-3.weights.h5    after 3 epochs of the first fit
    <run>/evaluation/fit-0/last.json             that was all
"""

from __future__ import annotations

import inspect
import itertools
import os
import re
import shutil
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

from drumbeat import keras_internals as touch
from drumbeat.cluster.identity import Identity
from drumbeat.cluster.spec import ClusterSpec
from drumbeat.errors import ConfigError
from drumbeat.state.progress import Activity, ProgressPage, Request
from drumbeat.state.small_files import write_json
from drumbeat.training import stopping
from drumbeat.training.coordinated import sources

KEPT = 2
"""Weights that the chief keeps: the newest, and the one that may be being read."""
_LOOK_S = 0.2
_FOLDER = "evaluation"
_WEIGHTS = re.compile(r"epoch-(\d+)\.weights\.h5")
_LAST = "last.json"
_fits = itertools.count()


def is_evaluator(env: Mapping[str, str]) -> bool:
    """Whether this process evaluates what others train."""
    cluster = ClusterSpec.from_env(env)
    task = None if cluster is None else cluster.task
    return task is not None and task.type == "evaluator"


def install(identity: Identity, env: Mapping[str, str]) -> None:
    """In the evaluator's process: `fit` evaluates."""
    page = ProgressPage.from_env(env)
    touch.wrap(touch.FIT, lambda original: _fit(original, Path(identity.run_dir), page))


def clear(identity: Identity) -> None:
    """In the chief's process, before its script: removes what an earlier run left in the folder.

    A restarted attempt goes on with what there is.
    """
    if identity.has_evaluator and identity.is_chief and identity.attempt == 1:
        shutil.rmtree(Path(identity.run_dir) / _FOLDER, ignore_errors=True)


def callbacks() -> list[keras.callbacks.Callback]:
    """For a fit in the process that writes: what leaves its weights to the evaluator, if any."""
    identity = Identity.from_env(os.environ)
    if identity is None or not (identity.is_chief and identity.has_evaluator):
        return []
    return [_Leaves(_folder(Path(identity.run_dir), next(_fits)))]


def _folder(run: Path, number: int) -> Path:
    return run / _FOLDER / f"fit-{number}"


class _Leaves(keras.callbacks.Callback):
    """Writes the weights at the end of each epoch."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder
        self._epochs = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        (self._folder / _LAST).unlink(missing_ok=True)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._epochs = epoch + 1
        model: Any = self.model
        # Written beside its place, so that it is there whole or not at all.
        fresh = self._folder / "new.weights.h5"
        model.save_weights(fresh)
        os.replace(fresh, self._folder / f"epoch-{self._epochs}.weights.h5")
        for old in sorted(_written(self._folder))[:-KEPT]:
            (self._folder / f"epoch-{old}.weights.h5").unlink(missing_ok=True)

    def on_train_end(self, logs: Any = None) -> None:
        write_json(self._folder / _LAST, {"epochs": self._epochs})


def _written(folder: Path) -> list[int]:
    """After which epochs there are weights."""
    if not folder.is_dir():
        return []
    found = (_WEIGHTS.fullmatch(each.name) for each in folder.iterdir())
    return [int(match[1]) for match in found if match]


def _fit(original: Callable[..., Any], run: Path, page: ProgressPage | None) -> Any:
    signature = inspect.signature(original)

    def fit(self: Any, *args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(self, *args, **kwargs)
        bound.apply_defaults()
        folder = _folder(run, next(_fits))
        return _Evaluation(self, bound.arguments, folder, page).run()

    return fit


class _Evaluation:
    """Of one fit, in the evaluator's process.

    Args:
        model: As the script has made it.
        arguments: Of `fit`, by name.
        folder: Where the chief leaves its weights.
        page: Where the agent says that the training has ended.
    """

    def __init__(
        self, model: Any, arguments: Mapping[str, Any], folder: Path, page: ProgressPage | None
    ) -> None:
        self._model = model
        self._given = arguments
        self._folder = folder
        self._page = page
        self._done = 0
        self._history: dict[str, list[float]] = {}
        self._epochs: list[int] = []

    def run(self) -> keras.callbacks.History:
        """Returns when the chief's fit has ended, and its last weights are evaluated."""
        data = self._data()
        boards = keras.callbacks.CallbackList(self._boards(), model=self._model)
        boards.on_train_begin()
        while not self._is_over():
            newest = max(_written(self._folder), default=0)
            if newest > self._done:
                self._look_at(newest, data, boards)
            else:
                time.sleep(_LOOK_S)
        boards.on_train_end()
        history = keras.callbacks.History()
        history.set_model(self._model)
        history.epoch, history.history = self._epochs, self._history
        self._model.history = history
        return history

    def _is_over(self) -> bool:
        newest = max(_written(self._folder), default=0)
        if newest > self._done:
            return False
        asked = Request(0) if self._page is None else self._page.requests()
        return (self._folder / _LAST).exists() or bool(asked & (Request.FINISH | Request.STOP))

    def _data(self) -> dict[str, Any]:
        """The arguments of `evaluate`."""
        given = self._given
        data = given["validation_data"]
        if data is None and given["validation_split"]:
            data = touch.validation_part(
                given["x"], given["y"], given["sample_weight"], given["validation_split"]
            )
        if data is None:
            raise ConfigError(
                "fit was called without validation_data, so the evaluator has nothing to evaluate "
                "on. Give fit validation_data, or leave out --evaluator."
            )
        x, y, weight = keras.utils.unpack_x_y_sample_weight(data)
        return {
            "x": sources.on_chief(x),
            "y": y,
            "sample_weight": weight,
            "batch_size": given["validation_batch_size"] or given["batch_size"],
            "steps": given["validation_steps"],
            "verbose": 0,
            "return_dict": True,
        }

    def _boards(self) -> list[Any]:
        each = stopping.each(self._given["callbacks"])
        return [callback for callback in each if isinstance(callback, keras.callbacks.TensorBoard)]

    def _look_at(self, epochs: int, data: dict[str, Any], boards: Any) -> None:
        if self._page is not None:
            self._page.update(Activity.EVALUATING)
        if not self._done:
            # Some models make their variables only when they see data.
            self._model.evaluate(**{**data, "steps": 1})
        try:
            with warnings.catch_warnings():
                # The optimizer's variables are in the file too, and of no use here.
                warnings.filterwarnings("ignore", message="Skipping variable loading")
                self._model.load_weights(self._folder / f"epoch-{epochs}.weights.h5")
        except FileNotFoundError:
            return  # There are newer ones.
        logs = self._model.evaluate(**data)
        self._done = epochs
        self._epochs.append(epochs - 1)
        for name, value in logs.items():
            self._history.setdefault(f"val_{name}", []).append(float(np.asarray(value)))
            # What the training has of it, only the chief knows.
            self._history.setdefault(name, []).append(float("nan"))
        told = ", ".join(f"{name} {float(np.asarray(value)):.4g}" for name, value in logs.items())
        print(f"Evaluation after epoch {epochs}: {told}", flush=True)
        boards.on_epoch_end(epochs - 1, {f"val_{name}": value for name, value in logs.items()})
        if self._page is not None:
            self._page.update(Activity.SCRIPT)
