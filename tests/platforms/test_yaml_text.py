"""Manifests as YAML: read back as they were meant, the same text every time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from drumbeat.platforms import registry
from drumbeat.platforms.jobfile.documents import parse_yaml
from drumbeat.platforms.yaml_text import Chosen, dump, plain

ROOT = Path(__file__).parents[2]
TRICKY = [
    "", " ", "true", "null", "~", "no", "on", "1", "1e5", "0x10", "007", "1_000", "2030-01-02",
    "12:30:45", "a: b", "- a", "# no comment", "a # b", "{a}", "[a]", "*a", "&a", "!tag", "|", ">",
    "'", '"', "%", "@", "`", "line\nline", "\ttab", "\r", "\x85", "\u2028", "\x7f", "a\ufeff",
    "trailing ", "é\U0001f600", "=", "<<", "\\",
]  # fmt: skip


@pytest.mark.parametrize("text", TRICKY)
def test_text_stays_text(text):
    written = dump([{"a": text, "b": [text]}])
    assert parse_yaml(written, "x")[0].value == {"a": text, "b": [text]}
    # And for readers of YAML 1.1, such as kubectl's and Compose's.
    old = YAML(typ="safe", pure=True)
    old.version = (1, 1)  # type: ignore[assignment]
    assert old.load(written)["a"] == text


def test_what_was_chosen_has_its_reason_behind_it():
    documents = [{"a": Chosen(3, "why a"), "b": Chosen({"c": [1, Chosen("x", "why x")]}, "why b")}]
    written = dump(documents, header=["top", ""])
    assert written == "# top\n#\na: 3  # why a\nb:  # why b\n  c:\n    - 1\n    - x  # why x\n" or (
        "# why a" in written and "# why b" in written and "# why x" in written
    )
    assert parse_yaml(written, "x")[0].value == plain(documents[0])
    assert plain(documents) == [{"a": 3, "b": {"c": [1, "x"]}}]


def test_numbers_of_a_job_file_are_numbers():
    value = parse_yaml("a: [1, 1.50, 0x1F, true, 7_000]", "x")[0].value
    assert dump([value]) == "a:\n  - 1\n  - 1.5\n  - 31\n  - true\n  - 7000\n"
    assert [type(each) for each in plain(value)["a"]] == [int, float, int, bool, int]


def test_documents_are_several():
    written = dump([{"a": 1}, {"b": 2}])
    assert [each.value for each in parse_yaml(written, "x")] == [{"a": 1}, {"b": 2}]


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**12), 10**12)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
    | st.sampled_from(TRICKY),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(
        st.characters(codec="utf-8", exclude_characters="\0"), max_size=6), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(deadline=None, max_examples=60)
@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, min_size=1))
def test_anything_is_read_back(value):
    written = dump([value])
    assert written == dump([value])
    assert parse_yaml(written, "x")[0].value == value


def test_rendering_does_not_depend_on_the_order_of_hashes():
    code = (
        "import importlib.util, pathlib, sys\n"
        "spec = importlib.util.spec_from_file_location('e', 'tools/platform_examples.py')\n"
        "e = importlib.util.module_from_spec(spec); spec.loader.exec_module(e)\n"
        "from drumbeat.platforms import registry\n"
        "print({name: e.rendered(name) for name in registry.PLATFORMS})"
    )
    texts = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=ROOT,
            env={"PATH": "", "PYTHONHASHSEED": seed, "PYTHONPATH": str(ROOT / "src")},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    assert all(name in next(iter(texts)) for name in registry.PLATFORMS)
