"""The same training on 1, 2 and 3 workers, scenario by scenario (see scenarios.py)."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SCRIPT = Path(__file__).parent / "scenarios.py"
SIZES = (1, 2, 3)
# Rounding only: the rows of a batch are summed in another order.
TOLERANCE = {"rtol": 1e-5, "atol": 1e-6}
LOOSER = {
    # Adam divides by the root of squared gradients, which magnifies rounding near zero.
    "embedding_sparse_gradients": {"rtol": 1e-4, "atol": 1e-5},
    # Rounding in half precision.
    "dropout_in_mixed_precision": {"rtol": 1e-3, "atol": 1e-3},
}


# What `make test` runs on three workers: where an odd number makes a difference that two
# don't show. `make test-slow` runs all the others.
ON_THREE = {
    "convolution_with_empty_slices",
    "custom_loop",
    "files_and_records_in_one_order",
    "fit_function_uneven_batches",
    "fit_numpy",
    "last_batch_of_one",
    "one_example",
    "policies",
    "predict_order",
    "strategy_interface",
}
SLOW_ON_THREE = pytest.param(3, marks=pytest.mark.slow)


def names_for(size: int) -> list[str]:
    """The scenarios that `make test` runs on `size` workers."""
    names = scenario_names()
    return names if size < 3 else [name for name in names if name in ON_THREE]


def on_sizes(*sizes: int) -> list[Any]:
    quick = [(name, size) for size in sizes for name in names_for(size)]
    others = [name for name in scenario_names() if name not in ON_THREE]
    return quick + [pytest.param(name, 3, marks=pytest.mark.slow) for name in others]


def scenario_names() -> list[str]:
    tree = ast.parse(SCRIPT.read_text())
    decorated = [
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(getattr(d, "id", "") == "scenario" for d in node.decorator_list)
    ]
    optimizers = next(
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "OPTIMIZERS"
    )
    return decorated + [f"optimizer_{key.value}" for key in optimizers.keys]


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what every scenario returned on every worker of every size."""
    given = os.environ.get("DRUMBEAT_TEST_OUTCOMES")
    if given:
        return Path(given)
    folder = tmp_path_factory.mktemp("outcomes")
    for size in SIZES:
        run_scenarios(names_for(size), size, folder)
    return folder


@pytest.fixture(scope="session")
def others_on_three(outcomes: Path) -> None:
    """Adds what `make test` doesn't run on three workers."""
    run_scenarios([name for name in scenario_names() if name not in ON_THREE], 3, outcomes)


@pytest.fixture(autouse=True)
def _what_slow_tests_need(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("slow"):
        request.getfixturevalue("others_on_three")


def run_scenarios(names: Sequence[str], size: int, folder: Path, *options: str) -> None:
    command = [sys.executable, "-m", "drumbeat", "run", "-n", str(size), *options]
    command += ["--run-dir", str(folder / f"run-{size}"), str(SCRIPT), str(folder), *names]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, check=False)
    if done.returncode:
        (folder / f"failed-{size}.txt").write_text(done.stdout[-4000:] + done.stderr[-4000:])


def load(folder: Path, name: str, size: int, rank: int) -> dict[str, np.ndarray]:
    trouble = folder / f"{name}.{size}.{rank}.txt"
    if trouble.exists():
        pytest.fail(f"{name} on worker {rank} of {size}:\n{trouble.read_text()}")
    result = folder / f"{name}.{size}.{rank}.npz"
    if not result.exists():
        failed = folder / f"failed-{size}.txt"
        pytest.fail(f"no result; the run said:\n{failed.read_text() if failed.exists() else ''}")
    with np.load(result) as arrays:
        return dict(arrays)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "size"), on_sizes(*SIZES))
def test_workers_agree_bit_by_bit(outcomes: Path, name: str, size: int) -> None:
    chief = load(outcomes, name, size, 0)
    for rank in range(1, size):
        other = load(outcomes, name, size, rank)
        assert other.keys() == chief.keys()
        for key, value in chief.items():
            if not key.startswith("own_"):
                np.testing.assert_array_equal(other[key], value, err_msg=f"{key}, worker {rank}")


@pytest.mark.timeout(900)
@pytest.mark.parametrize(("name", "size"), on_sizes(*SIZES[1:]))
def test_same_as_one_worker(outcomes: Path, name: str, size: int) -> None:
    assert_same(name, load(outcomes, name, 1, 0), load(outcomes, name, size, 0))


def assert_same(name: str, one: dict[str, np.ndarray], many: dict[str, np.ndarray]) -> None:
    for key, value in one.items():
        if key.startswith(("own_", "per_size_")):
            continue
        if value.dtype.kind == "f":
            tolerance = LOOSER.get(name, TOLERANCE)
            np.testing.assert_allclose(many[key], value, err_msg=key, **tolerance)
        else:
            np.testing.assert_array_equal(many[key], value, err_msg=key)


ON_DEVICES = (
    "batch_norm_synchronized",
    "convolution_with_empty_slices",
    "embedding_sparse_gradients",
    "last_batch_of_one",
    "layers_that_normalize",
    "loop_inside_a_function",
    "optimizer_accumulation_with_clipnorm",
    "predict_order",
)
NOT_ON_DEVICES = {
    # Each asks something of one of several workers, or looks into what its replica returned.
    "draws_are_those_of_one_worker",
    "dropout_differs",
    "explicit_spelling_is_the_same_strategy",
    "one_worker_stops",
    "one_worker_stops_within_an_epoch",
    "strategy_interface",
    # tf.data refuses a shard by SHARD_HINT where there is one worker.
    "policies",
}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("strategy", "names"),
    [
        ("mirrored", ON_DEVICES),
        *(
            pytest.param(
                strategy,
                [name for name in scenario_names() if name not in NOT_ON_DEVICES],
                marks=pytest.mark.slow,
                id=f"{strategy}-all",
            )
            for strategy in ("mirrored", "central-storage")
        ),
    ],
)
def test_three_devices_of_one_process_compute_the_same(
    outcomes: Path, tmp_path: Path, strategy: str, names: Sequence[str]
) -> None:
    devices = ("--strategy", strategy, "--devices-per-worker", "3")
    run_scenarios(names, 1, tmp_path, *devices)
    for name in names:
        assert_same(name, load(outcomes, name, 1, 0), load(tmp_path, name, 3, 0))


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_processes_with_two_devices_each_compute_the_same(
    outcomes: Path, tmp_path: Path
) -> None:
    names = [*ON_DEVICES, "fit_function_uneven_batches", "kinds_of_metrics"]
    run_scenarios(names, 2, tmp_path, "--devices-per-worker", "2", "--processes-per-node", "2")
    for name in names:
        first, second = (load(tmp_path, name, 4, rank) for rank in range(2))
        assert_same(name, load(outcomes, name, 1, 0), first)
        for key in first:
            if not key.startswith("own_"):
                np.testing.assert_array_equal(second[key], first[key], err_msg=key)


COMPILED = (
    "fit_dict_dataset_with_two_outputs",
    "last_batch_of_one",
    "sample_weights",
    "class_weights",
    "regularized",
    "optimizer_adam_clipnorm",
    "optimizer_accumulation",
    "optimizer_loss_scale",
    "embedding_sparse_gradients",
    "random_layers_train_as_on_one_worker",
    "batch_norm_is_alike_on_all_workers",
    "frozen_recompiled_and_fitted_again",
    "kinds_of_metrics",
    "mixed_precision",
)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_steps_compute_the_same(outcomes: Path, tmp_path: Path) -> None:
    run_scenarios(COMPILED, 2, tmp_path, "--jit", "on")
    for name in COMPILED:
        assert_same(name, load(outcomes, name, 2, 0), load(tmp_path, name, 2, 0))


def each_rank(outcomes: Path, name: str, size: int) -> list[dict[str, np.ndarray]]:
    return [load(outcomes, name, size, rank) for rank in range(size)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_every_scenario_ran(outcomes: Path, size: int) -> None:
    for rank in range(size):
        names = names_for(size)
        done = outcomes / f"done.{size}.{rank}.{len(names)}.json"
        assert sorted(json.loads(done.read_text())) == sorted(names)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, SLOW_ON_THREE])
def test_random_layers_differ_between_workers(outcomes: Path, size: int) -> None:
    ranks = each_rank(outcomes, "dropout_differs", size)
    for kind in ("own_mask", "own_mask_without_batch", "own_mask_eager", "own_raw"):
        assert len({r[kind].tobytes() for r in ranks}) == size, kind


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES[1:])
def test_uneven_workers_all_rows_same_number_of_batches(outcomes: Path, size: int) -> None:
    ranks = each_rank(outcomes, "fit_function_uneven_batches", size)
    assert [int(r["own_rows"][0]) for r in ranks] == [20 * (i + 1) for i in range(size)]
    assert {int(r["own_batches"][0]) for r in ranks} == {2 * size}
    for rank in ranks[1:]:
        np.testing.assert_array_equal(rank["own_weight_0"], ranks[0]["own_weight_0"])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_sharding_policies(outcomes: Path, size: int) -> None:
    ranks = each_rank(outcomes, "policies", size)
    ids = {key: [r[key].tolist() for r in ranks] for key in ranks[0]}

    def union(key: str) -> list[int]:
        return sorted(i for own in ids[key] for i in own)

    for key in ("own_ids_AUTO", "own_ids_DATA"):
        assert union(key) == list(range(25))
    assert union("own_ids_FILE") == union("own_ids_FILE_AUTO") == list(range(28))
    assert union("own_ids_ONE_FILE") == list(range(23))
    # OFF: each worker reads everything, in its order.
    assert ids["own_ids_OFF"] == [list(range(25))] * size
    if size > 1:
        assert ids["own_ids_HINT"] == [list(range(rank, 25, size)) for rank in range(size)]
        whole_files = [{i // 7 for i in own} for own in ids["own_ids_FILE"]]
        assert whole_files == [set(range(rank, 4, size)) for rank in range(size)]
        # AUTO takes slices of each global batch, also of files.
        share = -(-10 // size)
        assert ids["own_ids_FILE_AUTO"][0][:share] == list(range(share))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_ordered_data_is_read_once(outcomes: Path, size: int) -> None:
    ranks = each_rank(outcomes, "files_and_records_in_one_order", size)
    # Two epochs: each row was loaded twice, by all workers together.
    assert sorted(np.concatenate([r["own_loaded"] for r in ranks])) == sorted([*range(103)] * 2)
    shares = [len(r["own_loaded"]) / 206 for r in ranks]
    assert shares == pytest.approx([1 / size] * size, abs=0.03)
    assert ranks[0]["rows"].tolist() == [32, 32, 32, 7] * 2
    first, second = ranks[0]["ids"].reshape(2, 103)
    assert sorted(first) == sorted(second) == list(range(103))
    assert first.tolist() != second.tolist()
    assert ranks[0]["epoch"] == 7


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES[:2])
def test_each_row_is_mapped_by_one_worker_only(outcomes: Path, size: int) -> None:
    ranks = each_rank(outcomes, "maps_run_for_own_rows", size)
    mapped = [rank["own_mapped"] for rank in ranks]
    assert sorted(np.concatenate(mapped)) == sorted([*range(103)] * 2)
    assert [len(own) for own in mapped] == ([206] if size == 1 else [104, 102])
    # Said of the validation data, and once however often it is gone through.
    why = [] if size == 1 else ["filter() looks at what map() returns"]
    assert [rank["own_obstacles"].tolist() for rank in ranks] == [why] * size


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES)
def test_strategy_interface(outcomes: Path, size: int) -> None:
    numbers = np.arange(1, size + 1, dtype=np.float64)
    for rank, result in enumerate(each_rank(outcomes, "strategy_interface", size)):
        assert result["per_size_sum"] == numbers.sum()
        assert result["per_size_mean"] == pytest.approx(numbers.mean())
        rows = np.concatenate([np.full(int(n), n) for n in numbers])
        assert result["per_size_mean_of_rows"] == pytest.approx(rows.mean(), rel=1e-6)
        np.testing.assert_array_equal(result["per_size_gather0"][:, 0], rows)
        np.testing.assert_array_equal(result["per_size_gather1"][1], rows)
        np.testing.assert_allclose(result["per_size_reduced"], numbers.sum() * np.array([1, 2]))
        # d/dv of sum over workers of (sum_j j v)^2 and of each worker's own part.
        factor = 2 * size * numbers.sum() * (rank + 1)
        np.testing.assert_allclose(result["own_d_reduced"], factor * np.array([1, 2]))
        gathered = numbers[:, None] * np.array([1, 2])
        np.testing.assert_allclose(result["per_size_gathered"], gathered)
        own = 2 * size * (rank + 1) ** 2
        np.testing.assert_allclose(result["own_d_gathered"], own * np.array([1, 2]))
        assert result["own_values"].tolist() == [rank]
        assert result["own_task"].tolist() == [rank]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2, SLOW_ON_THREE])
def test_saved_files_are_complete_and_alone(outcomes: Path, size: int) -> None:
    saved = load(outcomes, "everyone_saves_to_one_path", size, 0)
    assert saved["files"].tolist() == ["exported", "model.keras", "model.weights.h5"]
    assert load(outcomes, "others_save_to_a_temporary_folder", size, 0)["files"].tolist() == [
        "model.keras"
    ]
    shared = load(outcomes, "callbacks_share_their_paths", size, 0)
    assert shared["files"].tolist() == ["1.keras", "2.keras", "board"]
    assert shared["lines"] == 3
    assert shared["boards"] == 2


# What takes part in each kind of collective: few, as TensorFlow's are slow on CPUs.
OVER_TENSORFLOW = (
    "fit_numpy_batch_shuffle_and_split",
    "fit_function_of_workers_own_rows",
    "embedding_sparse_gradients",
    "masked_sequence_loss",
    "batch_norm_synchronized",
    "predict_order",
    "metric_results_in_a_custom_loop",
    "loop_inside_a_function",
)


@pytest.fixture(scope="session")
def tensorflow_outcomes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what some scenarios returned on 2 workers with TensorFlow's collectives."""
    folder = tmp_path_factory.mktemp("tensorflow")
    command = [sys.executable, "-m", "drumbeat", "run", "-n", "2", "--collectives", "tensorflow"]
    command += ["--run-dir", str(folder / "run"), str(SCRIPT), str(folder), *OVER_TENSORFLOW]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    if done.returncode:
        (folder / "failed-2.txt").write_text(done.stdout[-4000:] + done.stderr[-4000:])
    return folder


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", OVER_TENSORFLOW)
def test_tensorflow_collectives_give_the_same(
    outcomes: Path, tensorflow_outcomes: Path, name: str
) -> None:
    test_workers_agree_bit_by_bit(tensorflow_outcomes, name, 2)
    one, two = load(outcomes, name, 1, 0), load(tensorflow_outcomes, name, 2, 0)
    assert_same(name, one, two)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 2, SLOW_ON_THREE])
def test_what_scenarios_mean_to_show(outcomes: Path, size: int) -> None:
    assert load(outcomes, "one_worker_stops", size, 0)["epochs"] == 2
    assert load(outcomes, "early_stopping", size, 0)["epochs"] < 30
    assert load(outcomes, "clip_after_the_sum", size, 0)["weight_0"] == pytest.approx(-0.25)
    skipped = load(outcomes, "overflow_skips_the_step_everywhere", size, 0)
    assert skipped["unchanged"].all()
    assert load(outcomes, "backup_restores_every_worker", size, 0)["epochs"].tolist() == [2, 3]
    refused = load(outcomes, "data_that_cannot_be_fitted", size, 0)["unbatched"]
    assert refused == "ValueError"
    assert load(outcomes, "explicit_spelling_is_the_same_strategy", size, 0)["same"]
    mine = load(outcomes, "custom_train_step", size, 0)["per_size_mine"]
    np.testing.assert_allclose(mine, (size - 1) / 2)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", SIZES[:2])
def test_workers_stop_after_the_step_in_which_one_does(outcomes: Path, size: int) -> None:
    stopped = load(outcomes, "one_worker_stops_within_an_epoch", size, 0)
    # In two epochs of 9 steps; the last case has one more for the list of callbacks, which
    # has the user's and a History again.
    assert stopped["steps"].tolist() == [3, 3, 1, 10, 4, 5, 3, 2, 18 + 2]
    assert stopped["batches"].tolist() == [0, 0, 1, 0, 1, 2, 3, 4]
    assert len(stopped["predictions"]) == 40
    ended = load(outcomes, "not_a_number_on_one_worker", size, 0)
    assert ended["steps"] == 4
    assert ended["finite"].tolist() == [False]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [2, SLOW_ON_THREE])
def test_what_one_worker_changes_is_mended_and_told(outcomes: Path, size: int) -> None:
    chief, *others = each_rank(outcomes, "one_worker_changes_its_state", size)
    rate, moments, weights = (str(text) for text in chief["own_logged"])
    assert rate.startswith("At the end of epoch 1, optimizer variables differed between workers: ")
    assert "adam/learning_rate (by up to 49 of its largest value)" in rate
    assert "on worker 1. All workers go on with the chief's." in rate
    assert "epoch 2" in moments
    assert weights.startswith("At the end of fit, weights differed between workers: sequential")
    assert f" and 3 more, on worker {size - 1}." in weights
    assert all(not len(other["own_logged"]) for other in others)


@pytest.mark.timeout(900)
def test_a_step_is_one_collective_unless_a_callback_may_stop_it(outcomes: Path) -> None:
    counts = load(outcomes, "collectives_of_a_fit", 2, 0)
    assert counts["per_size_ten_steps"] == counts["per_size_nine_steps"] + 1
    assert counts["per_size_ten_looked_at"] == counts["per_size_ten_steps"]
    assert counts["per_size_ten_watched"] == counts["per_size_ten_steps"] + 10
