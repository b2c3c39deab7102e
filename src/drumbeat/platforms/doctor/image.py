"""Which of the files that a job names its image would not have."""

from __future__ import annotations

from collections.abc import Iterable

from drumbeat.control.doctor.result import Result, error, warning
from drumbeat.platforms import left_out


def check(named: Iterable[str], ignored: Iterable[str]) -> list[Result]:
    """What is to be said of them.

    Args:
        named: Files of the folder that the job file names, and the data.
        ignored: What the folder's own .dockerignore leaves out of these, and of the script.
    """
    secrets = [name for name in named if left_out.is_secret(name)]
    return [
        *(
            error(
                "image",
                f"{name} has the name of a key or a secret, and is left out of images and of what "
                "Ray is given. Give a key by secrets: in the job file; if it is none, rename it.",
            )
            for name in secrets
        ),
        *(
            warning(
                "image",
                f"{name} is left out of the image by the .dockerignore that is there. drumbeat "
                "render docker -o . writes one that takes it in, or add the line "
                f"!{name} to it.",
            )
            for name in sorted({*ignored} - {*secrets})
        ),
    ]
