"""What `drumbeat port` does for each entry of `drumbeat.legacy_names`, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from drumbeat import legacy_names as names


@dataclass(frozen=True)
class Recipe:
    """What is done about one old name.

    Attributes:
        does: What is written in its place; "" for nothing.
        leaves: Where that is left to a human, and why; "" if nowhere.
    """

    does: str
    leaves: str = ""


_RENAMES = Recipe("renames it, in imports too")
_REFUSED = Recipe("", "it is used")
_LEAVES_OUT = Recipe("leaves it out")
_UNSEEN_PATH = "the end of the path can't be seen, as of a parameter"
_UNSEEN_WRITER = "nothing in the script writes what is read"


def recipes() -> Mapping[str, Recipe]:
    """By `Old.name`."""
    moved = (old.name for old in names.table() if old.name.startswith("keras."))
    dropped = (
        names.dropped(function, argument).name
        for function, (arguments, _) in names.DROPPED.items()
        for argument in arguments
    )
    return {
        **dict.fromkeys(moved, _RENAMES),
        **dict.fromkeys(dropped, _LEAVES_OUT),
        **dict.fromkeys([names.refused(name).name for name in names.REFUSED], _REFUSED),
        **{names.renamed(name).name: recipe for name, recipe in _METHODS.items()},
        **{old.name: recipe for old, recipe in _OTHERS},
    }


_METHODS = {
    "Metric.reset_states": Recipe("renames it, also where a metric of the script's own defines it"),
    "Model.fit_generator": Recipe(
        "renames it, and gives arguments by position their names", "arguments are given as *args"
    ),
    "Model.evaluate_generator": Recipe("as fit_generator", "arguments are given as *args"),
    "Model.predict_generator": Recipe("as fit_generator", "arguments are given as *args"),
    "Optimizer.lr": Recipe("renames it"),
    "Strategy.experimental_run_v2": Recipe("renames it"),
}
_OTHERS = (
    (
        names.SYNC_BATCH_NORMALIZATION,
        Recipe("writes BatchNormalization(synchronized=True)"),
    ),
    (names.DATASET_CREATOR, Recipe("writes the function itself")),
    (names.MULTI_GPU_MODEL, Recipe("writes the model itself")),
    (
        names.GRAPH_REWRITE,
        Recipe(
            "turns on the rewrite of graphs and writes LossScaleOptimizer(optimizer): the same "
            "numbers, where a policy would give others",
            "it is in the head of a block",
        ),
    ),
    (
        names.MODEL_RESET_STATES,
        Recipe("writes a loop over the model's layers", "its result is used"),
    ),
    (
        names.MINIMIZE,
        Recipe("writes the tape and apply_gradients", "its result is used, or grad_loss is given"),
    ),
    (
        names.OPTIMIZER_WEIGHTS,
        Recipe("writes optimizer.variables, and for get_weights a list of their numpy()"),
    ),
    (
        names.AGGREGATE,
        Recipe(
            "leaves out experimental_aggregate_gradients=True",
            "it is False: the script sums the gradients itself, which has to go, too",
        ),
    ),
    (
        names.PREDICT_CLASSES,
        Recipe(
            "writes argmax or > 0.5, by the number of units of the last Dense layer",
            "that number can't be seen",
        ),
    ),
    (names.PREDICT_PROBA, Recipe("writes predict")),
    (names.LAYER_SHAPES, Recipe("writes layer.input.shape, layer.output.shape")),
    (names.SET_VALUE, Recipe("writes variable.assign(value)")),
    (names.NUMPY_DATASET, Recipe("writes tf.data.Dataset.from_tensor_slices")),
    (names.LR, Recipe("renames it")),
    (names.DECAY, Recipe("writes the schedule; leaves out decay=0")),
    (
        names.INPUT_SHAPE,
        Recipe(
            "writes (n,), or (int(n),) for text, where n is certain to be a number: a literal, "
            "len(x), x.shape[1], an option of argparse",
            "that can't be seen, and the name doesn't speak of a shape",
        ),
    ),
    (names.REDUCTION_AUTO, Recipe('writes "sum_over_batch_size"; text for other Reductions')),
    (names.EMBEDDING_WEIGHTS, Recipe("writes embeddings_initializer=Constant(table)")),
    (names.STEPS_PER_EXECUTION, Recipe("renames it")),
    (
        names.PERIOD,
        Recipe("leaves out period=1; else adds a class EveryNthEpoch to the script, and uses it"),
    ),
    (
        names.CHECKPOINT_PATH,
        Recipe(
            "adds .keras or .weights.h5, there and where the script reads it",
            f"{_UNSEEN_PATH}, or save_weights_only isn't a literal",
        ),
    ),
    (
        names.SAVE_FOLDER,
        Recipe(
            'writes model.save("folder.keras"), and model.export("folder") unless only the '
            "script's own load_model reads it; makes the folders around it",
            _UNSEEN_PATH,
        ),
    ),
    (names.LOAD_FOLDER, Recipe("adds .keras where the script saves it", _UNSEEN_WRITER)),
    (
        names.SAVE_WEIGHTS,
        Recipe("adds .weights.h5, in place of .h5; makes the folders around it", _UNSEEN_PATH),
    ),
    (
        names.LOAD_WEIGHTS,
        Recipe(
            "adds .weights.h5 where the script saves them; for tf.train.latest_checkpoint adds a "
            "function newest_weights to the script",
            _UNSEEN_WRITER,
        ),
    ),
    (
        names.GET_FILE,
        Recipe(
            "get_file: writes cache_dir= and cache_subdir=",
            "it is load_data, which takes no folder",
        ),
    ),
    (
        names.NOTEBOOK,
        Recipe(
            "writes timed cells as they are and files with pathlib; commands become comments",
            "a command's output is used",
        ),
    ),
)
