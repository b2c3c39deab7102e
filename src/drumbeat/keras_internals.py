"""Every touch of Keras's internals: what drumbeat replaces in `keras.src`, and how.

Supported: Keras 3.12 to 3.15. Each touch names the function, the parameters it
is expected to have and what for it is replaced; `wrap` refuses a Keras in which
they differ, and tests/test_keras_internals.py says which one moved.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

# The one metric that stands for those given to compile(), and has no public name.
from keras.src.trainers.compile_utils import CompileMetrics as CompileMetrics

# How it cuts arrays into batches.
from keras.src.trainers.data_adapters.array_data_adapter import ArrayDataAdapter

from drumbeat.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Touch:
    """One function of Keras that is replaced, or called.

    Attributes:
        module: Module path.
        name: `function` or `Class.method` in it.
        parameters: Names of its leading parameters, without `self`.
        why: What for it is replaced.
    """

    module: str
    name: str
    parameters: tuple[str, ...]
    why: str

    def owner(self) -> Any:
        """The module or class that holds the function."""
        owner = importlib.import_module(self.module)
        for part in self.name.split(".")[:-1]:
            owner = getattr(owner, part)
        return owner

    @property
    def attribute(self) -> str:
        """The function's name within its owner."""
        return self.name.rpartition(".")[2]


_TRAINER = "keras.src.backend.tensorflow.trainer"
_DATA = ("x", "y", "batch_size")
MODEL_STRATEGY = "_distribute_strategy"
"""The attribute of a model that has its strategy, or None."""
_RANDOM = "keras.src.backend.tensorflow.random"
_DRAWS = "a worker draws for its rows what one worker would draw for them"

SCALE_LOSS = Touch(
    module="keras.src.losses.loss",
    name="scale_loss_for_distribution",
    parameters=("value",),
    why="a mean over the local rows counts local rows / global rows, not 1 / workers",
)
UNSCALE_LOSS = Touch(
    module="keras.src.losses.loss",
    name="unscale_loss_for_distribution",
    parameters=("value",),
    why="undoes scale_loss_for_distribution for the loss that is shown",
)
REDUCE_VALUES = Touch(
    module="keras.src.losses.loss",
    name="reduce_values",
    parameters=("values", "sample_weight", "reduction"),
    why="a mean by sample weight divides by the weight of the global batch",
)
APPLY_MASK = Touch(
    module="keras.src.losses.loss",
    name="apply_mask",
    parameters=("sample_weight", "mask", "dtype", "reduction"),
    why="a masked mean divides by how many entries pass in the global batch",
)
LOSS = Touch(
    module="keras.src.losses.loss",
    name="Loss.__call__",
    parameters=("y_true", "y_pred", "sample_weight"),
    why="a loss that takes the rows of a batch together gets those of the global batch",
)
MEAN_OF_FUNCTION = Touch(
    module="keras.src.metrics.reduction_metrics",
    name="MeanMetricWrapper.update_state",
    parameters=("y_true", "y_pred", "sample_weight"),
    why="a metric that takes the rows of a batch together gets those of the global batch",
)
ADDED_LOSS = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer._aggregate_additional_loss",
    parameters=("loss",),
    why="what a layer adds to the loss may be a sum over the rows, not a mean",
)
OPTIMIZER_APPLY = Touch(
    module="keras.src.optimizers.base_optimizer",
    name="BaseOptimizer.apply",
    parameters=("grads", "trainable_variables"),
    why="gradients are summed over workers before clipping and accumulation",
)
LOSS_SCALE_APPLY = Touch(
    module="keras.src.optimizers.loss_scale_optimizer",
    name="LossScaleOptimizer.apply",
    parameters=("grads", "trainable_variables"),
    why="gradients are summed over workers before the test for non-finite ones",
)
OPTIMIZER_INIT = Touch(
    module="keras.src.optimizers.base_optimizer",
    name="BaseOptimizer.__init__",
    parameters=("learning_rate",),
    why="an apply of a script's own class gets the summed gradients too",
)
OPTIMIZER_ALL_REDUCE = Touch(
    module="keras.src.backend.tensorflow.optimizer",
    name="TFOptimizer._all_reduce_sum_gradients",
    parameters=("grads_and_vars",),
    why="the gradients have been summed already",
)
DRAW_UNIFORM = Touch(
    module=_RANDOM,
    name="uniform",
    parameters=("shape", "minval", "maxval", "dtype", "seed"),
    why=_DRAWS,
)
DRAW_NORMAL = Touch(
    module=_RANDOM,
    name="normal",
    parameters=("shape", "mean", "stddev", "dtype", "seed"),
    why=_DRAWS,
)
DRAW_TRUNCATED_NORMAL = Touch(
    module=_RANDOM,
    name="truncated_normal",
    parameters=("shape", "mean", "stddev", "dtype", "seed"),
    why=_DRAWS,
)
DRAW_RANDINT = Touch(
    module=_RANDOM,
    name="randint",
    parameters=("shape", "minval", "maxval", "dtype", "seed"),
    why=_DRAWS,
)
DRAW_CATEGORICAL = Touch(
    module=_RANDOM,
    name="categorical",
    parameters=("logits", "num_samples", "dtype", "seed"),
    why=_DRAWS,
)
DRAW_GAMMA = Touch(
    module=_RANDOM,
    name="gamma",
    parameters=("shape", "alpha", "dtype", "seed"),
    why=_DRAWS,
)
DRAW_BETA = Touch(
    module=_RANDOM,
    name="beta",
    parameters=("shape", "alpha", "beta", "dtype", "seed"),
    why=_DRAWS,
)
DRAW_BINOMIAL = Touch(
    module=_RANDOM,
    name="binomial",
    parameters=("shape", "counts", "probabilities", "dtype", "seed"),
    why=_DRAWS,
)
DRAW_DROPOUT = Touch(
    module=_RANDOM,
    name="dropout",
    parameters=("inputs", "rate", "noise_shape", "seed"),
    why=_DRAWS,
)
DRAW_SEED = Touch(
    module="keras.src.random.seed_generator",
    name="draw_seed",
    parameters=("seed",),
    why="called, not replaced: a draw takes its seed, and moves the generator on, as Keras does",
)
CAST_SEED = Touch(
    module=_RANDOM,
    name="_cast_seed",
    parameters=("seed",),
    why="called, not replaced: Keras's seeds as TensorFlow takes them",
)
STEP_FUNCTION = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer._make_function",
    parameters=("step_function",),
    why="a worker without rows runs the step on a stand-in row",
)
PREDICT_STEP = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer.predict_step",
    parameters=("data",),
    why="a worker without rows predicts for a stand-in row and leaves it out",
)
VARIABLE_ASSIGN = Touch(
    module="keras.src.backend.tensorflow.core",
    name="Variable._direct_assign",
    parameters=("value",),
    why="a stand-in row doesn't count in metrics",
)
ADD_LOSS = Touch(
    module="keras.src.layers.layer",
    name="Layer.add_loss",
    parameters=("loss",),
    why="each replica of a process reads what its own pass through the layers has added",
)
BATCH_MOMENTS = Touch(
    module="keras.src.layers.normalization.batch_normalization",
    name="BatchNormalization._moments",
    parameters=("inputs", "mask"),
    why="a stand-in row doesn't count in moving statistics",
)
COMPILE = Touch(
    module="keras.src.trainers.trainer",
    name="Trainer.compile",
    parameters=("optimizer", "loss", "loss_weights", "metrics"),
    why="where there is a GPU, Keras's own choice of XLA isn't told from the user's later",
)
FIT = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer.fit",
    parameters=(*_DATA, "epochs", "verbose", "callbacks"),
    why="workers start a fit with the same state and stop together",
)
EVALUATE = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer.evaluate",
    parameters=(*_DATA, "verbose"),
    why="workers read the data in one order",
)
PREDICT = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer.predict",
    parameters=("x", "batch_size", "verbose", "steps", "callbacks"),
    why="every worker returns the predictions for all rows",
)
TRAIN_ON_BATCH = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer.train_on_batch",
    parameters=("x", "y", "sample_weight"),
    why="each worker takes its rows of the batch",
)
TRAIN_STEP = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer.train_step",
    parameters=("data",),
    why="parts of it are compiled by XLA; in it only the compiled loss takes its part of a mean",
)
TEST_STEP = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer.test_step",
    parameters=("data",),
    why="in Keras's own steps only the compiled loss takes a worker's part of a mean",
)
TEST_ON_BATCH = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer.test_on_batch",
    parameters=("x", "y", "sample_weight"),
    why="each worker takes its rows of the batch",
)
SYMBOLIC_BUILD = Touch(
    module=_TRAINER,
    name="TensorFlowTrainer._maybe_symbolic_build",
    parameters=("iterator", "data_batch"),
    why="it takes a batch from the data to learn its shape; a generator loses that batch",
)
EPOCH_STEPS = Touch(
    module="keras.src.trainers.epoch_iterator",
    name="EpochIterator._enumerate_iterator",
    parameters=(),
    why="control comes back here after each step, and here an epoch goes on in its middle",
)
_ON_PS = "with parameter servers, "
VARIABLE_INITIALIZE = Touch(
    module="keras.src.backend.tensorflow.core",
    name="Variable._initialize",
    parameters=("value",),
    why=_ON_PS + "a variable may be in several parts, which Keras's class knows nothing of",
)
VARIABLE_ASSIGN_ADD = Touch(
    module="keras.src.backend.common.variables",
    name="Variable.assign_add",
    parameters=("value",),
    why=_ON_PS + "two workers that add at the same time both count",
)
VARIABLE_ASSIGN_SUB = Touch(
    module="keras.src.backend.common.variables",
    name="Variable.assign_sub",
    parameters=("value",),
    why=_ON_PS + "two workers that subtract at the same time both count",
)
VARIABLE_KEY = Touch(
    module="keras.src.backend.tensorflow.optimizer",
    name="TFOptimizer._var_key",
    parameters=("variable",),
    why=_ON_PS + "an update of a part of a variable has the slots of the whole",
)
TAKE = Touch(
    module="keras.src.backend.tensorflow.numpy",
    name="take",
    parameters=("x", "indices", "axis"),
    why=_ON_PS + "rows are looked up where the table is, which doesn't travel",
)
_CALLBACKS = "keras.src.callbacks.callback_list"
_WHICH_IS_SLOW = "a callback that takes much of the time is named"
CALLBACKS_EPOCH_BEGIN = Touch(
    module=_CALLBACKS,
    name="CallbackList.on_epoch_begin",
    parameters=("epoch", "logs"),
    why=_WHICH_IS_SLOW,
)
CALLBACKS_EPOCH_END = Touch(
    module=_CALLBACKS,
    name="CallbackList.on_epoch_end",
    parameters=("epoch", "logs"),
    why=_WHICH_IS_SLOW,
)
CALLBACKS_BATCH_BEGIN = Touch(
    module=_CALLBACKS,
    name="CallbackList.on_train_batch_begin",
    parameters=("batch", "logs"),
    why=_WHICH_IS_SLOW,
)
CALLBACKS_BATCH_END = Touch(
    module=_CALLBACKS,
    name="CallbackList.on_train_batch_end",
    parameters=("batch", "logs"),
    why=_WHICH_IS_SLOW,
)
COMPILED_LOSS = Touch(
    module="keras.src.trainers.compile_utils",
    name="CompileLoss.call",
    parameters=("y_true", "y_pred", "sample_weight"),
    why="what compile() was given takes its part of a mean, and so does its mean over an epoch",
)
MEAN_UPDATE = Touch(
    module="keras.src.metrics.reduction_metrics",
    name="Mean.update_state",
    parameters=("values", "sample_weight"),
    why="the mean loss of each output counts a worker's part of a batch by its rows",
)
METRIC_INIT = Touch(
    module="keras.src.metrics.metric",
    name="Metric.__init__",
    parameters=("dtype", "name"),
    why="a metric's result() outside of the strategy's run is that of all workers",
)
METRIC_VARIABLE = Touch(
    module="keras.src.metrics.metric",
    name="Metric.add_variable",
    parameters=("shape", "initializer"),
    why="what all workers have counted is added to what a variable starts from once",
)
IS_DATASET = Touch(
    module="keras.src.trainers.data_adapters",
    name="is_tf_dataset",
    parameters=("x",),
    why="it knows TensorFlow's distributed datasets by their module, so not ours",
)
EPOCH_RESULT = Touch(
    module="keras.src.trainers.trainer",
    name="Trainer._get_metrics_result_or_logs",
    parameters=("logs",),
    why="metrics at the end of an epoch or evaluation are those of all workers",
)
REDUCE_PER_REPLICA = Touch(
    module=_TRAINER,
    name="reduce_per_replica",
    parameters=("values", "strategy", "reduction"),
    why="what a step logs is the mean of virtual shards, which must not round for each worker",
)
CHECKPOINT_SAVE = Touch(
    module="keras.src.callbacks.model_checkpoint",
    name="ModelCheckpoint._save_model",
    parameters=("epoch", "batch", "logs"),
    why="only the chief writes",
)
BACKUP_SAVE = Touch(
    module="keras.src.callbacks.backup_and_restore",
    name="BackupAndRestore._save_model",
    parameters=(),
    why="only the chief writes",
)
BACKUP_LOAD = Touch(
    module="keras.src.callbacks.backup_and_restore",
    name="BackupAndRestore._load_model",
    parameters=(),
    why="the chief reads; the others get its state when the fit begins",
)
BACKUP_END = Touch(
    module="keras.src.callbacks.backup_and_restore",
    name="BackupAndRestore.on_train_end",
    parameters=("logs",),
    why="only the chief deletes the backup",
)
CSV_BEGIN = Touch(
    module="keras.src.callbacks.csv_logger",
    name="CSVLogger.on_train_begin",
    parameters=("logs",),
    why="workers other than the chief log into their own folder",
)
TENSORBOARD_MODEL = Touch(
    module="keras.src.callbacks.tensorboard",
    name="TensorBoard.set_model",
    parameters=("model",),
    why="workers other than the chief log into their own folder",
)
DOWNLOAD = Touch(
    module="keras.src.utils.file_utils",
    name="urlretrieve",
    parameters=("url", "filename"),
    why="workers that download one data set at the same time don't see each other's half files",
)
SAVE_MODEL = Touch(
    module="keras.src.saving.saving_lib",
    name="save_model",
    parameters=("model", "filepath", "weights_format", "zipped"),
    why="a file appears complete or not at all, whichever workers save to it",
)
SAVE_WEIGHTS = Touch(
    module="keras.src.saving.saving_lib",
    name="save_weights_only",
    parameters=("model", "filepath"),
    why="a file appears complete or not at all, whichever workers save to it",
)
SAVE_H5 = Touch(
    module="keras.src.legacy.saving.legacy_h5_format",
    name="save_model_to_hdf5",
    parameters=("model", "filepath"),
    why="a file appears complete or not at all, whichever workers save to it",
)
EXPORT = Touch(
    module="keras.src.export",
    name="export_saved_model",
    parameters=("model", "filepath"),
    why="a folder appears complete or not at all, whichever workers export to it",
)

TOUCHES = tuple(value for value in list(globals().values()) if isinstance(value, Touch))


def problem_with(touch: Touch) -> str | None:
    """What the installed Keras lacks for `touch`, or None when it fits."""
    try:
        function = getattr(touch.owner(), touch.attribute)
    except (ImportError, AttributeError):
        return f"{touch.module}.{touch.name} doesn't exist"
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    if tuple(names[: len(touch.parameters)]) != touch.parameters:
        return f"{touch.module}.{touch.name} takes {names}, expected {list(touch.parameters)} first"
    return None


def wrap(touch: Touch, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the function of `touch` by `make(original)`.

    Raises:
        ConfigError: The installed Keras doesn't have the function as expected.
    """
    problem = problem_with(touch)
    if problem:
        raise ConfigError(
            f"Keras {keras.__version__} isn't supported: {problem}. Expected Keras 3.12 to 3.15."
        )
    replace(touch, make)


def replace(touch: Touch, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """As `wrap`, for a touch that is known to fit."""
    owner = touch.owner()
    original = getattr(owner, touch.attribute)
    replacement = functools.wraps(original)(make(original))
    setattr(owner, touch.attribute, replacement)


_REPLACED = "_drumbeat_replaced"


def replace_methods(classes: Iterable[type], wrappers: Mapping[str, Callable[..., Any]]) -> None:
    """Replace those methods that `classes` themselves have, once, by `wrappers[name](original)`.

    For methods that classes of scripts bring along.
    """
    for each in classes:
        for name, wrapper in wrappers.items():
            function = each.__dict__.get(name)
            if function is not None and not hasattr(function, _REPLACED):
                replacement = functools.wraps(function)(wrapper(function))
                setattr(replacement, _REPLACED, True)
                setattr(each, name, replacement)


def borrow(touch: Touch) -> Callable[..., Any]:
    """The function of `touch`, to be called as it is."""
    return getattr(touch.owner(), touch.attribute)


def is_keras_own(function: Any) -> bool:
    """Whether a function or a class is one of Keras 3's or Keras 2's."""
    return str(getattr(function, "__module__", "")).startswith(("keras.src.", "tf_keras.src."))


def thread_state() -> Callable[[], None]:
    """What another thread has to call to see Keras's scopes and dtype policy as the caller does."""
    state = importlib.import_module("keras.src.backend.common.global_state")
    own = dict(vars(state.GLOBAL_STATE_TRACKER))

    def adopt() -> None:
        copies = {k: list(v) if isinstance(v, list) else v for k, v in own.items()}
        vars(state.GLOBAL_STATE_TRACKER).update(copies)

    return adopt


def global_seed_generator() -> Any | None:
    """The generator of `keras.random` where no seed is given; None before its first use."""
    state = importlib.import_module("keras.src.backend.common.global_state")
    return state.get_global_attribute("global_seed_generator")


def use_global_seed_generator() -> Any:
    """That generator, made if there is none yet."""
    return importlib.import_module("keras.src.random.seed_generator").global_seed_generator()


def trained_by(optimizer: keras.optimizers.Optimizer) -> list[Any]:
    """The variables that a built `optimizer` updates."""
    return list(optimizer._trainable_variables)


def inner_metrics(metric: keras.Metric) -> list[keras.Metric]:
    """The metrics that `metric` holds, such as the one that stands for all given to compile()."""
    held = metric.metrics if isinstance(metric, CompileMetrics) else metric._metrics
    return [inner for inner in held if inner is not None]


def given_metrics(model: Any) -> list[keras.Metric]:
    """The metric objects that compile() was given."""
    given = model._compile_metrics
    users = [] if given is None else [given._user_metrics, given._user_weighted_metrics]
    return [each for each in keras.tree.flatten(users) if isinstance(each, keras.Metric)]


def metrics_of(model: Any) -> Iterator[keras.Metric]:
    """All metrics of a model: those given to compile(), also before they are built, and its own."""
    waiting = [*given_metrics(model), *model.metrics]
    while waiting:
        if isinstance(metric := waiting.pop(), keras.Metric):
            waiting += inner_metrics(metric)
            yield metric


def train_writer(board: keras.callbacks.TensorBoard) -> Any:
    """The summary writer that a `board` whose fit has begun has for training.

    TensorBoard reads one file of a folder at a time: what is shown beside Keras's own numbers
    has to be in theirs.
    """
    return board._train_writer


def least_rows_of_arrays(epochs: Any) -> int:
    """The rows of the smallest batch that an epoch iterator makes of arrays; 0 for other data."""
    adapter = epochs.data_adapter
    if not isinstance(adapter, ArrayDataAdapter):
        return 0
    return int(adapter.partial_batch_size or adapter.batch_size)


def usual_rows_of_arrays(epochs: Any) -> int:
    """The rows of most batches that an epoch iterator makes of arrays; 0 for other data."""
    adapter = epochs.data_adapter
    return int(adapter.batch_size) if isinstance(adapter, ArrayDataAdapter) else 0


def has_keras_train_step(model: Any) -> bool:
    """Whether `model` trains by Keras's own `train_step`."""
    return type(model).train_step is borrow(TRAIN_STEP) and "train_step" not in vars(model)


def all_layers(model: Any) -> list[Any]:
    """`model`, of either Keras, and all layers in it, in Keras's order."""
    return list(model._flatten_layers())


def plain_variables(layers: Iterable[Any]) -> dict[str, tf.Variable]:
    """By paths, what `layers` hold of TensorFlow's own variables, of which Keras 3 doesn't know."""
    return {
        f"{getattr(layer, 'path', None) or layer.name}/{name}": held
        for layer in layers
        for name, held in vars(layer).items()
        if isinstance(held, tf.Variable)
    }


def added_by(loss: Any, layers: Sequence[Any]) -> Any | None:
    """Which of `layers` has added `loss`, None where it is of weights alone."""
    return next((each for each in layers if any(loss is own for own in each._losses)), None)


def supports_jit(model: Any) -> bool:
    """Whether all layers of `model` say that XLA can compile them."""
    return all(layer.supports_jit for layer in all_layers(model))


def layer_names(model: Any) -> list[str]:
    """The classes of all layers of `model`, in Keras's order."""
    return [type(layer).__name__ for layer in all_layers(model)]


def outputs_and_loss(model: Any, x: Any, y: Any, sample_weight: Any) -> tuple[Any, Any]:
    """What Keras's `train_step` computes of a batch before it asks for gradients.

    Returns:
        The outputs, and the loss to be differentiated, scaled as the optimizer wants it. The
        metric of the loss has counted it.
    """
    outputs = model(x, training=True) if model._call_has_training_arg else model(x)
    loss = model._compute_loss(x=x, y=y, y_pred=outputs, sample_weight=sample_weight, training=True)
    first = next(leaf for leaf in keras.tree.flatten(x) if leaf is not None)
    rows: Any = keras.ops.shape(first)
    model._loss_tracker.update_state(borrow(UNSCALE_LOSS)(loss), sample_weight=rows[0])
    return outputs, model.optimizer.scale_loss(loss)


def added_losses(layer: Any) -> list[Any]:
    """The list in which a layer of Keras 3 keeps what it has added to the loss itself."""
    return vars(layer)["_losses"]


def show_added_losses(layer: Any, losses: list[Any]) -> None:
    """Have a layer of Keras 3 keep in `losses` what it adds to the loss."""
    # Not by setattr, which would track the list.
    vars(layer)["_losses"] = losses


def mask_of(tensor: Any) -> Any | None:
    """The mask that Keras, 3 or 2, has noted on `tensor`, if any."""
    return getattr(tensor, "_keras_mask", None)


def set_mask(tensor: Any, mask: Any) -> None:
    """Note a mask on `tensor`, for Keras's losses and metrics."""
    tensor._keras_mask = mask


def has_mask(tensor: Any) -> bool:
    """Whether Keras has noted a mask on `tensor`."""
    return mask_of(tensor) is not None


def is_loss(function: Any) -> bool:
    """Whether a function is a loss object, of Keras 3 or 2."""
    classes = type(function).__mro__
    return any(each.__name__ == "Loss" and is_keras_own(each) for each in classes)


def in_stateless_scope() -> bool:
    """Whether variables are looked up in, and assigned to, a scope instead of their memory."""
    scope = importlib.import_module("keras.src.backend.common.stateless_scope")
    return scope.in_stateless_scope()


def update_count(optimizer: Any) -> Any:
    """The variable that counts the updates that `optimizer` has made, or batches it accumulates."""
    return getattr(optimizer, "inner_optimizer", optimizer)._iterations


def numbers_of(optimizer: Any) -> list[Any]:
    """The variables that an update of any variable uses: count, learning rate, loss scale."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    scale = getattr(optimizer, "dynamic_scale", None)
    found = [inner._iterations, inner._learning_rate, scale]
    return [each for each in found if isinstance(each, keras.Variable)]


def epoch_iterator(x: Any, batch_size: Any, steps: Any, strategy: Any) -> Any:
    """What Keras's `predict` reads its batches from, one at a time and in order."""
    trainer = importlib.import_module(_TRAINER)
    return trainer.TFEpochIterator(
        x=x,
        batch_size=batch_size,
        steps_per_epoch=steps,
        shuffle=False,
        distribute_strategy=strategy,
        steps_per_execution=1,
    )


def validation_part(x: Any, y: Any, sample_weight: Any, split: float) -> Any:
    """The part of arrays that `fit` takes for validation, as its `validation_split` says."""
    slicing = importlib.import_module("keras.src.trainers.data_adapters.array_slicing")
    _, validation = slicing.train_validation_split((x, y, sample_weight), validation_split=split)
    return validation
