"""Write the examples in docs/platforms/examples anew, or say which are not as rendered today.

Each folder there is called as a platform and holds what `drumbeat render` makes of the job file:
the folder's own drumbeat.yaml where there is one, else the one beside the folders.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from drumbeat.platforms import registry
from drumbeat.platforms.jobfile import read
from drumbeat.platforms.platform import Rendered

EXAMPLES = Path(__file__).parent.parent / "docs" / "platforms" / "examples"
JOB, OLD = "drumbeat.yaml", "config.yaml"


def rendered(name: str) -> Rendered:
    """What drumbeat makes today of the job of a platform's example."""
    platform, folder = registry.get(name), EXAMPLES / name
    if platform.convert is not None:
        return platform.convert(registry.read_manifest(folder / OLD))
    if platform.render is None:
        raise TypeError(f"{name} neither renders nor converts")
    own = folder / JOB
    return platform.render(read.read(own if own.exists() else EXAMPLES / JOB))


def differences(name: str) -> list[str]:
    """Files of the example that are missing, too many, or not as rendered today."""
    folder, files = EXAMPLES / name, rendered(name).files
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    wrong = [f"{name}/{file} is not rendered" for file in there - files.keys() - {JOB, OLD}]
    for file, text in files.items():
        path = folder / file
        if not path.exists() or path.read_text() != text:
            wrong.append(f"{name}/{file} is not what is rendered today")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the files")
    options = parser.parse_args()
    wrong: list[str] = []
    for name in registry.PLATFORMS:
        if options.write:
            (EXAMPLES / name).mkdir(exist_ok=True)
            for file, text in rendered(name).files.items():
                (EXAMPLES / name / file).write_text(text)
        wrong += differences(name)
    print("\n".join(wrong))
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
