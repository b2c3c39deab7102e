"""What keeps all workers from training a model of a script that names no strategy."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from drumbeat import keras_internals as touch

_KNOWN = "_drumbeat_obstacle"
_STEPS = ("train_step", "test_step", "predict_step", "compute_loss", "make_train_function")


class Obstacle(NamedTuple):
    """Why a model can't be given a part of a batch.

    Attributes:
        what: It has, in words to be read after "has".
        advice: What its author can do, a sentence.
    """

    what: str
    advice: str


_OWN_STEP = (
    "To train one model together, make it within `with tf.distribute.MultiWorkerMirroredStrategy()"
    ".scope():`, take the loss over the global batch as TensorFlow's tutorial on custom training "
    "does, and compare: drumbeat check."
)


def obstacle(model: Any) -> Obstacle | None:
    """What of a model, of either Keras, isn't made for a part of a batch, if anything.

    A step of its author's own was written for one worker: a mean over the rows that it is given
    would be a mean over a worker's own, and the sum of the workers' gradients another gradient.
    So it is with the `__call__` of a loss, and with numbers to be shown. A stateful layer keeps a
    state for each row of a batch of one size.

    Looked for once for each compile() and build(): a loop asks before every batch.
    """
    loss, is_built = getattr(model, "loss", None), bool(getattr(model, "built", False))
    known = vars(model).get(_KNOWN)
    if known is None or known[0] is not loss or known[1] != is_built:
        # Not by setattr, in which Keras looks for layers and variables to track.
        known = vars(model)[_KNOWN] = (loss, is_built, _find(model))
    return known[2]


def _find(model: Any) -> Obstacle | None:
    for name in _STEPS:
        if not touch.is_keras_own(getattr(model, name, None)):
            what = f"a {name} of its own, whose loss may be one over the rows that it is given"
            return Obstacle(what, _OWN_STEP)
    if not touch.is_keras_own(model.compute_metrics):
        what = "a compute_metrics of its own, whose numbers may be ones over the rows it is given"
        return Obstacle(what, "Give what it measures to compile(metrics=[...]).")
    if loss := _loss_with_a_call(model):
        what = f"a loss ({loss}) with a __call__ of its own, which may be one over the rows at hand"
        return Obstacle(what, "Give the class a `call(self, y_true, y_pred)` instead.")
    if stateful := _stateful(model):
        what = f"a stateful layer ({stateful}), which keeps a state for each row of a batch"
        return Obstacle(what, "One worker is enough for it: drumbeat run -n 1.")
    return None


def _loss_with_a_call(model: Any) -> str:
    """The class of a compiled loss that is called by code which isn't Keras's, or ""."""
    for loss in tf.nest.flatten(getattr(model, "loss", None)):
        if touch.is_loss(loss) and not touch.is_keras_own(type(loss).__call__):
            return type(loss).__name__
    return ""


def _stateful(model: Any) -> str:
    """The name of a layer that keeps a state from batch to batch, or ""."""
    for layer in touch.all_layers(model):
        if layer is not model and getattr(layer, "stateful", False):
            return layer.name
    return ""
