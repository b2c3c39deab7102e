"""Every touch of tf_keras's internals: what drumbeat replaces in `tf_keras.src`, and how.

Supported: tf_keras 2.21. As keras_internals.py has it for Keras 3;
tests/training/keras2/test_tf_keras_internals.py says which one moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
import tf_keras

from drumbeat.errors import ConfigError
from drumbeat.keras_internals import Touch, all_layers, problem_with, replace
from drumbeat.tf_internals import freed

_TRAINING = "tf_keras.src.engine.training"
_LOSSES = "tf_keras.src.utils.losses_utils"
_METRICS = "tf_keras.src.utils.metrics_utils"
_SCALING = "tf_keras.src.mixed_precision.loss_scale_optimizer"
_CALLBACKS = "tf_keras.src.callbacks"
_BACKUPS = "tf_keras.src.distribute.worker_training_state"
_BACKEND = "tf_keras.src.backend"
_DATA = ("x", "y", "batch_size")
MODEL_STRATEGY = "_distribution_strategy"
"""The attribute of a model that has its strategy, or None."""
_SUMMED = "gradients are summed over workers once, before clipping"
_DRAWS = "a worker draws for its rows what one worker would draw for them"
_CHIEF = "only the chief reads and writes; the others get its state when the fit begins"
_WHOLE = "a file or folder appears complete or not at all, whichever workers save to it"

SCALE_LOSS = Touch(
    module=_LOSSES,
    name="scale_loss_for_distribution",
    parameters=("loss_value",),
    why="a mean over the local rows counts local rows / global rows, not 1 / workers",
)
REDUCE_LOSS = Touch(
    module=_LOSSES,
    name="reduce_weighted_loss",
    parameters=("weighted_losses", "reduction"),
    why="a stand-in row doesn't count in what layers exchange",
)
VALID_MASK = Touch(
    module=_LOSSES,
    name="apply_valid_mask",
    parameters=("losses", "sw", "mask", "reduction"),
    why="a masked mean divides by how many entries pass in the global batch",
)
COMPILED_LOSS = Touch(
    module="tf_keras.src.engine.compile_utils",
    name="LossesContainer.__call__",
    parameters=("y_true", "y_pred", "sample_weight"),
    why="a loss that is a sum is shown as one worker would show it",
)
LOSS = Touch(
    module="tf_keras.src.losses",
    name="Loss.__call__",
    parameters=("y_true", "y_pred", "sample_weight"),
    why="within a loss the number of replicas is what it is; one that takes the rows of a batch "
    "together gets those of the global batch",
)
LOSS_REDUCTION = Touch(
    module="tf_keras.src.losses",
    name="Loss._get_reduction",
    parameters=(),
    why="it refuses means in a strategy that the script knows nothing of",
)
MEAN_UPDATE = Touch(
    module="tf_keras.src.metrics.base_metric",
    name="Reduce.update_state",
    parameters=("values", "sample_weight"),
    why="a number of the global batch that all workers have counts once",
)
MEAN_OF_FUNCTION = Touch(
    module="tf_keras.src.metrics.base_metric",
    name="MeanMetricWrapper.update_state",
    parameters=("y_true", "y_pred", "sample_weight"),
    why="a metric that takes the rows of a batch together gets those of the global batch",
)
OPTIMIZER_APPLY = Touch(
    module="tf_keras.src.optimizers.optimizer",
    name="Optimizer.apply_gradients",
    parameters=("grads_and_vars", "name", "skip_gradients_aggregation"),
    why=_SUMMED,
)
LEGACY_APPLY = Touch(
    module="tf_keras.src.optimizers.legacy.optimizer_v2",
    name="OptimizerV2.apply_gradients",
    parameters=("grads_and_vars", "name", "experimental_aggregate_gradients"),
    why=_SUMMED,
)
_OWN = "an apply_gradients of a script's own class gets the summed gradients too"
OPTIMIZER_INIT = Touch(
    module="tf_keras.src.optimizers.optimizer",
    name="_BaseOptimizer.__init__",
    parameters=("name",),
    why=_OWN,
)
LEGACY_INIT = Touch(
    module="tf_keras.src.optimizers.legacy.optimizer_v2",
    name="OptimizerV2.__init__",
    parameters=("name",),
    why=_OWN,
)
LOSS_SCALE_APPLY = Touch(
    module=_SCALING,
    name="LossScaleOptimizerV3.apply_gradients",
    parameters=("grads_and_vars", "skip_gradients_aggregation"),
    why="gradients are summed over workers before the test for non-finite ones",
)
LEGACY_LOSS_SCALE_APPLY = Touch(
    module=_SCALING,
    name="LossScaleOptimizer.apply_gradients",
    parameters=("grads_and_vars", "name", "experimental_aggregate_gradients"),
    why="gradients are summed over workers before the test for non-finite ones",
)
LOSS_SCALING_SUPPORT = Touch(
    module=_SCALING,
    name="strategy_supports_loss_scaling",
    parameters=(),
    why="it knows the strategies that it works with by their classes, so not ours",
)
METRIC_UPDATE = Touch(
    module=_METRICS,
    name="update_state_wrapper",
    parameters=("update_state_fn",),
    why="a stand-in row doesn't count in metrics",
)
METRIC_RESULT = Touch(
    module=_METRICS,
    name="result_wrapper",
    parameters=("result_fn",),
    why="a metric's result() outside of the strategy's run is that of all workers",
)
METRIC_INIT = Touch(
    module="tf_keras.src.metrics.base_metric",
    name="Metric.__init__",
    parameters=("name", "dtype"),
    why="a metric knows the strategy that it was made under",
)
METRIC_WEIGHT = Touch(
    module="tf_keras.src.metrics.base_metric",
    name="Metric.add_weight",
    parameters=("name", "shape", "aggregation", "synchronization", "initializer"),
    why="what all workers have counted is added to what a variable starts from once",
)
EPOCH_RESULT = Touch(
    module=_TRAINING,
    name="Model._validate_and_get_metrics_result",
    parameters=("logs",),
    why="metrics at the end of an epoch or evaluation are those of all workers",
)
FIT = Touch(
    module=_TRAINING,
    name="Model.fit",
    parameters=(*_DATA, "epochs", "verbose", "callbacks"),
    why="workers start a fit with the same state and stop together",
)
EVALUATE = Touch(
    module=_TRAINING,
    name="Model.evaluate",
    parameters=(*_DATA, "verbose"),
    why="workers read the data in one order",
)
PREDICT = Touch(
    module=_TRAINING,
    name="Model.predict",
    parameters=("x", "batch_size", "verbose", "steps", "callbacks"),
    why="every worker returns the predictions for all rows",
)
TRAIN_ON_BATCH = Touch(
    module=_TRAINING,
    name="Model.train_on_batch",
    parameters=("x", "y", "sample_weight", "class_weight", "reset_metrics", "return_dict"),
    why="every worker returns the numbers of the whole batch",
)
TEST_ON_BATCH = Touch(
    module=_TRAINING,
    name="Model.test_on_batch",
    parameters=("x", "y", "sample_weight", "reset_metrics", "return_dict"),
    why="every worker returns the numbers of the whole batch",
)
PREDICT_ON_BATCH = Touch(
    module=_TRAINING,
    name="Model.predict_on_batch",
    parameters=("x",),
    why="every worker returns the predictions for all rows",
)
INITIAL_COUNTERS = Touch(
    module=_TRAINING,
    name="Model._maybe_load_initial_counters_from_ckpt",
    parameters=("steps_per_epoch", "initial_epoch"),
    why="workers begin at the chief's epoch and step, or where an earlier attempt was",
)
DATA_HANDLER = Touch(
    module="tf_keras.src.engine.data_adapter",
    name="DataHandler._configure_dataset_and_inferred_steps",
    parameters=("strategy", "x", "steps_per_epoch", "class_weight", "distribute"),
    why="where each worker has data of its own, its length isn't known",
)
EPOCHS = Touch(
    module="tf_keras.src.engine.data_adapter",
    name="DataHandler.enumerate_epochs",
    parameters=(),
    why="here an epoch goes on in its middle after a restart",
)
STEPS = Touch(
    module="tf_keras.src.engine.data_adapter",
    name="DataHandler.steps",
    parameters=(),
    why="control comes back here after each step",
)
SYNC_LOGS = Touch(
    module="tf_keras.src.utils.tf_utils",
    name="sync_to_numpy_or_python_type",
    parameters=("tensors",),
    why="an epoch that goes on behind its last step has the logs of that step",
)
SYNC_MOMENTS = Touch(
    module="tf_keras.src.layers.normalization.batch_normalization",
    name="BatchNormalizationBase._sync_calculate_mean_and_var",
    parameters=("x",),
    why="a stand-in row doesn't count in the statistics of all workers",
)
DRAW_NORMAL = Touch(
    module=_BACKEND,
    name="RandomGenerator.random_normal",
    parameters=("shape", "mean", "stddev", "dtype", "nonce"),
    why=_DRAWS,
)
DRAW_UNIFORM = Touch(
    module=_BACKEND,
    name="RandomGenerator.random_uniform",
    parameters=("shape", "minval", "maxval", "dtype", "nonce"),
    why=_DRAWS,
)
DRAW_TRUNCATED_NORMAL = Touch(
    module=_BACKEND,
    name="RandomGenerator.truncated_normal",
    parameters=("shape", "mean", "stddev", "dtype", "nonce"),
    why=_DRAWS,
)
DRAW_DROPOUT = Touch(
    module=_BACKEND,
    name="RandomGenerator.dropout",
    parameters=("inputs", "rate", "noise_shape"),
    why=_DRAWS,
)
SAVE_MODEL = Touch(
    module="tf_keras.src.saving.saving_lib",
    name="save_model",
    parameters=("model", "filepath", "weights_format"),
    why=_WHOLE,
)
SAVE_WEIGHTS = Touch(
    module="tf_keras.src.saving.saving_lib",
    name="save_weights_only",
    parameters=("model", "filepath"),
    why=_WHOLE,
)
SAVE_H5 = Touch(
    module="tf_keras.src.saving.legacy.hdf5_format",
    name="save_model_to_hdf5",
    parameters=("model", "filepath"),
    why=_WHOLE,
)
SAVE_FOLDER = Touch(
    module="tf_keras.src.saving.legacy.saved_model.save",
    name="save",
    parameters=("model", "filepath"),
    why=_WHOLE,
)
SAVE_OLD_WEIGHTS = Touch(
    module="tf_keras.src.saving.legacy.save",
    name="save_weights",
    parameters=("model", "filepath"),
    why=_WHOLE,
)
CHECKPOINT_SAVE = Touch(
    module=_CALLBACKS,
    name="ModelCheckpoint._save_model",
    parameters=("epoch", "batch", "logs"),
    why="only the chief writes",
)
BACKUP_BEGIN = Touch(
    module=_CALLBACKS,
    name="BackupAndRestore.on_train_begin",
    parameters=("logs",),
    why="it knows the strategies that it works with by their classes, so not ours",
)
BACKUP_SAVE = Touch(
    module=_BACKUPS, name="WorkerTrainingState.back_up", parameters=("epoch", "batch"), why=_CHIEF
)
BACKUP_LOAD = Touch(module=_BACKUPS, name="WorkerTrainingState.restore", parameters=(), why=_CHIEF)
BACKUP_END = Touch(
    module=_BACKUPS, name="WorkerTrainingState.delete_backup", parameters=(), why=_CHIEF
)
CSV_BEGIN = Touch(
    module=_CALLBACKS,
    name="CSVLogger.on_train_begin",
    parameters=("logs",),
    why="workers other than the chief log into their own folder",
)
TENSORBOARD_MODEL = Touch(
    module=_CALLBACKS,
    name="TensorBoard.set_model",
    parameters=("model",),
    why="workers other than the chief log into their own folder",
)
DOWNLOAD = Touch(
    module="tf_keras.src.utils.data_utils",
    name="urlretrieve",
    parameters=("url", "filename"),
    why="workers that download one data set at the same time don't see each other's half files",
)

TOUCHES = tuple(value for value in list(globals().values()) if isinstance(value, Touch))


def wrap(touch: Touch, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace the function of `touch` by `make(original)`.

    Raises:
        ConfigError: The installed tf_keras doesn't have the function as expected.
    """
    problem = problem_with(touch)
    if problem:
        raise ConfigError(
            f"tf_keras {tf_keras.__version__} isn't supported: {problem}. Expected tf_keras 2.21."
        )
    replace(touch, make)


def least_rows_of_arrays(handler: Any) -> int:
    """The rows of the smallest batch that a data handler makes of arrays; 0 for other data."""
    adapter = handler._adapter
    size = getattr(adapter, "_batch_size", None)
    return int(getattr(adapter, "_partial_batch_size", 0) or size or 0)


def steps_per_execution(model: Any) -> int:
    """How many steps a function of `model`'s loops makes at once."""
    variable = getattr(model, "_steps_per_execution", None)
    return 1 if variable is None else int(variable.numpy())


def set_steps_per_execution(model: Any, count: int) -> None:
    """Sets that."""
    model._steps_per_execution.assign(count)


def generator_of(source: Any, make: Callable[[int | None], Any]) -> Any | None:
    """The `tf.random.Generator` of a `RandomGenerator`; None where it draws without state.

    Args:
        source: Of a layer, or of an initial value.
        make: Makes one with a seed, or with any for None, for a `source` that would leave it
            to stateful operations.
    """
    if source._rng_type == source.RNG_LEGACY_STATEFUL:
        with tf.init_scope():
            source._generator = make(source._seed)
        source._rng_type = source.RNG_STATEFUL
        source._built = True
    source._maybe_init()
    if source._rng_type != source.RNG_STATEFUL:
        return None
    return freed(source._generator)


def layer_generators(model: Any) -> list[Any]:
    """The `tf.random.Generator`s that the layers of `model` have drawn from, in Keras's order."""
    sources = [getattr(layer, "_random_generator", None) for layer in all_layers(model)]
    made = [getattr(source, "_generator", None) for source in sources]
    return [generator for generator in made if generator is not None]


OPTIMIZERS = (
    tf_keras.optimizers.Optimizer,
    tf_keras.optimizers.legacy.Optimizer,
    tf_keras.mixed_precision.LossScaleOptimizer,
)


def loss_scale_variables(optimizer: Any) -> list[Any]:
    """What a LossScaleOptimizer keeps besides the variables of the one that it holds."""
    scale: Any = getattr(optimizer, "_loss_scale", None)
    if not hasattr(scale, "current_loss_scale"):
        return []
    return [scale.current_loss_scale, scale.counter]


def metrics_of(model: Any) -> list[Any]:
    """All metrics of a model: those given to compile(), also before they are built, and its own."""
    given = model.compiled_metrics
    users = [] if given is None else [given._user_metrics, given._user_weighted_metrics]
    found = [*tf.nest.flatten(users), *model.metrics]
    return [each for each in found if isinstance(each, tf_keras.metrics.Metric)]


def dataset_of(handler: Any) -> Any:
    """What a data handler makes iterators of."""
    return handler._dataset


def with_dataset(
    handler: Any, dataset: Any, generate: Callable[[Any], Iterator[Any]]
) -> Iterator[Any]:
    """`generate(handler)`, for which `dataset` stands for what `handler` makes iterators of."""
    before = handler._dataset
    handler._dataset = dataset
    try:
        yield from generate(handler)
    finally:
        handler._dataset = before


def makes_anew(handler: Any) -> bool:
    """Whether a data handler makes an iterator for each epoch, and not one for all."""
    return bool(handler._adapter.should_recreate_iterator())


def steps_of(handler: Any) -> int | None:
    """The steps of an epoch of a data handler, as far as known."""
    return handler._inferred_steps


def set_steps_of(handler: Any, steps: int) -> None:
    """Sets that."""
    handler._inferred_steps = steps


def evaluation_handler(model: Any) -> Any | None:
    """The data handler of the validation of the fit that runs; None before the first."""
    return getattr(model, "_eval_data_handler", None)
