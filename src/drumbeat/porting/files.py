"""What a script saves and loads: files get the endings that Keras 3 asks for.

What the script reads later gets the ending that it was written with, so both must be seen: a
path that another script writes is left to a human.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import libcst as cst
from libcst import matchers as m

from drumbeat import legacy_names as names
from drumbeat.porting import edits, paths
from drumbeat.porting.calls import method_of, name_of
from drumbeat.porting.context import Context
from drumbeat.porting.options import text_of
from drumbeat.porting.paths import Paths

MODEL, WEIGHTS = ".keras", ".weights.h5"
_OLD_H5 = (".h5", ".hdf5")
_SAVES = ("keras.models.save_model", "keras.saving.save_model")
_LOADS = ("keras.models.load_model", "keras.saving.load_model")
_CHECKPOINT = "keras.callbacks.ModelCheckpoint"
_LATEST = "tensorflow.train.latest_checkpoint"
# Only the SavedModel format knew them.
_OF_FOLDERS = ("save_format", "signatures", "options", "save_traces")
# Calls that get a path and look at nothing in it.
_HARMLESS = {
    *("dirname", "basename", "join", "abspath", "makedirs", "mkdir", "Path", "str", "rmtree"),
    *("print", "info", "debug", "format", "export", "save", "save_model", "load_model"),
    *("save_weights", "load_weights", "ModelCheckpoint", "add_argument"),
}
_LOOKS = ("exists", "isfile", "lexists", "getsize", "remove", "unlink")
_MAKERS = ("makedirs", "mkdir", "mkdtemp", "TemporaryDirectory")


@dataclass(frozen=True, kw_only=True)
class Saved:
    """One place where the script writes a model or its weights.

    Attributes:
        template: Where to.
        old: The ending that the path has, or "".
        new: The one that it needs; the same where nothing is to be done.
        known: Whether the path's ending can be seen.
        weights: Weights alone.
        by_callback: ModelCheckpoint does it.
    """

    template: str
    old: str
    new: str
    known: bool
    weights: bool
    by_callback: bool = False


class Files:
    """All that the script writes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.paths = Paths(context)
        self._calls = context.scopes.all(cst.Call)
        self.saved = [s for call in self._calls if (s := self.saved_by(call)) is not None]

    def saved_by(self, call: cst.Call) -> Saved | None:
        """What `call` writes."""
        context = self._context
        name, method = name_of(context, call), method_of(call)
        if name == _CHECKPOINT:
            saved = self._by_checkpoint(call)
            return saved and replace(saved, by_callback=True)
        if name in _SAVES:
            return self._model(call, edits.find(call, "filepath", 1))
        if method is None or method[1] not in ("save", "save_weights"):
            return None
        if context.kinds.likely(method[0]) not in ("model", "sequential"):
            return None
        path = edits.find(call, "filepath", 0)
        return self._model(call, path) if method[1] == "save" else self._weights(call, path)

    def _model(self, call: cst.Call, path: cst.Arg | None) -> Saved | None:
        wanted = edits.find(call, "save_format")
        is_h5 = wanted is not None and text_of(wanted.value) == "h5"
        return self._saved(path, ".h5" if is_h5 else MODEL, ok=(MODEL, *_OLD_H5))

    def _weights(self, call: cst.Call, path: cst.Arg | None) -> Saved | None:
        del call
        return self._saved(path, WEIGHTS, ok=(WEIGHTS,), weights=True)

    def _by_checkpoint(self, call: cst.Call) -> Saved | None:
        path = edits.find(call, "filepath", 0)
        only = edits.find(call, "save_weights_only", 4)
        if only is not None and not m.matches(only.value, m.Name("True") | m.Name("False")):
            return None
        if only is not None and m.matches(only.value, m.Name("True")):
            return self._saved(path, WEIGHTS, ok=(WEIGHTS,), weights=True)
        return self._saved(path, MODEL, ok=(MODEL, ".h5", WEIGHTS))

    def _saved(
        self, path: cst.Arg | None, new: str, *, ok: tuple[str, ...], weights: bool = False
    ) -> Saved | None:
        if path is None:
            return None
        tail = self.paths.tail(path.value)
        old = paths.ending(tail or "")
        return Saved(
            template=self.paths.template(path.value),
            old=old,
            new=old if old in ok else new,
            known=tail is not None,
            weights=weights,
        )

    def written(self, path: cst.BaseExpression) -> Saved | None:
        """What the script has written to `path`, from which it reads."""
        template = self.paths.template(path)
        old = paths.ending(template)
        fitting = [
            s for s in self.saved if s.old == old and paths.may_be_same(s.template, template)
        ]
        same = [s for s in fitting if s.template == template]
        return next(iter(same or fitting), None)

    def is_read_as_folder(self, saved: Saved) -> bool:
        """Something else than the script's `load_model` may look at what it saves there."""
        context = self._context
        loads = [call for call in self._calls if name_of(context, call) in _LOADS]
        paths_read = [arg.value for call in loads if (arg := edits.find(call, "filepath", 0))]
        read = (self.paths.template(path) for path in paths_read)
        if not any(paths.may_be_same(saved.template, each) for each in read):
            return True
        return any(
            self.paths.template(arg.value) == saved.template
            for call in self._calls
            if not self._is_harmless(call)
            for arg in call.args
        )

    def _is_harmless(self, call: cst.Call) -> bool:
        last = self._context.code(call.func).rpartition(".")[2]
        own = self._context.scopes.defined(call.func, cst.FunctionDef)
        return own is not None or last in _HARMLESS

    def makes_folders(self) -> bool:
        """The script makes the folders that it writes to itself."""
        return any(
            self._context.code(call.func).rpartition(".")[2] in _MAKERS for call in self._calls
        )


def _files(context: Context) -> Files:
    if context.files is None:
        context.files = Files(context)
    return context.files


def _with_ending(
    context: Context, call: cst.Call, arg: cst.Arg, saved: Saved, before: cst.BaseExpression
) -> cst.Call:
    strip = _files(context).paths.template(before).endswith("/")
    path = paths.lengthened(context, arg.value, saved.old, saved.new, strip=strip)
    return edits.with_value(call, arg, path)


def saving(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`model.save`, `save_model`, `save_weights`."""
    name, method = name_of(context, original), method_of(original)
    if name == _CHECKPOINT or (saved := _files(context).saved_by(original)) is None:
        return updated
    position = 1 if name in _SAVES else 0
    before = edits.find(original, "filepath", position)
    if before is not None and not saved.known:
        context.note(original, _unseen(context, before, _kind_of(saved)))
        return updated
    dropped = ("save_format",) if saved.old == saved.new else _OF_FOLDERS
    updated = edits.without_names(updated, dropped)
    path = edits.find(updated, "filepath", position)
    if before is None or path is None or saved.old == saved.new:
        return updated
    changed = _with_ending(context, updated, path, saved, before.value)
    new_path = edits.find(changed, "filepath", position)
    if not saved.weights and saved.new == MODEL and _files(context).is_read_as_folder(saved):
        model = method[0] if method and position == 0 else original.args[0].value
        line = f"{context.code(model)}.export({context.code(path.value)})\n"
        if context.before(original, line):
            return changed
        context.note(original, f"{names.SAVE_FOLDER.notice} Only the former was written here.")
    if new_path is not None:
        _make_folder(context, original, saved, new_path.value)
    return changed


def _unseen(context: Context, path: cst.Arg, old: names.Old) -> str:
    wanted = WEIGHTS if old is names.SAVE_WEIGHTS else MODEL
    return (
        f"The end of {context.code(path.value)} can't be seen here: since Keras 3 it must be "
        f"{wanted}{'' if wanted == WEIGHTS else ' or .h5'}."
    )


def _make_folder(context: Context, node: cst.Call, saved: Saved, path: cst.BaseExpression) -> None:
    """TensorFlow made the folders that a path is in; Keras 3 does not."""
    place = paths.folder(saved.template)
    if place in ("", ".", "/tmp") or "://" in place or _files(context).makes_folders():  # noqa: S108
        return
    known = "\x00" not in place and "{" not in place and "%" not in place
    os_module = context.module("os")
    code = (
        repr(place).replace("'", '"')
        if known
        else f"{os_module}.path.dirname({context.code(path)})"
    )
    context.before(node, f"{os_module}.makedirs({code}, exist_ok=True)\n")


def loading(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`load_model`, `load_weights`."""
    method = method_of(original)
    is_model = name_of(context, original) in _LOADS
    is_weights = method is not None and method[1] == "load_weights"
    before, path = (edits.find(call, "filepath", 0) for call in (original, updated))
    if not (is_model or is_weights) or before is None or path is None:
        return updated
    if is_weights and _is_latest(context, before.value):
        if not _writes_weights(context):
            return updated
        changed = paths.lengthened(context, path.value, "", WEIGHTS, strip=False)
        return edits.with_value(updated, path, changed)
    saved = _files(context).written(before.value)
    if saved is None:
        tail = _files(context).paths.tail(before.value)
        if tail is not None and not paths.ending(tail):
            old = names.LOAD_FOLDER if is_model else names.LOAD_WEIGHTS
            context.note(original, f"{old.notice} What writes it can't be seen here.")
        return updated
    if saved.old == saved.new or not saved.known:
        return updated
    return _with_ending(context, updated, path, saved, before.value)


def _writes_weights(context: Context) -> bool:
    return any(saved.weights for saved in _files(context).saved)


def _is_latest(context: Context, node: cst.BaseExpression) -> bool:
    """It comes from `tf.train.latest_checkpoint`."""
    values = context.scopes.values(node) if isinstance(node, cst.Name) else [node]
    return any(
        isinstance(value, cst.Call) and context.name(value.func) == _LATEST for value in values
    )


def looking(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`os.path.exists(path)` and the like, of a file that has another ending now."""
    last = context.code(original.func).rpartition(".")[2]
    if last not in _LOOKS or len(original.args) != 1:
        return updated
    template = _files(context).paths.template(original.args[0].value)
    is_index = template.endswith(".index")
    before = template.removesuffix(".index")
    for saved in _files(context).saved:
        changed = saved.known and saved.old != saved.new and saved.template == before
        # Of a folder that is exported as well there still is one.
        if changed and (saved.by_callback or (saved.weights and (saved.old or is_index))):
            old = ".index" if is_index else saved.old
            path = paths.lengthened(context, updated.args[0].value, old, saved.new, strip=False)
            return edits.with_value(updated, updated.args[0], path)
    return updated


def latest(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`tf.train.latest_checkpoint(folder)` for `load_weights`."""
    if context.name(original.func) != _LATEST:
        return updated
    reader = m.Call(func=m.Attribute(attr=m.Name("load_weights")), args=[m.Arg()])
    calls = context.scopes.all(cst.Call)
    args = [call.args[0].value for call in calls if m.matches(call, reader)]
    is_read = any(arg is original or _comes_from(context, arg, original) for arg in args)
    if not is_read:
        return updated
    if not _writes_weights(context):
        context.note(original, f"{names.LOAD_WEIGHTS.notice} What writes it can't be seen here.")
        return updated
    context.helpers["newest_weights"] = _NEWEST.format(
        glob=context.module("glob"), os=context.module("os")
    )
    return updated.with_changes(func=cst.Name("newest_weights"))


def _comes_from(context: Context, node: cst.BaseExpression, call: cst.Call) -> bool:
    return isinstance(node, cst.Name) and any(each is call for each in context.scopes.values(node))


_NEWEST = '''def newest_weights(folder):
    """The newest file of weights in the folder, without its ending, or None."""
    found = {glob}.glob({os}.path.join(folder, "*.weights.h5"))
    newest = max(found, key={os}.path.getmtime, default=None)
    return newest and newest.removesuffix(".weights.h5")
'''
_EVERY_NTH = '''class EveryNthEpoch({checkpoint}):
    """Saves after every `period`-th epoch."""

    def __init__(self, *args, period, **kwargs):
        super().__init__(*args, **kwargs)
        self.period = period

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.period == 0:
            super().on_epoch_end(epoch, logs)
'''


def checkpoint(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`ModelCheckpoint`."""
    if name_of(context, original) != _CHECKPOINT:
        return updated
    updated = edits.without_names(updated, ("save_format", "options"))
    saved = _files(context).saved_by(original)
    before, path = (edits.find(call, "filepath", 0) for call in (original, updated))
    if saved is None and before is not None:
        context.note(original, names.CHECKPOINT_PATH.notice)
    elif saved is not None and before is not None and path is not None:
        if not saved.known:
            context.note(original, _unseen(context, before, _kind_of(saved)))
        elif saved.old != saved.new:
            updated = _with_ending(context, updated, path, saved, before.value)
    period = edits.find(updated, "period")
    if period is None:
        return updated
    if m.matches(period.value, m.Integer("1")):
        return edits.without_names(updated, ("period",))
    context.helpers["EveryNthEpoch"] = _EVERY_NTH.format(
        checkpoint=context.keras("callbacks.ModelCheckpoint")
    )
    return updated.with_changes(func=cst.Name("EveryNthEpoch"))


def _kind_of(saved: Saved) -> names.Old:
    return names.SAVE_WEIGHTS if saved.weights else names.SAVE_FOLDER


def nothing_to_expect(context: Context, original: cst.Call, updated: cst.Call) -> Any:
    """`load_weights(path).expect_partial()`: Keras 3's load_weights returns nothing."""
    method, inner = method_of(original), method_of_value(original)
    loads = inner is not None and inner[1] == "load_weights"
    if not loads or method is None or method[1] not in _EXPECTED:
        return updated
    return cst.ensure_type(updated.func, cst.Attribute).value


def method_of_value(call: cst.Call) -> tuple[cst.BaseExpression, str] | None:
    """The method whose result `call` calls a method of."""
    method = method_of(call)
    inner = method[0] if method else None
    return method_of(inner) if isinstance(inner, cst.Call) else None


_EXPECTED = ("expect_partial", "assert_consumed", "assert_existing_objects_matched")

RULES = (nothing_to_expect, saving, loading, looking, latest, checkpoint)
