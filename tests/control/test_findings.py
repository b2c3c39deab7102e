"""What `drumbeat check` concludes from two recordings, one kind of mistake a line."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from drumbeat.cluster.recording import StepRecord, VariableRecord
from drumbeat.control.batches import batch_findings
from drumbeat.control.differences import Run, rounding, step_difference
from drumbeat.control.findings import compare

START = (0.5, -0.25, 1.0)
GRADIENT = (0.3, 0.2, -0.1)
ROWS = tuple("abcdefgh")
RATE = 0.1


def variable(gradient=GRADIENT, before=START, after=None, name="dense/kernel") -> VariableRecord:
    after = after or tuple(w - RATE * g for w, g in zip(before, gradient, strict=True))
    return VariableRecord(
        name=name,
        shape=(len(before),),
        gradient=tuple(gradient),
        before=tuple(before),
        after=tuple(after),
        gradient_norm=math.hypot(*gradient),
        norm=math.hypot(*after),
        checksum=hash(tuple(after)),
    )


def record(rows=ROWS, loss=1.0, variables=None, **fields) -> StepRecord:
    known = {
        "together": True,
        "in_scope": True,
        "optimizer": "SGD",
        "learning_rate": RATE,
        "facts": (),
    }
    return StepRecord(
        loss=loss, rows=rows, variables=variables or (variable(),), **{**known, **fields}
    )


def alone(*steps: StepRecord, **fields) -> Run:
    return Run(workers=(steps or (record(), record()),), **fields)


def pair(*steps: tuple[StepRecord, StepRecord], **fields) -> Run:
    """Two workers; each step as a pair of their records."""
    first, second = zip(*steps, strict=True)
    return Run(workers=(first, second), **fields)


def halves(rows=ROWS, loss=1.0, **fields) -> tuple[StepRecord, StepRecord]:
    """One step of two workers that train as one would, but for `fields`."""
    middle = len(rows) // 2
    return (
        record(rows=rows[:middle], loss=loss / 2, **fields),
        record(rows=rows[middle:], loss=loss / 2, **fields),
    )


def times(factor: float) -> tuple[VariableRecord]:
    return (variable([factor * g for g in GRADIENT]),)


def kinds(one: Run, many: Run, again: Run | None = None) -> list[str]:
    return [finding.kind for finding in compare(one, many, again)]


RIGHT = halves()
NOISE = (variable([g * (1 + 1e-7) for g in GRADIENT]),)
OTHER = (variable((0.1, 0.3, 0.2)),)
ELSEWHERE = (variable(OTHER[0].gradient, before=(1.0, 2.0, 3.0)),)
PENALTY = (variable([g + 0.02 * w for g, w in zip(GRADIENT, START, strict=True)]),)
BATCH_NORM = (("batch statistics", "bn_1"),)
DROPOUT = (("random layer", "dropout"),)
RANDOM_OP = (("random op", "RandomUniform"),)
FILE = (("sharding", "FILE"),)
MOVED_TWICE = (variable(after=[w - 2 * RATE * g for w, g in zip(START, GRADIENT, strict=True)]),)


@pytest.mark.parametrize(
    ("expected", "step"),
    [
        ([], RIGHT),
        ([], halves(variables=NOISE)),
        ([], halves(facts=BATCH_NORM)),  # it is there, but nothing differs
        (["order"], halves(rows=ROWS[::2] + ROWS[1::2])),
        (["gradient_sum"], halves(loss=2.0, variables=times(2))),
        (["gradient_sum"], halves(loss=2.1, variables=times(2.1))),
        (["gradient_divided"], halves(loss=0.5, variables=times(0.5))),
        (["penalty"], halves(variables=PENALTY)),
        (["batch_statistics"], halves(variables=OTHER, facts=BATCH_NORM)),
        (["random"], halves(variables=OTHER, facts=DROPOUT)),
        (["random"], halves(variables=OTHER, facts=RANDOM_OP)),
        (["batch_statistics", "random"], halves(variables=OTHER, facts=BATCH_NORM + RANDOM_OP)),
        (["batch_statistics"], halves(variables=OTHER, facts=BATCH_NORM + DROPOUT)),
        (["gradient"], halves(variables=OTHER)),
        (["batch_grows"], halves(rows=(*ROWS, *"ijklmnop"), variables=OTHER)),
        (["batch_shrinks"], halves(rows=ROWS[:4], variables=OTHER)),
        (["batch_size"], halves(rows=ROWS[:6], variables=OTHER)),
        (["rows"], halves(rows=tuple("abcdefgx"), variables=OTHER)),
        (["sharding"], halves(rows=tuple("abcdefgx"), variables=OTHER, facts=FILE)),
        (["copies"], (record(loss=1.0, variables=times(2)),) * 2),
        (["copies"], (record(rows=ROWS[:4], variables=OTHER),) * 2),
        (["rows_not_seen"], (record(rows=None, loss=0.5),) * 2),
        (["not_in_scope"], (record(together=False, in_scope=False),) * 2),
        (["outside_run"], (record(together=False),) * 2),
        (["initial_weights"], halves(variables=(variable(before=(1.0, 2.0, 3.0)),))),
        (["learning_rate"], halves(learning_rate=2 * RATE, variables=MOVED_TWICE)),
        (["learning_rate", "gradient_sum"], halves(learning_rate=2 * RATE, variables=times(2))),
        (["update"], halves(variables=MOVED_TWICE)),
        (["other_model"], halves(variables=(variable(), variable(name="more")))),
        (["other_model"], halves(optimizer="Adam")),
        (["workers_apart"], (RIGHT[0], replace(RIGHT[1], variables=MOVED_TWICE))),
        (["workers_apart"], (replace(RIGHT[0], variables=OTHER), record(ROWS[4:], 0.5, ELSEWHERE))),
    ],
)
def test_each_difference_has_its_cause(expected, step):
    """In the first step, and in the second after one that is right."""
    assert kinds(alone(), pair(step, step)) == expected
    second = [kind for kind in expected if kind != "initial_weights"]
    assert kinds(alone(), pair(RIGHT, step)) == second


@pytest.mark.parametrize(
    ("expected", "one", "many"),
    [
        (["no_steps"], Run(workers=((),), ending="script"), Run(workers=((), ()), ending="script")),
        (["steps"], alone(record(), ending="script"), pair(RIGHT, RIGHT)),
        (["failed"], alone(), Run(workers=((), ()), ending="failed", text="ValueError")),
        (["failed"], alone(), pair(RIGHT, ending="failed", text="ValueError")),
        (["limit"], alone(), pair(RIGHT, ending="limit")),
        (["early_end"], alone(), pair(RIGHT, ending="script", ended=(False, True))),
        ([], alone(), pair(RIGHT, RIGHT, ending="script", ended=(True, True))),
        (["jit"], alone(record(facts=(("jit", "step"),))), pair(RIGHT)),
        (["local_sgd"], alone(), pair(halves(facts=(("local SGD", "8"),)))),
    ],
)
def test_how_the_runs_ended(expected, one, many):
    assert kinds(one, many) == expected


def test_a_second_model_that_starts_elsewhere_is_found():
    def critic(start: float) -> tuple[VariableRecord]:
        return (variable(before=(start, 0.0, 0.0), name="critic/kernel"),)

    one = alone(record(), record(variables=critic(1.0)))
    assert kinds(one, pair(RIGHT, halves(variables=critic(1.0)))) == []
    assert kinds(one, pair(RIGHT, halves(variables=critic(2.0)))) == ["initial_weights"]


def test_a_failed_run_on_one_worker_is_told_once():
    failed = Run(workers=((),), ending="failed", text="RuntimeError: no such data")
    (finding,) = compare(failed, failed)
    assert (finding.kind, finding.why) == ("failed", "RuntimeError: no such data")


@pytest.mark.parametrize("again", ["the same", "other"])
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("rows", {"rows": tuple("abcdefgx"), "variables": OTHER}),
        ("initial_weights", {"variables": (variable(before=(1.0, 2.0, 3.0)),)}),
        ("gradient", {"variables": OTHER}),
    ],
)
def test_chance_is_told_from_what_the_workers_do(kind, fields, again):
    """A second run on one worker that differs in the same way takes the blame off the workers."""
    step = halves(**fields)
    repeated = alone() if again == "the same" else alone(record(**fields), record(**fields))
    (finding,) = compare(alone(), pair(step, step), repeated)
    assert finding.kind == kind
    assert ("does not repeat itself" in finding.why) == (again == "other")


def test_numbers_in_words():
    (finding,) = compare(alone(), pair(halves(loss=2.0, variables=times(2)), RIGHT))
    assert finding.what == "The gradient on 2 workers is 2 times that of one, in step 1."
    (finding,) = compare(alone(), pair(RIGHT, halves(variables=OTHER)))
    assert "from step 2 on; before, they are equal" in finding.what
    rows = (*ROWS, *"ijklmnop")
    (finding,) = batch_findings(alone(), pair(halves(rows=rows), RIGHT))
    assert finding.what.startswith("The global batch has 8 rows on one worker and 16 on 2")


def test_losses_are_summed_over_the_workers():
    difference = step_difference(alone(), pair(RIGHT), 1)
    assert difference.losses == (1.0, 1.0)
    assert (difference.loss, difference.gradient, difference.weights) == (0, 0, 0)
    unknown = step_difference(alone(record(loss=None)), pair(RIGHT), 1)
    assert (unknown.losses, unknown.loss) == ((None, 1.0), None)


def test_a_loss_that_is_no_number_is_never_the_same_as_one_that_is():
    bad = (variable((math.nan,) * 3),)
    difference = step_difference(alone(), pair(halves(loss=math.nan, variables=bad)), 1)
    assert not difference.is_rounding
    assert difference.loss == math.inf
    both = step_difference(alone(record(variables=bad)), pair(halves(variables=bad)), 1)
    assert both.is_rounding


def test_a_gradient_that_is_all_rounding_does_not_count():
    """As that of a bias before a normalisation, of which Adam makes full steps."""

    def step(noise: float) -> tuple[VariableRecord, ...]:
        bias = variable(
            gradient=(noise, -noise, noise), before=(0.0, 0.0, 0.0), after=(0.1, 0.1, noise)
        )
        return (variable(), replace(bias, name="bias"))

    one, many = alone(record(variables=step(1e-9))), pair(halves(variables=step(-2e-9)))
    assert kinds(one, many) == []
    assert step_difference(one, many, 1).weights < 1e-6


@pytest.mark.parametrize(
    ("facts", "step", "expected"),
    [
        ((), 1, 2e-5),
        ((), 2, 1e-4),
        ((), 20, 5e-3),
        ((("half", "bfloat16"),), 1, 5e-2),
        ((("half", "float16"), ("tf32", "GPU")), 3, 1e-2),
    ],
)
def test_what_rounding_explains(facts, step, expected):
    run = pair(*[halves(facts=facts)] * 20)
    assert rounding(run, step) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("apart", "last_bits", "expected"),
    [
        (1e-3, 0.0, ["gradient"]),
        (1e-3, 1e-5, ["gradient"]),
        (1e-3, 5e-4, ["sensitive"]),
        (0.2, 0.2, ["gradient"]),  # so much is never called rounding
    ],
)
@pytest.mark.parametrize("step", [1, 2])
def test_rounding_is_told_by_what_the_last_bits_of_the_weights_make(
    step, apart, last_bits, expected
):
    """The second run on one worker is nudged after its first step."""
    differing, right = halves(variables=turned(apart)), halves()
    many = pair(differing, right) if step == 1 else pair(right, differing)
    nudged = record(variables=turned(last_bits))
    again = alone(record(), *((nudged,) if step == 1 else (record(), nudged)))
    found = compare(alone(record(), record(), record()), many, again)
    assert [finding.kind for finding in found] == expected
    assert all(finding.harmless == (finding.kind == "sensitive") for finding in found)


def turned(angle: float) -> tuple[VariableRecord]:
    """A gradient as long as usual that is `angle` of its length apart from it."""
    aside = (0.2, -0.3, 0.0)  # at a right angle to GRADIENT
    size = angle * math.hypot(*GRADIENT) / math.hypot(*aside)
    return (variable([g + size * a for g, a in zip(GRADIENT, aside, strict=True)]),)
