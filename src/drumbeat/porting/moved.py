"""Names that are elsewhere now: imports of them, and their uses in full."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import libcst as cst

from drumbeat import legacy_names as names
from drumbeat.porting.context import Context
from drumbeat.porting.scopes import canonical, dotted, is_from_start

# Names of TensorFlow's own that still work, but under a warning, and what stands for them.
ALIVE = {
    "tensorflow.distribute.experimental.MultiWorkerMirroredStrategy": (
        "tensorflow.distribute.MultiWorkerMirroredStrategy"
    ),
    "tensorflow.distribute.experimental.CollectiveCommunication": (
        "tensorflow.distribute.experimental.CommunicationImplementation"
    ),
}
SYNC = "keras.layers.experimental.SyncBatchNormalization"
CREATOR = "keras.utils.experimental.DatasetCreator"
MULTI_GPU = "keras.utils.multi_gpu_model"
SET_VALUE = "keras.backend.set_value"
GRAPH_REWRITES = tuple(
    f"tensorflow.{where}train.experimental.enable_mixed_precision_graph_rewrite"
    for where in ("", "compat.v1.")
)
# Functions whose calls become something else: an import of them has no use afterwards.
REDUCTION = "keras.losses.Reduction"
_CALLED_NO_MORE = {REDUCTION, CREATOR, MULTI_GPU, SET_VALUE, *GRAPH_REWRITES}

_TARGETS = {
    **{f"keras.{old}": f"keras.{new}" for old, new in names.MOVED.items()},
    SYNC: "keras.layers.BatchNormalization",
    **ALIVE,
}


def target(name: str | None) -> str | None:
    """Where the full `name` is now, if it has moved."""
    if name is None:
        return None
    module, _, last = name.rpartition(".")
    if name in _TARGETS:
        return _TARGETS[name]
    every = _TARGETS.get(f"{module}.*")
    return every.replace("*", last) if every else None


def _lost_modules() -> dict[str, str]:
    """Modules of which nothing is left, and the one that has what was in it."""
    found: dict[str, list[str]] = {}
    for old, new in _TARGETS.items():
        if old not in ALIVE:
            found.setdefault(old.rpartition(".")[0], []).append(new.rpartition(".")[0])
    return {old: os.path.commonprefix(new).rstrip(".") for old, new in found.items()}


LOST_MODULES = _lost_modules()
_REFUSED = {
    f"tensorflow.{name[3:]}" if name.startswith("tf.") else name: name for name in names.REFUSED
}


def refused(context: Context, node: cst.CSTNode, name: str | None) -> None:
    """Tells of a name that nothing takes the place of."""
    if name in _REFUSED:
        context.note(node, names.refused(_REFUSED[name]).notice)


def attribute(context: Context, original: cst.Attribute, updated: cst.Attribute) -> Any:
    """`tf.keras.optimizers.legacy.Adam` and its like."""
    around = context.scopes.parents.get(original)
    in_import = context.scopes.enclosing(original, (cst.Import, cst.ImportFrom))  # type: ignore[arg-type]
    if in_import is not None:
        return updated
    name = context.name(original)
    refused(context, original, name)
    is_whole = not (isinstance(around, cst.Attribute) and around.value is original)
    new = target(name) or (LOST_MODULES.get(name or "") if is_whole else None)
    return updated if new is None else _respelled(context, original, updated, new)


def _respelled(context: Context, original: Any, updated: Any, new: str) -> cst.BaseExpression:
    """`new`, reached from the longest part of the expression that leads there."""
    parts = {"lpar": updated.lpar, "rpar": updated.rpar}
    while isinstance(original, cst.Attribute) and isinstance(updated, cst.Attribute):
        original, updated = original.value, updated.value
        name = context.name(original) or ""
        if isinstance(original, cst.Name):
            name = LOST_MODULES.get(name, name)  # as the import of it is rewritten
        if name and (new == name or new.startswith(f"{name}.")):
            return _longer(updated, new[len(name) + 1 :]).with_changes(**parts)
    path = new.partition(".")[2]
    text = context.keras(path) if new.startswith("keras.") else context.tensorflow(path)
    return cst.parse_expression(text).with_changes(**parts)


def _longer(node: cst.BaseExpression, rest: str) -> cst.BaseExpression:
    for part in rest.split(".") if rest else ():
        node = cst.Attribute(node, cst.Name(part))
    return node


def import_from(context: Context, original: cst.ImportFrom, updated: cst.ImportFrom) -> Any:
    """`from module import a, b as c`."""
    if not is_from_start(original) or updated.module is None:
        return updated
    written = dotted(updated.module) or ""
    module = canonical(written)
    if isinstance(updated.names, cst.ImportStar):
        new = LOST_MODULES.get(module)
        has_all = f"{module}.*" in _TARGETS
        return _from(updated, written, new) if new and has_all else updated
    for each in updated.names:
        refused(context, original, canonical(f"{module}.{each.evaluated_name}"))
    kept = [each for each in updated.names if not _is_useless(context, original, module, each)]
    moved = {id(alias): _new_place(module, alias) for alias in kept}
    found = {place for place in moved.values() if place is not None}
    if not kept:
        return cst.RemoveFromParent()
    if not found:
        return updated if len(kept) == len(updated.names) else _with_names(updated, kept)
    modules = {new.rpartition(".")[0] for new in found}
    if len(modules) == 1 and None not in moved.values():
        whole = [_alias(alias, moved[id(alias)] or "") for alias in kept]
        return _with_names(_from(updated, written, modules.pop()), whole)
    lines = [
        _with_names(
            _from(updated, written, new.rpartition(".")[0]), [_alias(alias, new)]
        ).with_changes(lpar=None, rpar=None)
        for alias in kept
        if (new := moved[id(alias)]) is not None
    ]
    rest = [alias for alias in kept if moved[id(alias)] is None]
    if rest and all(context.before(original, context.code(line)) for line in lines):
        return _with_names(updated, rest)
    return cst.FlattenSentinel([*lines, _with_names(updated, rest)] if rest else lines)


def _new_place(module: str, alias: cst.ImportAlias) -> str | None:
    name = f"{module}.{alias.evaluated_name}"
    return target(name) or LOST_MODULES.get(name)


def _is_useless(
    context: Context, original: cst.ImportFrom, module: str, alias: cst.ImportAlias
) -> bool:
    """It is of a function that the script called before it was ported."""
    if canonical(f"{module}.{alias.evaluated_name}") not in _CALLED_NO_MORE:
        return False
    local = alias.evaluated_alias or alias.evaluated_name
    return context.scopes.is_unused(original, local)


def _from(node: cst.ImportFrom, written: str, new: str) -> cst.ImportFrom:
    """The import with another module, called as the script calls Keras."""
    is_in_tensorflow = written.startswith("tensorflow.") and new.startswith("keras")
    text = f"tensorflow.{new}" if is_in_tensorflow else new
    module: Any = cst.parse_expression(text)
    return node.with_changes(module=module)


def _with_names(node: cst.ImportFrom, aliases: Sequence[cst.ImportAlias]) -> cst.ImportFrom:
    names_before = node.names if isinstance(node.names, Sequence) else ()
    end = names_before[-1].comma if names_before else cst.MaybeSentinel.DEFAULT
    last = aliases[-1].with_changes(comma=end if node.lpar else cst.MaybeSentinel.DEFAULT)
    return node.with_changes(names=[*aliases[:-1], last])


def _alias(alias: cst.ImportAlias, new: str) -> cst.ImportAlias:
    """Another thing under the name that the script knows it by."""
    local = alias.evaluated_alias or alias.evaluated_name
    last = new.rpartition(".")[2]
    as_name = None if last == local else cst.AsName(cst.Name(local))
    return alias.with_changes(name=cst.Name(last), asname=as_name)


def import_modules(context: Context, original: cst.Import, updated: cst.Import) -> cst.Import:
    """`import module as name`."""
    del context, original
    aliases = []
    for alias in updated.names:
        written = alias.evaluated_name
        new = LOST_MODULES.get(canonical(written))
        if new is not None:
            text = f"tensorflow.{new}" if written.startswith("tensorflow.") else new
            alias = alias.with_changes(name=cst.parse_expression(text))
        aliases.append(alias)
    return updated.with_changes(names=aliases)
