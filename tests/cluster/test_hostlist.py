from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from drumbeat.cluster.hostlist import MAX_HOSTS, expand, expand_counts
from drumbeat.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("n1", ["n1"]),
        ("n[1-2,10]", ["n1", "n2", "n10"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("n[001,3]", ["n001", "n3"]),
        ("a,b[1-2],c.example.org", ["a", "b1", "b2", "c.example.org"]),
        ("rack[1-2]n[1-3]", ["rack1n1", "rack1n2", "rack1n3", "rack2n1", "rack2n2", "rack2n3"]),
        ("gpu-[7]", ["gpu-7"]),
        ("n[1-2]-ib", ["n1-ib", "n2-ib"]),
    ],
)
def test_lists_are_read(text, hosts):
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "n[", "n]1[", "n[1-2", "n[2-1]", "n[a]", "n[]", "n[1--2]", "n[[1]]", "a,,b",
        "n[1-2]\n", "n 1", f"n[1-{MAX_HOSTS + 1}]", "n[0-999]m[0-999]", "n[1-99999999999]", "n[²]",
    ],
)  # fmt: skip
def test_what_is_no_list_is_refused(text):
    with pytest.raises(ConfigError, match="no list of hosts|names more than"):
        expand(text)


def test_counts():
    assert expand_counts("2(x3),1") == [2, 2, 2, 1]
    for text in ("", "2(x0)", "x", "1(x999999)", "2(3)", "-1"):
        with pytest.raises(ConfigError, match="no list of numbers of tasks"):
            expand_counts(text)


@given(st.text(st.sampled_from("n[]-,0129(x) ²\x00")))
def test_any_text_is_read_or_refused(text):
    for read in (expand, expand_counts):
        try:
            found = read(text)
        except ConfigError:
            continue
        assert 0 < len(found) <= MAX_HOSTS
