"""Says which of tf_keras's internals moved, when tf_keras changes."""

from __future__ import annotations

import pytest

from drumbeat import keras_internals, tf_keras_internals
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize("touch", tf_keras_internals.TOUCHES, ids=lambda touch: touch.name)
def test_tf_keras_has_what_we_replace(touch: keras_internals.Touch) -> None:
    assert keras_internals.problem_with(touch) is None
    assert touch.why


def test_a_tf_keras_that_moved_is_refused() -> None:
    gone = keras_internals.Touch(
        module="tf_keras.src.losses", name="no_such_function", parameters=(), why="test"
    )
    with pytest.raises(ConfigError, match="tf_keras .* isn't supported: .*no_such_function"):
        tf_keras_internals.wrap(gone, lambda original: original)
