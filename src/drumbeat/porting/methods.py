"""Methods and attributes of old."""

from __future__ import annotations

from typing import Any

import libcst as cst
from libcst import matchers as m

from drumbeat import legacy_names as names
from drumbeat.porting import edits, moved
from drumbeat.porting.calls import is_zero, method_of
from drumbeat.porting.context import Context

_MODELS = ("model", "sequential")
_BY_POSITION = "its arguments can't be seen here, and are in another order: give them by name."
_SAME_ARGUMENTS = {"reset_states": "reset_state", "experimental_run_v2": "run"}


def _renamed(updated: cst.Call, new: str) -> cst.Call:
    func = cst.ensure_type(updated.func, cst.Attribute)
    return updated.with_changes(func=func.with_changes(attr=cst.Name(new)))


def _has_own(context: Context, method: str) -> bool:
    """A class of the script that Keras knows nothing of has such a method."""
    for found in context.scopes.all(cst.FunctionDef):
        if found.name.value != method:
            continue
        around = context.scopes.enclosing(found, cst.ClassDef)
        if around is not None and context.kinds.of_class(around) == "other":
            return True
    return False


def same_arguments(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`reset_states`, `experimental_run_v2`."""
    method = method_of(original)
    new = _SAME_ARGUMENTS.get(method[1]) if method else None
    if method is None or new is None:
        return updated
    kind = context.kinds.of(method[0])
    if kind == "other" or (kind is None and _has_own(context, method[1])):
        return updated
    if method[1] == "reset_states" and context.kinds.likely(method[0]) in _MODELS:
        if not isinstance(context.scopes.parents.get(original), cst.Expr):
            context.note(original, names.MODEL_RESET_STATES.notice)
        return updated
    return _renamed(updated, new)


def generators(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`fit_generator` and its like."""
    method = method_of(original)
    if method is None or method[1] not in names.GENERATORS:
        return updated
    kind = context.kinds.of(method[0])
    if kind == "other":
        return updated
    new = names.RENAMED[f"Model.{method[1]}"]
    call = edits.named(updated, ("", *names.GENERATORS[method[1]][1:]))
    if call is None:
        context.note(original, f"{method[1]} is {new} since Keras 3; {_BY_POSITION}")
        return updated
    call = edits.renamed(call, "generator", "x")
    return _renamed(edits.without_names(call, names.DROPPED[new][0]), new)


def predictions(context: Context, original: cst.Call, updated: cst.Call) -> Any:
    """`predict_proba`, `predict_classes`."""
    method = method_of(original)
    if method is None or method[1] not in ("predict_proba", "predict_classes"):
        return updated
    kind = context.kinds.of(method[0])
    if kind not in (None, *_MODELS) or (kind is None and not _is_about_keras(context)):
        return updated
    called = _renamed(updated, "predict")
    if method[1] == "predict_proba":
        return called if kind is not None else updated
    outputs = _outputs(context)
    if outputs is None:
        context.note(original, names.PREDICT_CLASSES.notice)
        return updated
    code = context.code(called)
    text = f'({code} > 0.5).astype("int32")' if outputs == 1 else f"{code}.argmax(axis=-1)"
    return cst.parse_expression(text)


def _is_about_keras(context: Context) -> bool:
    return any(full in ("keras", "tensorflow") for _, full in context.scopes.global_names())


def _outputs(context: Context) -> int | None:
    """Units of the last layer, where all models of the script leave no doubt: 1, or 2 for more."""
    found: set[int] = set()
    for call in context.scopes.all(cst.Call):
        name = context.name(call.func) or ""
        if name in ("keras.Sequential", "keras.models.Sequential") and call.args:
            layers = call.args[0].value
            last = layers.elements[-1].value if isinstance(layers, cst.List) else None
            found.add(_units(context, last))
    added = m.Call(func=m.Attribute(attr=m.Name("add")), args=[m.Arg()])
    calls = [call for call in context.scopes.all(cst.Call) if m.matches(call, added)]
    if calls:
        found.add(_units(context, calls[-1].args[0].value))
    return found.pop() if len(found) == 1 and found != {0} else None


def _units(context: Context, layer: cst.CSTNode | None) -> int:
    if not isinstance(layer, cst.Call) or context.name(layer.func) != "keras.layers.Dense":
        return 0
    units = edits.find(layer, "units", 0)
    if units is None or not isinstance(units.value, cst.Integer):
        return 0
    return min(units.value.evaluated_value, 2)


def optimizer_calls(context: Context, original: cst.Call, updated: cst.Call) -> Any:
    """`optimizer.get_weights()`, `apply_gradients(experimental_aggregate_gradients=)`."""
    method = method_of(original)
    if method is None or method[1] not in ("get_weights", "apply_gradients"):
        return updated
    if method[1] == "get_weights":
        if context.kinds.likely(method[0]) != "optimizer" or not _is_about_keras(context):
            return updated
        each = context.unused("variable")
        owner = cst.ensure_type(updated.func, cst.Attribute).value
        text = f"[{each}.numpy() for {each} in {context.code(owner)}.variables]"
        return cst.parse_expression(text)
    harmless = {"experimental_aggregate_gradients": "True", "skip_gradients_aggregation": "False"}
    for name, usual in harmless.items():
        given = edits.find(updated, name)
        if given is not None and context.code(given.value) == usual:
            updated = edits.without_names(updated, (name,))
        elif given is not None:
            context.note(original, f"{names.AGGREGATE.notice} {_AGGREGATE_HINT}")
    return updated


_AGGREGATE_HINT = (
    "Keras 3 sums the gradients over the workers itself: leave out the all_reduce, too."
)


def attribute(context: Context, original: cst.Attribute, updated: Any) -> Any:
    """`optimizer.lr`, `optimizer.weights`, `layer.output_shape`."""
    last = original.attr.value
    if not isinstance(updated, cst.Attribute):
        return updated
    if last in ("lr", "weights") and context.options.of(original) is None:
        if context.kinds.likely(original.value) != "optimizer" or not _is_about_keras(context):
            return updated
        new = "learning_rate" if last == "lr" else "variables"
        return updated.with_changes(attr=cst.Name(new))
    is_shape = last in ("input_shape", "output_shape") and context.scopes.is_read(original)
    if is_shape and context.kinds.of(original.value) in ("layer", "rnn"):
        if m.matches(original.value, m.Name("self")):
            return updated  # the script's own class may have such an attribute
        end = cst.Attribute(updated.value, cst.Name(last.partition("_")[0]))
        return updated.with_changes(value=end, attr=cst.Name("shape"))
    return updated


def model_reset_states(context: Context, original: cst.Expr, updated: cst.Expr) -> Any:
    """`model.reset_states()` as a statement: its layers', one by one."""
    call = original.value
    method = method_of(call) if isinstance(call, cst.Call) else None
    if method is None or method[1] != "reset_states":
        return updated
    if context.kinds.likely(method[0]) not in _MODELS:
        return updated
    layer = context.unused("layer")
    lines = (
        f"for {layer} in {context.code(method[0])}.layers:\n"
        f'    if getattr({layer}, "stateful", False):\n'
        f"        {layer}.reset_state()\n"
    )
    if context.before(original, lines):
        return cst.RemoveFromParent()
    context.note(original, names.MODEL_RESET_STATES.notice)
    return updated


def own_reset_states(
    context: Context, original: cst.FunctionDef, updated: cst.FunctionDef
) -> cst.FunctionDef:
    """A metric of the script's own that defines `reset_states`."""
    around = context.scopes.enclosing(original, cst.ClassDef)
    if original.name.value != "reset_states" or around is None:
        return updated
    if context.kinds.of_class(around) not in ("metric", "rnn"):
        return updated
    return updated.with_changes(name=cst.Name("reset_state"))


def minimize(context: Context, original: cst.Expr, updated: cst.Expr) -> Any:
    """`optimizer.minimize(loss, variables)` as a statement."""
    call = original.value
    method = method_of(call) if isinstance(call, cst.Call) else None
    if not isinstance(call, cst.Call) or method is None or method[1] != "minimize":
        return updated
    if context.kinds.likely(method[0]) != "optimizer":
        return updated
    new = cst.ensure_type(updated.value, cst.Call)
    loss, variables = edits.find(new, "loss", 0), edits.find(new, "var_list", 1)
    tape = edits.find(new, "tape", 3)
    known = {"loss", "var_list", "tape", ""}
    if loss is None or variables is None or any(edits.keyword_of(a) not in known for a in new.args):
        context.note(original, names.MINIMIZE.notice)
        return updated
    owner = context.code(cst.ensure_type(new.func, cst.Attribute).value)
    listed = _called(context, variables.value)
    if tape is not None and not is_zero(tape.value):
        recorded, value = context.code(tape.value), context.code(loss.value)
    else:
        recorded, value = context.unused("tape"), context.unused("loss_value")
        lines = (
            f"with {context.tensorflow('GradientTape')}() as {recorded}:\n"
            f"    {value} = {_called(context, loss.value, is_function=True)}\n"
        )
        if not context.before(original, lines):
            context.note(original, names.MINIMIZE.notice)
            return updated
    if not listed.replace(".", "").replace("_", "").isalnum():
        short = context.unused("variables")
        if context.before(original, f"{short} = {listed}\n"):
            listed = short
    gradients = f"{recorded}.gradient({value}, {listed})"
    text = f"{owner}.apply_gradients(zip({gradients}, {listed}))"
    return updated.with_changes(value=cst.parse_expression(text))


def _called(context: Context, node: cst.BaseExpression, *, is_function: bool = False) -> str:
    """What a function without parameters returns, or what isn't a function as it is."""
    if isinstance(node, cst.Lambda):
        return context.code(node.body)
    if is_function or context.scopes.defined(node, cst.FunctionDef) is not None:
        return f"{context.code(node)}()"
    return context.code(node)


def assigned_to_itself(context: Context, original: cst.Assign, updated: cst.Assign) -> Any:
    """`model = multi_gpu_model(model, 2)` has nothing left to do."""
    call = original.value
    if not isinstance(call, cst.Call) or context.name(call.func) != moved.MULTI_GPU:
        return updated
    target = updated.targets[0].target
    if len(updated.targets) == 1 and target.deep_equals(updated.value):
        return cst.RemoveFromParent()
    return updated


RULES = (same_arguments, generators, predictions, optimizer_calls)
