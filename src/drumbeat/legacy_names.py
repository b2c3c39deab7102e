"""Names and habits of TensorFlow 2.0 to 2.15 that Keras 3 no longer takes: the one table of them.

Under `drumbeat run` they work as `now` says, each with a notice the first time; `--strict-names`
leaves Keras as it is. `drumbeat.training.legacy` does what the table says, and docs/old-scripts.md
is made from it. Nothing here may change a number: what can't be had alike is left to fail.

Source: each was tried on TensorFlow 2.21 with Keras 3.15 and with tf_keras 2.21; "Keras 3" stands
where tf_keras still has it, else the TensorFlow whose release notes say that it went.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

KERAS_3 = "Keras 3"


@dataclass(frozen=True, kw_only=True)
class Old:
    """One name or habit that is gone.

    Attributes:
        name: As scripts write it.
        since: The version that took it away.
        now: What it does under drumbeat.
        write: What to write instead.
    """

    name: str
    since: str
    now: str
    write: str

    @property
    def notice(self) -> str:
        """What the user is told, without the place."""
        return f"{self.name} is gone since {self.since}; {self.now}. Write {self.write}."


def _moved(old: str, new: str, since: str = KERAS_3) -> Old:
    return Old(name=old, since=since, now=f"drumbeat takes {new}", write=new)


def _dropped(old: str, why: str, since: str = KERAS_3) -> Old:
    return Old(name=old, since=since, now=f"drumbeat leaves it out, {why}", write="it without")


_PARTS_OF_LAYERS = (
    *("advanced_activations", "convolutional", "core", "embeddings", "merge", "noise"),
    *("normalization", "pooling", "recurrent", "wrappers"),
)
# Where a public module has lost a part: what `module.part.name` is now. A name that ends in .*
# stands for all that the module on the right has.
MOVED: dict[str, str] = {
    "callbacks.experimental.BackupAndRestore": "callbacks.BackupAndRestore",
    "experimental.CosineDecay": "optimizers.schedules.CosineDecay",
    "experimental.CosineDecayRestarts": "optimizers.schedules.CosineDecayRestarts",
    "layers.experimental.preprocessing.*": "layers.*",
    "layers.experimental.EinsumDense": "layers.EinsumDense",
    # As the package keras alone had them.
    **{f"layers.{part}.*": "layers.*" for part in _PARTS_OF_LAYERS},
    "mixed_precision.experimental.Policy": "mixed_precision.Policy",
    "mixed_precision.experimental.set_policy": "mixed_precision.set_global_policy",
    "mixed_precision.experimental.global_policy": "mixed_precision.global_policy",
    "mixed_precision.experimental.LossScaleOptimizer": "mixed_precision.LossScaleOptimizer",
    "optimizers.experimental.*": "optimizers.*",
    "optimizers.legacy.*": "optimizers.*",
    "utils.np_utils.to_categorical": "utils.to_categorical",
    "utils.np_utils.normalize": "utils.normalize",
    "utils.generic_utils.get_custom_objects": "utils.get_custom_objects",
    "utils.generic_utils.Progbar": "utils.Progbar",
}
_MOVED_SINCE = {
    "mixed_precision.experimental": "TensorFlow 2.9",
    "utils.np_utils": "TensorFlow 2.13",
    **{f"layers.{part}": "TensorFlow 2.13" for part in _PARTS_OF_LAYERS},
    "utils.generic_utils": "TensorFlow 2.13",
}


def moved(name: str) -> Old:
    """What became of a name of `MOVED`, given without `keras.`."""
    module, _, last = name.rpartition(".")
    new = MOVED.get(name) or MOVED[f"{module}.*"].replace("*", last)
    since = next((s for part, s in _MOVED_SINCE.items() if name.startswith(part)), KERAS_3)
    return _moved(f"keras.{name}", f"keras.{new}", since)


SYNC_BATCH_NORMALIZATION = Old(
    name="keras.layers.experimental.SyncBatchNormalization",
    since=KERAS_3,
    now="drumbeat takes BatchNormalization(synchronized=True)",
    write="keras.layers.BatchNormalization(synchronized=True)",
)
DATASET_CREATOR = Old(
    name="keras.utils.experimental.DatasetCreator",
    since=KERAS_3,
    now="drumbeat has one of its own",
    write="the function itself: fit(dataset_fn)",
)
MULTI_GPU_MODEL = Old(
    name="keras.utils.multi_gpu_model",
    since="TensorFlow 2.4",
    now="drumbeat returns the model itself, as its workers share each batch",
    write="model = model, under a strategy's scope",
)
GRAPH_REWRITE = Old(
    name="enable_mixed_precision_graph_rewrite",
    since="TensorFlow 2.7",
    now="drumbeat turns on the same rewrite of graphs, which acts on GPUs, and scales the loss",
    write='keras.mixed_precision.set_global_policy("mixed_float16")',
)

# Methods and attributes: "Class.old" -> "new".
RENAMED: dict[str, str] = {
    "Metric.reset_states": "reset_state",
    "Model.fit_generator": "fit",
    "Model.evaluate_generator": "evaluate",
    "Model.predict_generator": "predict",
    "Optimizer.lr": "learning_rate",
    "Strategy.experimental_run_v2": "run",
}
# The generators' methods: their arguments by position, of which the first is a generator.
_READING = ("max_queue_size", "workers", "use_multiprocessing")
GENERATORS: dict[str, tuple[str, ...]] = {
    "fit_generator": (
        *("generator", "steps_per_epoch", "epochs", "verbose", "callbacks", "validation_data"),
        *("validation_steps", "validation_freq", "class_weight", *_READING),
        *("shuffle", "initial_epoch"),
    ),
    "evaluate_generator": ("generator", "steps", "callbacks", *_READING, "verbose"),
    "predict_generator": ("generator", "steps", "callbacks", *_READING, "verbose"),
}
_RENAMED_SINCE = {"Strategy.experimental_run_v2": "TensorFlow 2.4"}


def renamed(name: str) -> Old:
    """What became of a name of `RENAMED`."""
    kind, _, last = name.rpartition(".")
    new = RENAMED[name]
    since = _RENAMED_SINCE.get(name, KERAS_3)
    return Old(name=f"{kind}.{last}", since=since, now=f"drumbeat takes {new}", write=new)


MODEL_RESET_STATES = Old(
    name="Model.reset_states",
    since=KERAS_3,
    now="drumbeat resets the state of each stateful layer",
    write="layer.reset_state() for each of the model's stateful layers",
)
MINIMIZE = Old(
    name="Optimizer.minimize",
    since=KERAS_3,
    now="drumbeat takes the gradients with a tape and applies them",
    write="tf.GradientTape and optimizer.apply_gradients",
)
OPTIMIZER_WEIGHTS = Old(
    name="Optimizer.weights, get_weights",
    since="TensorFlow 2.11",
    now="drumbeat gives the optimizer's variables",
    write="optimizer.variables",
)
AGGREGATE = Old(
    name="apply_gradients(experimental_aggregate_gradients=)",
    since=KERAS_3,
    now="drumbeat leaves it out where gradients are to be summed over the workers",
    write="apply_gradients without it",
)
PREDICT_CLASSES = Old(
    name="Sequential.predict_classes",
    since="TensorFlow 2.6",
    now="drumbeat takes the greatest of predict's outputs, or those above 0.5 if there is one",
    write="model.predict(x).argmax(axis=-1), or (model.predict(x) > 0.5).astype(int)",
)
PREDICT_PROBA = Old(
    name="Sequential.predict_proba",
    since="TensorFlow 2.6",
    now="drumbeat takes predict",
    write="model.predict",
)
LAYER_SHAPES = Old(
    name="Layer.input_shape, output_shape",
    since=KERAS_3,
    now="drumbeat gives the shape of layer.input, layer.output",
    write="layer.input.shape, layer.output.shape",
)
SET_VALUE = Old(
    name="keras.backend.set_value",
    since=KERAS_3,
    now="drumbeat assigns to the variable",
    write="variable.assign(value)",
)
NUMPY_DATASET = Old(
    name="Strategy.experimental_make_numpy_dataset",
    since="TensorFlow 2.4",
    now="drumbeat takes tf.data.Dataset.from_tensor_slices",
    write="tf.data.Dataset.from_tensor_slices",
)

LR = Old(
    name="optimizer(lr=)",
    since=KERAS_3,
    now="drumbeat takes it for learning_rate",
    write="learning_rate=",
)
DECAY = Old(
    name="optimizer(decay=)",
    since="TensorFlow 2.11",
    now="drumbeat takes InverseTimeDecay(learning_rate, 1, decay), which is the same rate",
    write="learning_rate=keras.optimizers.schedules.InverseTimeDecay(learning_rate, 1, decay)",
)
INPUT_SHAPE = Old(
    name="Input(shape=n)",
    since=KERAS_3,
    now="drumbeat takes the shape (n,)",
    write="Input(shape=(n,))",
)
REDUCTION_AUTO = Old(
    name='Loss(reduction="auto")',
    since=KERAS_3,
    now="drumbeat takes sum_over_batch_size, which it meant in fit",
    write='reduction="sum_over_batch_size", or leave it out',
)
EMBEDDING_WEIGHTS = Old(
    name="Embedding(weights=[table])",
    since=KERAS_3,
    now="drumbeat takes the table as initial value",
    write="embeddings_initializer=keras.initializers.Constant(table)",
)
STEPS_PER_EXECUTION = Old(
    name="compile(experimental_steps_per_execution=)",
    since="TensorFlow 2.4",
    now="drumbeat takes it for steps_per_execution",
    write="steps_per_execution=",
)
PERIOD = Old(
    name="ModelCheckpoint(period=n)",
    since=KERAS_3,
    now="drumbeat saves after every n-th epoch",
    write='save_freq="epoch", or a callback of your own',
)
# Arguments that change no number: "function" -> their names, and why they don't.
DROPPED: dict[str, tuple[tuple[str, ...], str]] = {
    **dict.fromkeys(
        ("fit", "evaluate", "predict"),
        (_READING, "as it only says how a generator is read; PyDataset takes it"),
    ),
    "compile": (("experimental_run_tf_function",), "as Keras always does so"),
    "BatchNormalization": (("fused",), "as it only names a kernel"),
    "TensorBoard": (("write_grads", "batch_size"), "as TensorFlow 2 never heeded it"),
}


def dropped(function: str, argument: str) -> Old:
    """What became of an argument of `DROPPED`."""
    return _dropped(f"{function}({argument}=)", DROPPED[function][1])


CHECKPOINT_PATH = Old(
    name="ModelCheckpoint to a name without .keras or .weights.h5",
    since=KERAS_3,
    now="drumbeat writes it as model.save and save_weights below",
    write="a name that ends in .keras, or .weights.h5 with save_weights_only=True",
)
SAVE_FOLDER = Old(
    name="model.save(folder)",
    since=KERAS_3,
    now="drumbeat writes a SavedModel for serving, and in its assets.extra the model itself",
    write='model.save("name.keras") to go on with, model.export(folder) to serve',
)
LOAD_FOLDER = Old(
    name="load_model(folder)",
    since=KERAS_3,
    now="drumbeat loads the model beside the SavedModel, or else wraps it for predict",
    write='load_model("name.keras"), or keras.layers.TFSMLayer(folder)',
)
SAVE_WEIGHTS = Old(
    name="save_weights(path) without .weights.h5",
    since=KERAS_3,
    now="drumbeat writes a TensorFlow checkpoint, or a file of that name in .h5, as before",
    write='save_weights("path.weights.h5")',
)
LOAD_WEIGHTS = Old(
    name="load_weights(TensorFlow checkpoint)",
    since=KERAS_3,
    now="drumbeat reads those that it wrote",
    write='load_weights("path.weights.h5")',
)
GET_FILE = Old(
    name="get_file, load_data with a full path",
    since=KERAS_3,
    now="drumbeat looks there, as before",
    write="cache_dir= for the folder",
)


NOTEBOOK = Old(
    name="get_ipython",
    since="the notebook was made a script",
    now="drumbeat runs cells that are timed, writes those that are files, and leaves out the rest",
    write="what is to be run as Python, and install packages before the run",
)


# What drumbeat can't bring back: "module.name" -> since when, and what to write. `tf` and `keras`
# are the modules.
REFUSED: dict[str, tuple[str, str]] = {
    "keras.backend.get_session": ("TensorFlow 2.0", "eager code; Keras 3 has no sessions"),
    "keras.backend.set_session": ("TensorFlow 2.0", "tf.config for what the session was set to"),
    "keras.backend.learning_phase": (KERAS_3, "training= in the call"),
    "keras.backend.set_learning_phase": (KERAS_3, "training= in the call"),
    "keras.estimator": ("TensorFlow 2.16", "a Keras model and model.fit"),
    "keras.layers.CuDNNGRU": ("TensorFlow 2.0", "keras.layers.GRU, which takes cuDNN by itself"),
    "keras.layers.CuDNNLSTM": ("TensorFlow 2.0", "keras.layers.LSTM, which takes cuDNN by itself"),
    "keras.layers.DenseFeatures": (KERAS_3, "keras.utils.FeatureSpace or preprocessing layers"),
    "keras.layers.LocallyConnected1D": (KERAS_3, "tf_keras, or a layer of your own"),
    "keras.layers.LocallyConnected2D": (KERAS_3, "tf_keras, or a layer of your own"),
    "keras.models.model_from_yaml": ("TensorFlow 2.6", "keras.models.model_from_json"),
    "keras.premade": (KERAS_3, "the model's layers themselves"),
    "keras.utils.OrderedEnqueuer": (KERAS_3, "keras.utils.PyDataset"),
    "tf.ConfigProto": ("TensorFlow 2.0", "tf.config"),
    "tf.Session": ("TensorFlow 2.0", "eager code, or tf.compat.v1.Session in a script of its own"),
    "tf.contrib": ("TensorFlow 2.0", "what took its place, see TensorFlow's migration guide"),
    "tf.estimator": ("TensorFlow 2.16", "a Keras model and model.fit"),
    "tf.global_variables_initializer": ("TensorFlow 2.0", "nothing: variables have values"),
    "tf.placeholder": ("TensorFlow 2.0", "keras.Input, or an argument of a function"),
}


def refused(name: str) -> Old:
    """A name of `REFUSED`."""
    since, write = REFUSED[name]
    return Old(name=name, since=since, now="drumbeat has nothing like it", write=write)


def table() -> Iterator[Old]:
    """All of them, in the order of docs/old-scripts.md."""
    for name in MOVED:
        if name.endswith(".*"):
            since = _MOVED_SINCE.get(name.rpartition(".")[0], KERAS_3)
            yield _moved(f"keras.{name}", f"keras.{MOVED[name]}", since)
        else:
            yield moved(name)
    yield from (SYNC_BATCH_NORMALIZATION, DATASET_CREATOR, MULTI_GPU_MODEL, GRAPH_REWRITE)
    yield from map(renamed, RENAMED)
    yield from (
        MODEL_RESET_STATES,
        MINIMIZE,
        OPTIMIZER_WEIGHTS,
        AGGREGATE,
        PREDICT_CLASSES,
        PREDICT_PROBA,
    )
    yield from (LAYER_SHAPES, SET_VALUE, NUMPY_DATASET, LR, DECAY, INPUT_SHAPE, REDUCTION_AUTO)
    yield from (EMBEDDING_WEIGHTS, STEPS_PER_EXECUTION, PERIOD)
    for function, (arguments, _) in DROPPED.items():
        yield from (dropped(function, argument) for argument in arguments)
    yield from (CHECKPOINT_PATH, SAVE_FOLDER, LOAD_FOLDER, SAVE_WEIGHTS, LOAD_WEIGHTS, GET_FILE)
    yield NOTEBOOK
    yield from map(refused, REFUSED)
