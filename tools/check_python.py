"""Say whether this Python can run drumbeat; `make setup` asks before it installs anything.

Runs on any Python from 2.7 on, hence the plain syntax.
"""

import sys

LOWEST = (3, 10)
HIGHEST = (3, 13)


def problem(version):
    """What is wrong with a (major, minor) version and what to do, or an empty string."""
    if LOWEST <= tuple(version) <= HIGHEST:
        return ""
    return (
        "This is Python %d.%d; TensorFlow 2.21 runs on %d.%d to %d.%d. "
        "Name another one: make PYTHON=python%d.%d ..."
    ) % (tuple(version) + LOWEST + HIGHEST + HIGHEST)


if __name__ == "__main__":
    MESSAGE = problem(sys.version_info[:2])
    if MESSAGE:
        sys.stderr.write(MESSAGE + "\n")
        sys.exit(1)
