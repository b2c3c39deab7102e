"""Keras on JAX, model-parallel: the large layer is cut over the processes, the batch is not.

    drumbeat run --backend jax -n 2 examples/jax_model_parallel.py
    KERAS_BACKEND=jax python examples/jax_model_parallel.py         # alone: the same loss

For layers that are too large for one device: each process holds its part of their weights and of
their optimizer's, and JAX exchanges what the parts have computed.
"""

from __future__ import annotations

import argparse

import jax
import keras
import numpy as np

import digits

WIDE = 1024


def distribution() -> keras.distribution.ModelParallel:
    """All devices in one row, which share the weights of the layer named "wide"."""
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((1, len(devices)), ["batch", "model"], devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[".*wide/kernel"] = (None, "model")
    layout[".*wide/bias"] = ("model",)
    layout[".*narrow/kernel"] = ("model", None)
    return keras.distribution.ModelParallel(layout_map=layout, auto_shard_dataset=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    options = parser.parse_args()
    keras.utils.set_random_seed(1)
    keras.distribution.set_distribution(distribution())
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(WIDE, activation="relu", name="wide"),
        keras.layers.Dense(10, name="narrow"),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    (x, y), _ = digits.load()
    # The batch is on all processes: each gives all of its rows, in the same order.
    history = model.fit(
        x.reshape(len(x), -1), y, batch_size=128, epochs=options.epochs, shuffle=False, verbose=0
    )
    kernel = model.get_layer("wide").kernel.value
    (own,) = {part.data.shape for part in kernel.addressable_shards}
    print(f"process {jax.process_index()} holds {list(own)} of {list(np.shape(kernel))}")
    for epoch, (loss, accuracy) in enumerate(
        zip(history.history["loss"], history.history["accuracy"], strict=True), 1
    ):
        print(f"epoch {epoch}: loss {loss:.6f}, accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
