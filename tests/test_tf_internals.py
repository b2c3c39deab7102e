"""What we use of TensorFlow's unpublished parts, one test each."""

from __future__ import annotations

import inspect
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import tensorflow as tf

from drumbeat import tf_internals

pytestmark = pytest.mark.tensorflow


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("all_reduce_v2", ("t", "merge_op", "final_op")),
        ("all_gather_v2", ("t",)),
        ("all_to_all_v2", ("t",)),
        ("broadcast_send_v2", ("t",)),
        ("broadcast_recv_v2", ("shape", "dtype")),
    ],
)
def test_collective_ops_take_what_we_give(name: str, arguments: tuple[str, ...]) -> None:
    from drumbeat import tf_internals

    known = inspect.signature(getattr(tf_internals, name)).parameters
    common = ("group_size", "group_key", "instance_key", "communication_hint")
    assert set(arguments + common) <= set(known)


CONTEXT = """
import tensorflow as tf
from drumbeat import tf_internals
assert not tf_internals.context_is_initialized()
tf_internals.join_cluster({"worker": ["127.0.0.1:PORT"]}, job="worker", index=0)
assert tf_internals.context_is_initialized()
assert "/job:worker/replica:0/task:0" in tf.ones([]).device, tf.ones([]).device
x = tf_internals.all_reduce_v2(
    tf.constant([2.0]), group_size=1, group_key=1, instance_key=1
)
assert x.numpy() == [2.0], x
import threading
threading.Timer(0.5, tf_internals.abort_collectives).start()
try:
    tf_internals.all_reduce_v2(tf.constant([2.0]), group_size=2, group_key=2, instance_key=2)
except tf.errors.DeadlineExceededError as error:
    assert "no answer in time" in error.message, error.message
    print("fine", flush=True)
import os
os._exit(0)
"""


def test_a_context_joins_a_cluster_before_its_first_op() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    done = subprocess.run(
        [sys.executable, "-c", CONTEXT.replace("PORT", str(port))],
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert "fine" in done.stdout, done.stderr


def test_another_thread_goes_on_with_the_graph_the_scope_and_the_summary_writer(
    tmp_path: Path,
) -> None:
    names = []

    @tf.function
    def traced() -> tf.Tensor:
        with tf.name_scope("outer"):
            scopes = tf_internals.thread_scopes()

            def body() -> None:
                with scopes():
                    tf.summary.scalar("seen", 1.0)
                    names.append(tf.constant(1.0, name="inner").name)

            thread = threading.Thread(target=body)
            thread.start()
            thread.join(10)
            return tf.constant(2.0)

    writer = tf.summary.create_file_writer(str(tmp_path))
    with writer.as_default(step=1):
        assert float(traced()) == 2.0
    writer.close()
    assert names == ["outer/inner:0"]
    assert b"seen" in next(tmp_path.iterdir()).read_bytes()


def test_a_dataset_can_be_of_a_class_of_our_own() -> None:
    import tensorflow as tf

    from drumbeat import tf_internals

    class Own(tf_internals.WrappedDataset):
        pass

    options = tf.data.Options()
    options.deterministic = True
    dataset = Own(tf.data.Dataset.range(4).with_options(options))
    assert isinstance(dataset, tf.data.Dataset)
    assert [int(n) for n in dataset.map(lambda n: n + 1)] == [1, 2, 3, 4]
    assert len(dataset) == 4
    assert dataset.element_spec == tf.TensorSpec([], tf.int64)
    assert dataset.options().deterministic
    taken = [int(n) for n in tf_internals.OwnedIterator(dataset)]
    assert taken == [0, 1, 2, 3]


def test_checkpoints_and_their_managers_write_through_one_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tf.train.Checkpoint, "_write", tf.train.Checkpoint._write)
    seen, called = [], []

    def elsewhere(original):
        def write(self, file_prefix, options=None):
            seen.append(os.path.basename(file_prefix))
            path = original(self, f"{file_prefix}-x", options=None)
            callbacks = options.experimental_write_callbacks if options else []
            tf_internals.call_after_writing([*callbacks, called.append], path)
            return path

        return write

    tf_internals.wrap_checkpoint_write(elsewhere)
    checkpoint = tf.train.Checkpoint(v=tf.Variable(3.0))
    manager = tf.train.CheckpointManager(checkpoint, tmp_path, max_to_keep=2)
    saved = [checkpoint.write(tmp_path / "a"), checkpoint.save(tmp_path / "b"), manager.save()]
    assert seen == ["a", "b-1", "ckpt-2"]
    assert called == saved
    assert [os.path.basename(path) for path in saved] == ["a-x", "b-1-x", "ckpt-2-x"]
    assert manager.latest_checkpoint == tf.train.latest_checkpoint(tmp_path) == saved[-1]


def test_a_dataset_is_rebuilt_over_another_input_without_a_new_trace() -> None:
    traces = []

    def double(number: tf.Tensor) -> tf.Tensor:
        traces.append(number)
        return 2 * number + captured

    captured = tf.constant(1, tf.int64)
    start = tf.data.Dataset.range(4)
    for parallel in (None, 2):
        steps = [start.map(double, num_parallel_calls=parallel)]
        steps.append(steps[0].batch(2, num_parallel_calls=parallel, drop_remainder=True))
        kind = "Parallel" if parallel else ""
        assert [tf_internals.dataset_kind(step) for step in steps] == [f"{kind}Map", f"{kind}Batch"]
        over = start.skip(1)
        for step in steps:
            over = tf_internals.rebuilt(step, over)
            assert over.element_spec == step.element_spec
        assert [batch.numpy().tolist() for batch in over] == [[3, 5]]
    assert len(traces) == 2
    padded = start.map(tf.range).padded_batch(2, padding_values=tf.constant(9, tf.int64))
    lengths = start.skip(2).map(tf.range)
    rows = next(iter(tf_internals.rebuilt(padded, lengths))).numpy().tolist()
    assert rows == [[0, 1, 9], [0, 1, 2]]


def test_what_datasets_were_made_with() -> None:
    x, words = tf.reshape(tf.range(6), [3, 2]), tf.ragged.constant([["a"], [], ["b", "c"]])
    rows = tf.data.Dataset.from_tensor_slices({"x": x, "words": words})
    later = tf_internals.resliced(rows, [t[2:] for t in tf_internals.dataset_tensors(rows)])
    (row,) = list(later)
    assert (row["x"].numpy().tolist(), row["words"].numpy().tolist()) == ([4, 5], [b"b", b"c"])
    both = tf.data.Dataset.zip({"a": rows, "b": (later, rows)})
    inputs = tf_internals.dataset_inputs(both)
    assert inputs == [rows, later, rows]
    assert tf_internals.zip_structure(both, inputs) == {"a": rows, "b": (later, rows)}
    numbers = tf.data.Dataset.range(2, 9, 3)
    named = [
        *((numbers, name, value) for name, value in (("start", 2), ("stop", 9), ("step", 3))),
        *((numbers.take(4), "count", 4), (numbers.skip(5), "count", 5)),
        *((numbers.repeat(), "count", -1), (numbers.prefetch(6), "buffer_size", 6)),
        (numbers.batch(7), "batch_size", 7),
    ]
    for dataset, name, value in named:
        assert tf_internals.dataset_number(dataset, name) == value
    kinds = [numbers, numbers.take(1), numbers.skip(1), numbers.repeat(), numbers.prefetch(1)]
    kinds += [numbers.cache(), numbers.shuffle(2), numbers.concatenate(numbers), rows, both]
    kinds += [numbers.with_options(tf.data.Options()), tf.data.Dataset.from_tensors(1)]
    assert [tf_internals.dataset_kind(dataset) for dataset in kinds] == [
        *("Range", "Take", "Skip", "Repeat", "Prefetch"),
        *("Cache", "Shuffle", "Concatenate", "TensorSlice", "Zip"),
        *("Options", "Tensor"),
    ]
    known = tf.data.experimental.assert_cardinality(3)(numbers)
    assert tf_internals.dataset_kind(known) == "AssertCardinality"
    assert tf_internals.dataset_number(known, "expected_cardinality") == 3


def test_operations_with_state_are_found_within_calls() -> None:
    def random(number: tf.Tensor) -> tf.Tensor:
        return tf.random.uniform([], dtype=tf.float64) + tf.cast(number, tf.float64)

    def only_then(number: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            number > 1, lambda: tf.function(random)(number), lambda: tf.zeros([], tf.float64)
        )

    numbers = tf.data.Dataset.range(3)
    for function in (random, tf.function(random), only_then):
        assert "RandomUniform" in tf_internals.stateful_ops(numbers.map(function))
    assert tf_internals.stateful_ops(numbers.map(lambda n: n + 1)) == set()
    assert tf_internals.stateful_ops(numbers.batch(2)) == set()


def test_the_graph_of_a_called_function_has_its_inputs_and_outputs() -> None:
    @tf.function
    def outer(x: tf.Tensor) -> tf.Tensor:
        return tf.function(lambda y: y + 1.0)(x)

    graph = outer.get_concrete_function(tf.TensorSpec([None, 3])).graph
    (call,) = (op for op in graph.get_operations() if op.type == "PartitionedCall")
    called = tf_internals.called_graph(call)
    assert [tensor.shape.as_list() for tensor in called.inputs] == [[None, 3]]
    assert [tensor.op.type for tensor in called.outputs] == ["Identity"]


def test_eager_draws_and_datasets_go_on_from_the_operation_seeds() -> None:
    def drawn() -> list[float]:
        order = tf.data.Dataset.range(50).shuffle(50)
        return [float(tf.random.uniform([])), *map(int, order)]

    before = tf_internals.operation_seeds()
    try:
        tf.random.set_seed(5)
        kept = tf_internals.operation_seeds()
        first = drawn()
        assert drawn() != first
        tf_internals.put_back_operation_seeds(*kept)
        assert drawn() == first
        tf.random.set_seed(6)
        tf_internals.put_back_operation_seeds(*kept)
        assert tf_internals.global_seed() == 5
        assert drawn() == first
    finally:
        tf_internals.put_back_operation_seeds(*before)


def test_the_global_generator_is_the_one_that_draws() -> None:
    generator = tf.random.get_global_generator()
    assert tf_internals.global_generator() is generator


def test_captured_variables_are_found_from_within_functions() -> None:
    variable, found = tf.Variable(1.0), []

    @tf.function
    def inner() -> tf.Tensor:
        read = variable + 1.0
        reads = tf.compat.v1.get_default_graph().get_operations()
        reads = [each for each in reads if each.type == "ReadVariableOp"]
        found.extend(tf_internals.captured(each.inputs[0]) for each in reads)
        return read

    tf.function(lambda: inner() + 1.0).get_concrete_function()
    assert found
    assert all(each is variable.handle for each in found)


def test_functions_of_maps_can_be_called_in_other_maps() -> None:
    def function(x: tf.Tensor) -> tuple[tf.Tensor, tf.RaggedTensor]:
        return x + 1, tf.ragged.range([x, 1])

    dataset = tf.data.Dataset.range(3).map(function, num_parallel_calls=2, deterministic=False)
    alone = tf.data.Dataset.range(3).map(function)
    own = tf_internals.map_function(dataset)
    results = own.function(*tf_internals.tensors_of(own.given, tf.constant(2, tf.int64)))
    number, ragged = tf_internals.element_of(own.returned, results)
    assert (int(number), ragged.to_list()) == (3, [[0, 1], [0]])
    assert tf_internals.dataset_parallelism(alone) == {}
    given = tf_internals.dataset_parallelism(dataset)
    assert {name: int(value) for name, value in given.items()} == {
        "num_parallel_calls": 2,
        "deterministic": True,
    }


def test_a_function_becomes_known_by_its_name() -> None:
    double = tf.function(lambda x: x * 2)
    graph = tf.function(double).get_concrete_function(tf.constant(3)).graph.as_graph_def()
    (definition,) = graph.library.function
    definition.signature.name = "doubled_by_another_name"
    tf_internals.add_function(definition)
    tf_internals.add_function(definition)
    assert tf_internals._context().has_function("doubled_by_another_name")


def test_whether_operations_are_deterministic_is_known() -> None:
    assert not tf_internals.is_op_determinism()
    tf.config.experimental.enable_op_determinism()
    try:
        assert tf_internals.is_op_determinism()
    finally:
        tf_internals.config.disable_op_determinism()


def test_a_variable_can_become_one_of_a_class_of_our_own() -> None:
    import tensorflow as tf

    from drumbeat import tf_internals

    class Own(tf_internals.ResourceVariable):
        def assign_add(self, delta: object, *args: object, **kwargs: object) -> object:
            return super().assign_add(2 * tf.convert_to_tensor(delta), *args, **kwargs)

    variable = tf.Variable(1.0, aggregation=tf.VariableAggregation.SUM)
    assert type(variable) is tf_internals.ResourceVariable
    variable.__class__ = Own
    tf.function(lambda: variable.assign_add(3.0))()
    assert float(variable) == 7.0


def test_strategies_of_tensorflow_s_own_can_be_subclassed_with_other_machinery() -> None:
    import tensorflow as tf

    from drumbeat import tf_internals

    for cls in (tf_internals.TFMirroredStrategy, tf_internals.TFCentralStorageStrategy):

        class Own(cls):
            def __init__(self) -> None:
                tf.distribute.Strategy.__init__(self, tf_internals.StrategyExtendedV1(self))

        assert isinstance(Own(), cls)
        assert type(Own().extended) is tf_internals.StrategyExtendedV1


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_update", ("self", "var", "fn", "args", "kwargs", "group")),
        ("_create_variable", ("self", "next_creator", "kwargs")),
        ("_call_for_each_replica", ("self", "fn", "args", "kwargs")),
        ("_replica_ctx_update", ("self", "var", "fn", "args", "kwargs", "group")),
        ("_replica_ctx_all_reduce", ("self", "reduce_op", "value", "options")),
        ("_experimental_distribute_dataset", ("self", "dataset", "options")),
        ("_use_merge_call", ("self",)),
    ],
)
def test_parameter_servers_call_what_we_replace(name: str, parameters: tuple[str, ...]) -> None:
    function = getattr(tf_internals.ParameterServerExtended, name)
    assert tuple(inspect.signature(function).parameters) == parameters


def test_a_remote_value_says_when_it_is_here() -> None:
    remote = tf_internals.coordinator_values.RemoteValueImpl(None, tf.TensorSpec([]))
    assert not tf_internals.is_finished(remote)
    tf_internals.wait_for(remote, 0.0)
    remote._set_error(ValueError("no"))
    assert tf_internals.is_finished(remote)


def test_a_dataset_can_be_made_again_from_its_graph() -> None:
    data = tf.data.Dataset.range(7).map(lambda x: 2 * x).batch(3)
    again = tf.function(lambda: tf_internals.serialized(data)().cardinality())
    assert int(again()) == 3
    made = tf_internals.serialized(data)()
    assert [batch.tolist() for batch in made.as_numpy_iterator()] == [[0, 2, 4], [6, 8, 10], [12]]


def test_a_gradient_goes_to_each_part_of_what_is_no_tensor() -> None:
    parts = [tf.Variable([1.0, 2.0]), tf.Variable([3.0])]
    variable = tf_internals.ShardedVariable(parts)
    assert parts[0]._sharded_container() is variable
    assert not inspect.isabstract(
        type(
            "Own",
            (tf_internals.CompositeTensorGradient,),
            {
                name: lambda self: None
                for name in ("get_gradient_components", "replace_gradient_components")
            },
        )
    )
