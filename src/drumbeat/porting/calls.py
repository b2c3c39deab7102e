"""Arguments that Keras 3's functions no longer take, and functions that are no more."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m

from drumbeat import legacy_names as names
from drumbeat.porting import edits, known, moved
from drumbeat.porting.context import Context
from drumbeat.porting.options import text_of

MULTI_WORKER = "tensorflow.distribute.experimental.MultiWorkerMirroredStrategy"
_IMPLEMENTATIONS = "tensorflow.distribute.experimental.CommunicationOptions"
# What optimizers start with where a script names a decay only.
_USUAL_RATE = {"SGD": "0.01"}
_OTHER_USUAL_RATE = "0.001"
_FITTING = ("fit", "evaluate", "predict")
_SELF_SURE = ("optimizer", "model", "sequential", None)  # None: it can't be known


def name_of(context: Context, original: cst.Call) -> str:
    """The full name of what is called, where it is now."""
    name = context.name(original.func) or ""
    return moved.target(name) or name


def method_of(original: cst.Call) -> tuple[cst.BaseExpression, str] | None:
    """What a method is called on, and the method."""
    if isinstance(original.func, cst.Attribute):
        return original.func.value, original.func.attr.value
    return None


def is_zero(node: cst.CSTNode) -> bool:
    """It is a literal 0, 0.0 or None."""
    if isinstance(node, (cst.Integer, cst.Float)):
        return float(node.evaluated_value) == 0
    return isinstance(node, cst.Name) and node.value == "None"


def rate(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`lr=` and `decay=` of optimizers."""
    name = name_of(context, original)
    if known.kind_of(name) != "optimizer" or not name.startswith("keras.optimizers."):
        return updated
    updated = edits.renamed(updated, "lr", "learning_rate")
    decay = edits.find(updated, "decay")
    if decay is None:
        return updated
    updated = edits.without_names(updated, ("decay",))
    if is_zero(decay.value):
        return updated
    given = edits.find(updated, "learning_rate", 0)
    usual = _USUAL_RATE.get(name.rpartition(".")[2], _OTHER_USUAL_RATE)
    code = context.code(given.value) if given else usual
    schedule = (
        f"{context.keras('optimizers.schedules.InverseTimeDecay')}"
        f"({code}, 1, {context.code(decay.value)})"
    )
    if given is None:
        return edits.with_keyword(updated, "learning_rate", schedule)
    return edits.with_value(updated, given, cst.parse_expression(schedule))


def synchronized(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """SyncBatchNormalization is an argument now."""
    if context.name(original.func) != moved.SYNC:
        return updated
    return edits.with_keyword(updated, "synchronized", "True")


def dropped(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """Arguments that change no number."""
    last = name_of(context, original).rpartition(".")[2]
    if last in ("BatchNormalization", "TensorBoard") and name_of(context, original).startswith(
        "keras."
    ):
        return edits.without_names(updated, names.DROPPED[last][0])
    method = method_of(original)
    if method is None or context.kinds.of(method[0]) not in _SELF_SURE:
        return updated
    if method[1] == "compile":
        updated = edits.renamed(updated, "experimental_steps_per_execution", "steps_per_execution")
        return edits.without_names(updated, names.DROPPED["compile"][0])
    if method[1] in _FITTING:
        return edits.without_names(updated, names.DROPPED[method[1]][0])
    return updated


def embedding(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`Embedding(weights=[table])`."""
    weights = edits.find(updated, "weights")
    if name_of(context, original) != "keras.layers.Embedding" or weights is None:
        return updated
    tables = weights.value
    if isinstance(tables, (cst.List, cst.Tuple)) and len(tables.elements) == 1:
        table = context.code(tables.elements[0].value)
    else:
        table = f"{_operand(context, tables)}[0]"
    updated = edits.without_names(updated, ("weights",))
    initializer = f"{context.keras('initializers.Constant')}({table})"
    return edits.with_keyword(updated, "embeddings_initializer", initializer)


def communication(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`MultiWorkerMirroredStrategy(communication=)` of `tf.distribute.experimental`."""
    if context.name(original.func) != MULTI_WORKER:
        return updated
    given = edits.find(updated, "communication", 0)
    updated = edits.named(updated, ("communication", "cluster_resolver")) or updated
    if given is None:
        return updated
    code = context.code(given.value)
    if code.rpartition(".")[2] == "AUTO":
        return edits.without_names(updated, ("communication",))
    options = context.tensorflow(_IMPLEMENTATIONS.partition(".")[2])
    updated = edits.renamed(updated, "communication", "communication_options")
    return edits.with_keyword(updated, "communication_options", f"{options}(implementation={code})")


def only_its_argument(context: Context, original: cst.Call, updated: cst.Call) -> Any:
    """`multi_gpu_model(model, n)` is the model, `DatasetCreator(function)` the function."""
    name = context.name(original.func)
    if name not in (moved.MULTI_GPU, moved.CREATOR):
        return updated
    arg = edits.find(updated, "model" if name == moved.MULTI_GPU else "dataset_fn", 0)
    return arg.value if arg is not None else updated


def set_value(context: Context, original: cst.Call, updated: cst.Call) -> Any:
    """`K.set_value(variable, value)`."""
    if context.name(original.func) != moved.SET_VALUE:
        return updated
    call = edits.named(updated, ("x", "value"))
    variable, value = (edits.find(call, name) for name in ("x", "value")) if call else (None, None)
    if variable is None or value is None:
        return updated
    assigned = f"{_operand(context, variable.value)}.assign({context.code(value.value)})"
    return cst.parse_expression(assigned)


def _operand(context: Context, node: cst.BaseExpression) -> str:
    """`node` as text that a dot or a bracket may follow."""
    is_plain = isinstance(node, (cst.Name, cst.Attribute, cst.Call, cst.Subscript))
    return context.code(node) if is_plain else f"({context.code(node)})"


def numpy_dataset(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`strategy.experimental_make_numpy_dataset(arrays)`."""
    method = method_of(original)
    if method is None or method[1] != "experimental_make_numpy_dataset":
        return updated
    arrays = edits.find(updated, "numpy_input", 0)
    if arrays is None:
        return updated
    function = cst.parse_expression(context.tensorflow("data.Dataset.from_tensor_slices"))
    return updated.with_changes(func=function, args=[cst.Arg(arrays.value)])


def graph_rewrite(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`enable_mixed_precision_graph_rewrite(optimizer)`: what it turned on, in two lines."""
    if context.name(original.func) not in moved.GRAPH_REWRITES:
        return updated
    optimizer = edits.find(updated, "opt", 0)
    scale = edits.find(updated, "loss_scale", 1)
    options = context.tensorflow("config.optimizer.set_experimental_options")
    if optimizer is None or not context.before(
        original, f'{options}({{"auto_mixed_precision": True}})\n'
    ):
        context.note(original, names.GRAPH_REWRITE.notice)
        return updated
    call = cst.Call(
        cst.parse_expression(context.keras("optimizers.LossScaleOptimizer")),
        [cst.Arg(optimizer.value)],
    )
    if scale is None or context.code(scale.value).strip("\"'") == "dynamic":
        return call
    # A fixed scale: one that is never raised.
    call = edits.with_keyword(call, "initial_scale", f"float({context.code(scale.value)})")
    return edits.with_keyword(call, "dynamic_growth_steps", "2**31 - 1")


def notebook(context: Context, original: cst.Expr, updated: cst.Expr) -> Any:
    """`get_ipython()`: what a converted notebook asks of the notebook's machine."""
    call = original.value
    method = method_of(call) if isinstance(call, cst.Call) else None
    shell = m.Call(func=m.Name("get_ipython"))
    if not isinstance(call, cst.Call) or method is None or not m.matches(method[0], shell):
        return updated
    if method[1] == "run_cell_magic":
        if context.before(original, _cell(context, call)):
            return cst.RemoveFromParent()
    elif "\n" not in context.code(call) and context.comment(original, context.code(call)):
        return cst.Pass()
    context.note(original, names.NOTEBOOK.notice)
    return updated


def notebook_value(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`get_ipython()` whose answer is used."""
    method = method_of(original)
    shell = m.Call(func=m.Name("get_ipython"))
    used = not isinstance(context.scopes.parents.get(original), cst.Expr)
    if used and method is not None and m.matches(method[0], shell):
        context.note(original, names.NOTEBOOK.notice)
    return updated


def _cell(context: Context, call: cst.Call) -> str:
    """What a cell does for which IPython is asked: it runs, or becomes a file."""
    words = [text_of(arg.value) for arg in call.args]
    if len(words) != 3 or not all(isinstance(word, str) for word in words):
        return ""
    magic, line, cell = (word or "" for word in words)
    if magic in _TIMED:
        try:
            cst.parse_module(cell)
        except cst.ParserSyntaxError:
            return ""
        return cell.rstrip() + "\n"
    if magic != "writefile" or not line.split():
        return ""
    pathlib = context.module("pathlib")
    written = context.code(call.args[2].value)
    return f"{pathlib}.Path({line.split()[-1]!r}).write_text({written}, encoding='utf-8')\n"


_TIMED = ("time", "timeit", "capture", "prun")


RULES = (
    *(rate, synchronized, dropped, embedding, communication),
    *(graph_rewrite, numpy_dataset, set_value, only_its_argument, notebook_value),
)
