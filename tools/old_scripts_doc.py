"""Makes the tables of docs/old-scripts.md from `drumbeat.legacy_names`.

    make old-scripts-doc       # or: .venv/bin/python tools/old_scripts_doc.py --write

Without `--write` the tables are printed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from drumbeat import legacy_names as names
from drumbeat.porting.moved import ALIVE
from drumbeat.porting.recipes import recipes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "old-scripts.md"
BEGIN, END = "<!-- make old-scripts-doc: begin -->", "<!-- make old-scripts-doc: end -->"
HEAD = ("old", "gone since", "`drumbeat run`", "to write instead", "`drumbeat port`")


def tables() -> str:
    """All that stands between the markers."""
    rows = [(*HEAD,), ("---",) * len(HEAD)]
    for old in names.table():
        recipe = recipes()[old.name]
        left = f"left to you where {recipe.leaves}" if recipe.leaves else ""
        does = ". L".join(filter(None, (recipe.does, left[1:]))) if recipe.does else left
        now = old.now.removeprefix("drumbeat ")
        rows.append((f"`{old.name}`", old.since, _plain(now), _plain(old.write), _plain(does)))
    alive = "\n".join(f"- `{_short(old)}` becomes `{_short(new)}`." for old, new in ALIVE.items())
    return "\n".join(f"| {' | '.join(row)} |" for row in rows) + f"\n\n{ALSO}\n{alive}"


ALSO = "These still work, under a warning; `port` writes the newer name:"


def _plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return text.replace("*", "\\*").replace("|", "\\|").replace("<", "&lt;")


def _short(name: str) -> str:
    return name.replace("tensorflow.", "tf.")


def parts(page: str) -> tuple[str, str, str]:
    """What is in front of the tables, the tables, and what comes after."""
    before, rest = page.split(BEGIN)
    inside, after = rest.split(END)
    return before, inside.strip("\n"), after


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--write", action="store_true", help="write them into the page")
    text = tables()
    if not parser.parse_args().write:
        print(text)
        return 0
    before, _, after = parts(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
