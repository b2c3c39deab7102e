"""What the names of Keras and TensorFlow that old scripts use are: a layer, an optimizer ..."""

from __future__ import annotations

import re

# Parts that make a module's contents be of a kind: keras.optimizers.legacy.Adam is an optimizer.
_KINDS = {
    "optimizers": "optimizer",
    "metrics": "metric",
    "losses": "loss",
    "layers": "layer",
    "callbacks": "callback",
}
_RNN = {"RNN", "LSTM", "GRU", "SimpleRNN", "ConvLSTM1D", "ConvLSTM2D", "ConvLSTM3D"}
_MODELS = {"keras.Model": "model", "keras.models.Model": "model", "keras.Sequential": "sequential"}
_MODEL_MAKERS = {"load_model", "clone_model", "model_from_json", "multi_gpu_model"}

# Of modules that are imported with a star, the names that port asks for.
_STARS = {
    "keras.layers": ("Input", "Embedding", "BatchNormalization", "Dense", *_RNN),
    "keras.models": ("Sequential", "Model", "load_model", "save_model"),
    "keras.optimizers": (
        *("SGD", "Adam", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Nadam", "Ftrl"),
    ),
    "keras.callbacks": ("ModelCheckpoint", "TensorBoard"),
    "keras.utils": ("multi_gpu_model", "get_file"),
    "keras": ("Input", "Model", "Sequential"),
}

# Where nothing else is known: how people call such things.
_BY_NAME = {
    "optimizer": re.compile(r"(^|_)(opt|optim|optimi[sz]er|adam|sgd|rmsprop)\d*(_|$)", re.I),
    "metric": re.compile(r"(^|_)(metric|acc|accuracy|mae|mse|auc)s?\d*(_|$)", re.I),
    "model": re.compile(r"(^|_)(model|net|network)\d*(_[a-z0-9]{1,2})?$", re.I),
    "strategy": re.compile(r"(^|_)(strategy)\d*(_|$)", re.I),
}


def is_in(module: str, name: str) -> bool:
    """`from module import *` gives `name`, and port knows it."""
    return name in _STARS.get(module, ())


def kind_of(name: str) -> str | None:
    """What calling `name`, a full one, gives."""
    last = name.rpartition(".")[2]
    if name in _MODELS:
        return _MODELS[name]
    if name == "keras.models.Sequential":
        return "sequential"
    if name.startswith("tensorflow.distribute.") and (
        last.endswith("Strategy") or last == "get_strategy"
    ):
        return "strategy"
    if not name.startswith("keras."):
        return "other" if name.startswith("tensorflow.") else None
    parts = name.split(".")
    if parts[1] == "applications" or last in _MODEL_MAKERS:
        return "model"
    if last == "LossScaleOptimizer" or name == "keras.optimizers.get":
        return "optimizer"
    if not last[:1].isupper():
        return None
    kind = next((_KINDS[part] for part in parts[1:-1] if part in _KINDS), None)
    return "rnn" if kind == "layer" and last in _RNN else kind


def by_name(word: str) -> str | None:
    """What a variable of this name most likely is."""
    return next((kind for kind, usual in _BY_NAME.items() if usual.search(word)), None)
