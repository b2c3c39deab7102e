"""Train the Keras script you have on many workers: the same model, faster.

`drumbeat run -n 4 train.py` needs nothing of this module; `drumbeat.strategy()`
is the explicit spelling for scripts of their own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import tensorflow as tf

__version__ = "0.1.0"
__all__ = ["__version__", "strategy"]


def strategy() -> tf.distribute.Strategy:
    """The strategy that fits this process's cluster.

    With several workers (under `drumbeat run`, or with TF_CONFIG set): synchronous
    data-parallel training, as a `tf.distribute.Strategy` for `scope()`, `run()` and
    the rest of that class's methods. Alone: TensorFlow's default strategy.

    Returns:
        The same strategy at every call in a process.

    Raises:
        drumbeat.errors.ConfigError: TF_CONFIG or the Keras backend can't be used.
        drumbeat.errors.CollectiveError: The other workers can't be reached.
    """
    from drumbeat.strategies import choose
    from drumbeat.training.integrate import integrate

    integrate()
    return choose.strategy()
