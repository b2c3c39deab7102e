"""What keeps all workers from training a model of a script that names no strategy."""

from __future__ import annotations

from typing import Any, NamedTuple

from drumbeat import keras_internals as touch

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
    A stateful layer keeps a state for each row of a batch of one size.
    """
    for name in _STEPS:
        if not touch.is_keras_own(getattr(model, name, None)):
            what = f"a {name} of its own, whose loss may be one over the rows that it is given"
            return Obstacle(what, _OWN_STEP)
    if stateful := _stateful(model):
        what = f"a stateful layer ({stateful}), which keeps a state for each row of a batch"
        return Obstacle(what, "One worker is enough for it: drumbeat run -n 1.")
    return None


def _stateful(model: Any) -> str:
    """The name of a layer that keeps a state from batch to batch, or ""."""
    for layer in touch.all_layers(model):
        if layer is not model and getattr(layer, "stateful", False):
            return layer.name
    return ""
