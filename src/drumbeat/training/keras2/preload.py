"""The workers' preloaded module where the job asks for Keras 2: that of all jobs, and tf_keras."""

from __future__ import annotations

import tf_keras  # noqa: F401  (preloaded for the workers)

from drumbeat.training.keras2 import integrate as integrate
from drumbeat.training.unmodified import install as install
