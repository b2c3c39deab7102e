"""Has Keras take the names of old."""

from __future__ import annotations

from drumbeat.training.legacy import arguments, files, methods, modules, notebook, notice, refused


def install(*, tells: bool = True, keras_2: bool = False) -> None:
    """Apply all of `drumbeat.legacy_names`; to be called once.

    Args:
        tells: This process shows the notices.
        keras_2: The script has Keras 2, which takes its own names of old: only TensorFlow's are
            applied.
    """
    if not tells:
        notice.mute()
    if keras_2:
        methods.install_on_strategies()
        notebook.install()
        return
    for part in (modules, methods, arguments, files, notebook, refused):
        part.install()
