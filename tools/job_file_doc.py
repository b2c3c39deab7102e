"""Write docs/platforms/job-file.md anew, the table of a job file's keys, or say if it is old.

What is said of a key is its description in the schema that editors complete job files by.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from drumbeat.platforms.jobfile.first import schema

PAGE = Path(__file__).parent.parent / "docs" / "platforms" / "job-file.md"
_HEAD = """\
# Keys of the job file
`drumbeat.yaml`, or the table `[tool.drumbeat]` of pyproject.toml;
[how it is used](README.md#the-job-file). Only `name`, and `script` or `module`, must be there.

| key | | such as |
|---|---|---|
"""
_FOOT = """
## Volumes
`mounts` puts volumes into the containers:

```yaml
mounts:
  - {name: digits, path: /data, read_only: true}         # Kubernetes: the claim (PVC) digits
  - {name: nas, path: /nas, source: "nas:/exports/team"} # NFS
  - {name: tmp, path: /scratch, source: /mnt/scratch}    # a folder of each node
data: /data/digits
output: /nas/runs/digits
```

For Compose `name` is a volume's. What all pods write to has to be one file system for all: a claim
with `ReadWriteMany`, NFS, or a URL in place of a path. A claim has to be there in the job's
namespace (`kubectl get pvc`); drumbeat makes none.
"""


def page() -> str:
    """The page as it is today."""
    return _HEAD + "".join(_rows(schema(), schema()["$defs"], "")) + _FOOT


def _rows(part: dict[str, Any], parts: dict[str, Any], within: str) -> Iterator[str]:
    for key, found in part["properties"].items():
        reference = found.get("$ref") or found.get("items", {}).get("$ref", "")
        name = f"{within}{key}" + ("[]" if found.get("type") == "array" and reference else "")
        inner = parts.get(reference.rpartition("/")[2])
        said = found.get("description") or (inner or {}).get("description", "").split("\n\n")[0]
        examples = " or ".join(f"`{json.dumps(each)}`" for each in found.get("examples", ()))
        said = said.replace("|", "\\|").replace("<", "&lt;")
        yield f"| `{name}` | {said} | {examples} |\n"
        if inner is not None and "properties" in inner:
            yield from _rows(inner, parts, f"{name}.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write it")
    if parser.parse_args().write:
        PAGE.write_text(page())
    elif not PAGE.exists() or PAGE.read_text() != page():
        sys.exit(f"{PAGE.name} is not what the schema says today")


if __name__ == "__main__":
    main()
