"""Where old scripts save to, and load from: folders, and names without Keras 3's endings."""

from __future__ import annotations

import functools
import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import keras
import tensorflow as tf

from drumbeat import legacy_names as names
from drumbeat.errors import ConfigError
from drumbeat.training import saving
from drumbeat.training.legacy.modules import public
from drumbeat.training.legacy.notice import tell

# TF Serving and tf.saved_model.load don't look at this folder of a SavedModel.
_EXTRA = "assets.extra"
_MODEL = "model.keras"
_MODEL_ENDINGS = (".keras", ".h5", ".hdf5")
_OLD_H5 = (".h5", ".hdf5")
_WEIGHTS_H5 = ".weights.h5"
_WEIGHTS_ENDINGS = (_WEIGHTS_H5, ".keras", ".weights.json")
_DATASETS = ("mnist", "fashion_mnist", "cifar10", "cifar100", "imdb", "reuters", "boston_housing")


def install() -> None:
    """Have the functions take what they took."""
    model = keras.Model
    save_model, load_model = keras.models.save_model, keras.models.load_model
    new_save, new_load = _save(save_model), _load(load_model)
    for module in (*public("models"), *public("saving")):
        module.save_model, module.load_model = new_save, new_load  # type: ignore[attr-defined]
    model.save = _save(model.save)
    model.save_weights = _save_weights(model.save_weights)
    model.load_weights = _load_weights(model.load_weights)
    checkpoint = keras.callbacks.ModelCheckpoint
    checkpoint.__init__ = _checkpoint(checkpoint.__init__)
    checkpoint.on_epoch_end = _every_nth(checkpoint.on_epoch_end)
    get_file = _get_file(keras.utils.get_file)
    for module in public("utils"):
        module.get_file = get_file  # type: ignore[attr-defined]
    for name in _DATASETS:
        module = sys.modules[getattr(keras.datasets, name).load_data.__module__]
        if hasattr(module, "get_file"):
            module.get_file = get_file  # type: ignore[attr-defined]


def _is_folder(filepath: Any) -> bool:
    return isinstance(filepath, (str, os.PathLike)) and not str(filepath).endswith(_MODEL_ENDINGS)


def _save(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save(model: Any, filepath: Any, overwrite: bool = True, *args: Any, **kwargs: Any) -> Any:
        wanted = kwargs.pop("save_format", None)
        if wanted == "h5" and _is_folder(filepath):
            filepath = f"{filepath}.h5"
        if not _is_folder(filepath) or wanted == "keras" or kwargs.get("zipped") is False:
            return original(model, filepath, overwrite, *args, **kwargs)
        tell(names.SAVE_FOLDER)
        if not overwrite and os.path.exists(filepath):
            raise FileExistsError(f"{filepath} exists, and overwrite is False.")
        return _whole_folder(model, str(filepath))

    return save


def _save_folder(model: Any, filepath: str) -> None:
    if not model.built:
        raise ConfigError(
            f"{model.name} was saved to a folder before it has been called: it has no weights yet. "
            "Train it, or call it on some rows first."
        )
    model.export(filepath, verbose=False)
    extra = Path(filepath) / _EXTRA
    extra.mkdir(parents=True, exist_ok=True)
    model.save(str(extra / _MODEL))


_whole_folder = saving.whole_or_nothing(_save_folder)


def _load(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load(filepath: Any, custom_objects: Any = None, compile: bool = True, **kwargs: Any) -> Any:
        if not os.path.isdir(filepath) or not (Path(filepath) / "saved_model.pb").exists():
            return original(filepath, custom_objects, compile, **kwargs)
        tell(names.LOAD_FOLDER)
        kwargs.pop("options", None)
        beside = Path(filepath) / _EXTRA / _MODEL
        if beside.exists():
            return original(str(beside), custom_objects, compile, **kwargs)
        return _wrapped(str(filepath))

    return load


def _wrapped(folder: str) -> Any:
    """A model around a SavedModel that Keras 2 or another program has written: for predict."""
    signatures = tf.saved_model.load(folder).signatures
    endpoint = "serve" if "serve" in signatures else "serving_default"
    layer = keras.layers.TFSMLayer(folder, call_endpoint=endpoint)
    given = signatures["serving_default"].structured_input_signature[1]
    inputs = {
        name: keras.Input(spec.shape[1:], dtype=spec.dtype.name) for name, spec in given.items()
    }
    outputs = layer(_only(inputs))
    return keras.Model(_only(inputs), _only(outputs) if isinstance(outputs, dict) else outputs)


def _only(named: dict[str, Any]) -> Any:
    """What is in it alone, else all."""
    return next(iter(named.values())) if len(named) == 1 else named


def _is_checkpoint(filepath: Any) -> bool:
    return isinstance(filepath, (str, os.PathLike)) and not str(filepath).endswith(_WEIGHTS_ENDINGS)


def _save_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def save_weights(self: Any, filepath: Any, overwrite: bool = True, **kwargs: Any) -> Any:
        if kwargs.pop("save_format", None) == "h5" and not str(filepath).endswith(".h5"):
            filepath = f"{filepath}.weights.h5"
        kwargs.pop("options", None)
        if not _is_checkpoint(filepath) or kwargs.get("max_shard_size") is not None:
            return original(self, filepath, overwrite, **kwargs)
        tell(names.SAVE_WEIGHTS)
        if str(filepath).endswith(_OLD_H5):
            if not overwrite and os.path.exists(filepath):
                raise FileExistsError(f"{filepath} exists, and overwrite is False.")
            _save_h5(original, self, Path(filepath))
            return None
        _name_newest(Path(_checkpoint_of(self).write(str(filepath))))
        return None

    return save_weights


def _save_h5(original: Callable[..., Any], model: Any, path: Path) -> None:
    """Keras 3 writes to names in .weights.h5 only."""
    beside = path.with_name(f".{path.name}.{os.getpid()}{_WEIGHTS_H5}")
    original(model, str(beside), True)
    if beside.exists():  # a worker may have left it to the chief
        os.replace(beside, path)


def _name_newest(path: Path) -> None:
    """Writes the file by which tf.train.latest_checkpoint finds `path`: a CheckpointState."""
    name = json.dumps(path.name)
    new = path.parent / f"checkpoint.{os.getpid()}.new"
    new.write_text(
        f"model_checkpoint_path: {name}\nall_model_checkpoint_paths: {name}\n", encoding="utf-8"
    )
    os.replace(new, path.parent / "checkpoint")


def _load_weights(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def load_weights(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        if _is_of_save_h5(filepath):
            with tempfile.TemporaryDirectory() as folder:
                link = os.path.join(folder, f"link{_WEIGHTS_H5}")
                os.symlink(os.path.abspath(filepath), link)
                return original(self, link, *args, **kwargs)
        if not _is_checkpoint(filepath) or str(filepath).endswith(_OLD_H5):
            return original(self, filepath, *args, **kwargs)
        tell(names.LOAD_WEIGHTS)
        if not os.path.exists(f"{filepath}.index"):
            raise FileNotFoundError(
                f"There is no checkpoint {filepath} ({filepath}.index is missing)."
            )
        status = _checkpoint_of(self).read(str(filepath))
        status.assert_existing_objects_matched()
        return status

    return load_weights


def _is_of_save_h5(filepath: Any) -> bool:
    """It is a file of `_save_h5`: one of Keras 2 has other contents, and Keras 3 reads it."""
    path = str(filepath)
    if not path.endswith(_OLD_H5) or path.endswith(_WEIGHTS_H5) or not os.path.isfile(path):
        return False
    with h5py.File(path) as file:
        return "layer_names" not in file.attrs and "model_weights" not in file


def _checkpoint_of(model: Any) -> tf.train.Checkpoint:
    """The weights by their places in the model's list, which older checkpoints have not."""
    if not model.built or not model.weights:
        raise ConfigError(
            f"{model.name} has no weights yet: call it on some rows before its weights are saved "
            "or loaded."
        )
    return tf.train.Checkpoint(
        **{f"weight_{number}": weight.value for number, weight in enumerate(model.weights)}
    )


def _checkpoint(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def init(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        period = kwargs.pop("period", None)
        if period is not None:
            tell(names.PERIOD)
        self._period = period or 1
        weights_only = kwargs.get("save_weights_only", args[3] if len(args) > 3 else False)
        path = str(filepath)
        ending = ".weights.h5" if weights_only else ".keras"
        fits = path.endswith(ending) or (not weights_only and path.endswith(".h5"))
        if fits:
            original(self, filepath, *args, **kwargs)
            return
        tell(names.CHECKPOINT_PATH)
        original(self, f"{path}{ending}", *args, **kwargs)
        self.filepath = path

    return init


def _every_nth(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def on_epoch_end(self: Any, epoch: int, logs: Any = None) -> Any:
        if (epoch + 1) % getattr(self, "_period", 1) == 0:
            original(self, epoch, logs)

    return on_epoch_end


def _get_file(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def get_file(fname: Any = None, *args: Any, **kwargs: Any) -> Any:
        if fname is not None and os.path.isabs(str(fname)):
            tell(names.GET_FILE)
            folder, fname = os.path.split(str(fname))
            kwargs |= {"cache_dir": folder, "cache_subdir": ""}
        return original(fname, *args, **kwargs)

    return get_file
