"""How messages quote what was received."""

from __future__ import annotations

import pytest

from drumbeat.cluster.wording import printed_by


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", " nothing"),
        (" \n\n", " nothing"),
        ("  no such partition\n", " no such partition"),
        ("first\n\n  second  \r\n", "\n  first\n    second"),
        ("\n".join("abcd"), "\n  (1 more lines above)\n  b\n  c\n  d"),
    ],
)
def test_what_a_program_printed_keeps_its_lines(text, shown):
    assert printed_by(text, limit=3) == shown
    assert printed_by("", "code 3") == " code 3"
