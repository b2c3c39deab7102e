"""What went wrong in a pipeline, of which TensorFlow reports only a text."""

from __future__ import annotations

import re

import tensorflow as tf

from drumbeat.errors import DataError

# An assertion in a graph gives its text in brackets.
_OWN = re.compile(r"DataError: ([^\n]*?)\]?$", re.MULTILINE)
# Examples that don't fit into one batch, in TensorFlow's words.
_SHAPES = re.compile(
    r"(?:Cannot batch tensors with different shapes|Cannot add tensor to the batch)([^\n]*)"
)
_SHAPE = re.compile(r"\[[\d,]*\]")


def data_error(error: tf.errors.OpError) -> DataError | None:
    """The `DataError` that `error` stands for, or None where it has another cause."""
    text = str(error.message)
    own = _OWN.search(text)
    if own:
        return DataError(own[1].strip())
    shapes = _SHAPES.search(text)
    if shapes:
        both = " and ".join(_SHAPE.findall(shapes[1])[:2])
        return DataError(
            f"examples of one batch have different shapes, {both}. Expected that map returns "
            "tensors of one shape for all examples: resize, crop or pad them there, or return "
            "tf.RaggedTensor."
        )
    return None
