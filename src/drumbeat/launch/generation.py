"""Which Keras `tf.keras` is in a job: 3, or for scripts that ask for it 2, the package tf_keras.

TensorFlow looks at `TF_USE_LEGACY_KERAS`. A script that sets it, or imports tf_keras, gets what
it asks for in any case (`drumbeat.training.keras2`); knowing so ahead, the process that workers
are forked from imports tf_keras for all of them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path

from drumbeat.errors import ConfigError

VARIABLE = "TF_USE_LEGACY_KERAS"
GENERATIONS = (2, 3)
# The workers' preloaded module where tf_keras is asked for.
PRELOAD = "drumbeat.training.keras2.preload"
_TRUE = ("true", "True", "1")  # what TensorFlow takes
_PACKAGE = "tf_keras"


def environ_with(keras: int | None, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a job.

    Args:
        keras: 2 or 3, as asked for; None to leave it to the environment and the script.
        environ: That of this process.

    Raises:
        ConfigError: Keras 2 is asked for, and tf_keras is not installed; or neither 2 nor 3 is.
    """
    if keras is not None and keras not in GENERATIONS:
        raise ConfigError(f"--keras is {keras}; expected 2 or 3.")
    chosen = {} if keras is None else {VARIABLE: "1" if keras == 2 else "0"}
    variables = {**environ, **chosen}
    if variables.get(VARIABLE) in _TRUE and importlib.util.find_spec(_PACKAGE) is None:
        by = "--keras 2" if keras == 2 else f"{VARIABLE}={variables[VARIABLE]}"
        raise ConfigError(
            f"{by} asks for Keras 2, but tf_keras is not installed here. Install it "
            "(pip install 'drumbeat[keras2]'), or leave that out."
        )
    return variables


def asks_for_2(command: str, *, is_module: bool, environ: Mapping[str, str]) -> bool:
    """Whether a job is likely to use tf_keras.

    Args:
        command: The script's path, or the module's name.
        is_module: Which of the two it is.
        environ: See `environ_with`.
    """
    if environ.get(VARIABLE) in _TRUE:
        return True
    if importlib.util.find_spec(_PACKAGE) is None:
        return False
    path = Path(command.replace(".", "/") + ".py") if is_module else Path(command)
    try:
        text = path.read_bytes()
    except OSError:
        return False
    return VARIABLE.encode() in text or _PACKAGE.encode() in text
