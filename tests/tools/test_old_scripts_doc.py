"""docs/old-scripts.md says what the table says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_is_made_from_the_table() -> None:
    spec = importlib.util.spec_from_file_location("doc", ROOT / "tools" / "old_scripts_doc.py")
    assert spec is not None
    assert spec.loader is not None
    doc = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(doc)
    _, inside, _ = doc.parts(doc.PAGE.read_text(encoding="utf-8"))
    assert inside == doc.tables(), "The page is stale: make old-scripts-doc"
