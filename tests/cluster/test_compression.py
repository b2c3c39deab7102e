"""What --compress takes, and what it says of everything else."""

from __future__ import annotations

import pytest

from drumbeat.cluster.compression import CHOICES, Compress
from drumbeat.errors import ConfigError

pytestmark = pytest.mark.timeout(30)


@pytest.mark.parametrize(
    "text", [*(c for c in CHOICES if c not in ("powersgd", "topk")), "powersgd:1", "topk:0.001"]
)
def test_text_survives(text: str) -> None:
    assert str(Compress.parse(text)) == text


def test_numbers_have_defaults() -> None:
    assert (str(Compress.parse("powersgd")), str(Compress.parse("topk"))) == (
        "powersgd:4",
        "topk:0.01",
    )
    assert not Compress.parse("none").is_on


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "compress is ''; expected one of none, bf16, fp16, int8, powersgd, topk, auto"),
        ("INT8", "Did you mean int8"),
        ("bfloat16", "compress is 'bfloat16'; expected one of"),
        ("power-sgd:2", "Did you mean powersgd"),
        ("powersgd:0", "a rank from 1 to 1024"),
        ("powersgd:1.5", "a rank from 1 to 1024"),
        ("powersgd:", "a rank from 1 to 1024"),
        ("topk:0", "a ratio above 0 and up to 1"),
        ("topk:1.01", "a ratio above 0 and up to 1"),
        ("topk:nan", "a ratio above 0 and up to 1"),
        ("topk:many", "a ratio above 0 and up to 1"),
        ("int8:4", "int8 takes no number; expected int8 alone"),
    ],
)
def test_what_cannot_be_used_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Compress.parse(text)


def test_exact_mode_and_compression_exclude_each_other() -> None:
    Compress().check(exact=8)
    with pytest.raises(ConfigError, match="compress=int8 and exact=8 .* own rows"):
        Compress.parse("int8").check(exact=8)
