"""Applies every change to Keras, once in a process.

The changes act only on models built under a `DataParallelStrategy` with more
than one worker; all else runs Keras's own code.
"""

from __future__ import annotations

import functools

import keras

from drumbeat.errors import ConfigError
from drumbeat.training import (
    absence,
    added_losses,
    ahead,
    callback_times,
    compiled,
    epochs,
    fit,
    gradients,
    input_times,
    loss_parts,
    random_draws,
    row_mixing,
    saving,
    shard_state,
    state_sync,
    whole_batch,
)
from drumbeat.training.coordinated import fit as coordinated_fit
from drumbeat.training.coordinated import functions, variables, views


@functools.cache
def integrate() -> None:
    """Apply the changes; calls after the first do nothing.

    Raises:
        ConfigError: Keras runs on another backend than TensorFlow, or is a version
            whose internals differ.
    """
    if keras.backend.backend() != "tensorflow":
        raise ConfigError(
            f"Keras runs on its {keras.backend.backend()!r} backend; drumbeat trains with "
            "'tensorflow'. Unset KERAS_BACKEND or set it to tensorflow."
        )
    # The last are outermost.
    parts = (
        views,
        variables,
        coordinated_fit,
        gradients,
        added_losses,
        whole_batch,
        compiled,
        loss_parts,
        row_mixing,
        random_draws,
        absence,
        shard_state,
        ahead,
        fit,
        state_sync,
        saving,
        epochs,
        functions,
    )
    for part in (*parts, callback_times, input_times):
        part.integrate()
