"""`import drumbeat.auto`: a script that something else starts trains as under `drumbeat run`.

To be imported before TensorFlow, and after TF_CONFIG is set if the script sets it: the same
strategies, rows, losses and names of old as under `drumbeat run`, with the workers that
TF_CONFIG names. Nobody watches them: what fails is not started again, and TensorFlow's own
servers carry the gradients. Under `drumbeat run` it does nothing.

Raises:
    ConfigError: TF_CONFIG is wrong.
"""

from __future__ import annotations

import os
import sys

from drumbeat.launch import environment

if "tensorflow" not in sys.modules:
    # Measured, it makes a small CNN's step four times as fast on some machines.
    os.environ.setdefault(environment.ONEDNN_VARIABLE, "1")

from drumbeat.training import by_tf_config  # noqa: E402

by_tf_config.install()
