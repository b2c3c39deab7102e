from __future__ import annotations

import pytest

from drumbeat.collectives.calls import (
    TEXT_BYTES,
    Call,
    TensorSpec,
    mismatch_message,
    text_from_bytes,
    workers,
)

A = TensorSpec(dtype="float32", shape=(3, 3, 1, 8))
B = TensorSpec(dtype="float32", shape=(8,))
CALL = Call(kind="all_reduce", sequence=17, specs=(A, B))


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (CALL, "all_reduce #17 (float32[3,3,1,8], float32[8])"),
        (
            Call(kind="all_reduce", sequence=1, specs=(B,), detail="op=max", name="loss"),
            "all_reduce 'loss' #1 (float32[8], op=max)",
        ),
        (
            Call(
                kind="all_gather",
                sequence=2,
                specs=(TensorSpec(dtype="bool", shape=(4, 2)).any_rows,),
            ),
            "all_gather #2 (bool[?,2])",
        ),
        (
            Call(kind="broadcast", sequence=3, specs=(TensorSpec(dtype="int64", shape=()),)),
            "broadcast #3 (int64[])",
        ),
        (Call(kind="barrier", sequence=4, name="before save"), "barrier 'before save' #4 ()"),
    ],
)
def test_a_call_reads_like_this(call: Call, text: str) -> None:
    assert str(call) == text


@pytest.mark.parametrize(
    "other",
    [
        Call(kind="broadcast", sequence=17, specs=(A, B)),
        Call(kind="all_reduce", sequence=18, specs=(A, B)),
        Call(kind="all_reduce", sequence=17, specs=(B, A)),
        Call(kind="all_reduce", sequence=17, specs=(A,)),
        Call(kind="all_reduce", sequence=17, specs=(A, B), detail="op=max"),
        Call(kind="all_reduce", sequence=17, specs=(A, B), name="x"),
    ],
)
def test_whatever_differs_changes_the_fingerprint(other: Call) -> None:
    assert other.fingerprint() != CALL.fingerprint()


def test_equal_calls_have_one_fingerprint_that_can_be_negated() -> None:
    again = Call(kind="all_reduce", sequence=17, specs=(A, B))
    assert again.fingerprint() == CALL.fingerprint()
    assert 0 <= CALL.fingerprint() < 2**62


def test_the_text_survives_the_wire() -> None:
    assert len(CALL.to_bytes()) == TEXT_BYTES
    assert text_from_bytes(CALL.to_bytes()) == str(CALL)


def test_a_long_text_is_cut_to_the_wire_size_but_keeps_what_tells_calls_apart() -> None:
    one = Call(kind="all_reduce", sequence=1, specs=(A,) * 200, name="é" * 2000)
    assert len(one.to_bytes()) == TEXT_BYTES
    assert text_from_bytes(one.to_bytes()).startswith("all_reduce 'éé")
    other = Call(kind="all_reduce", sequence=1, specs=(*(A,) * 199, B))
    named = Call(kind="all_reduce", sequence=1, specs=(A,) * 200)
    assert text_from_bytes(other.to_bytes()) != text_from_bytes(named.to_bytes())
    assert "200 tensors, 14400 elements" in str(named)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "worker 3"),
        ([0, 2], "workers 0, 2"),
        (range(20), "workers 0, 1, 2, 3, 4, 5, 6, 7 and 12 more"),
    ],
)
def test_names_of_workers(ranks: list[int], text: str) -> None:
    assert workers(ranks) == text


def test_a_mismatch_names_who_called_what() -> None:
    message = mismatch_message(["all_reduce #1 (a)", "broadcast #1 (b)", "all_reduce #1 (a)"])
    assert message.startswith(
        "workers 0, 2 called all_reduce #1 (a) while worker 1 called broadcast #1 (b)."
    )


def test_a_mismatch_that_the_texts_do_not_show_is_said_to_be_one() -> None:
    assert "differ beyond" in mismatch_message(["same", "same"])
