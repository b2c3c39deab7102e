"""`get_file` and `load_data` with a full path."""

from __future__ import annotations

import libcst as cst

from drumbeat.porting import edits, paths
from drumbeat.porting.calls import name_of
from drumbeat.porting.context import Context
from drumbeat.porting.options import text_of
from drumbeat.porting.paths import Paths

_LOAD_DATA = (
    "load_data with a full path is gone since Keras 3. Give the file's name only: it is looked "
    "for in ~/.keras/datasets, or in datasets of the folder that KERAS_HOME names."
)


def downloads(context: Context, original: cst.Call, updated: cst.Call) -> cst.Call:
    """`get_file` and `load_data` with a full path."""
    name = name_of(context, original)
    is_data = name.startswith("keras.datasets.") and name.endswith(".load_data")
    argument = "path" if is_data else "fname"
    before, given = (edits.find(call, argument, 0) for call in (original, updated))
    if name != "keras.utils.get_file" and not is_data or before is None or given is None:
        return updated
    template = Paths(context).template(before.value)
    if not paths.is_full(template):
        return updated
    if is_data:
        context.note(original, _LOAD_DATA)
        return updated
    last = template.rpartition("/")[2]
    code, os_module = context.code(given.value), context.module("os")
    where = f"{os_module}.path.dirname({code})"
    name_code = f"{os_module}.path.basename({code})"
    if text_of(given.value) is not None:
        where, name_code = f'"{paths.folder(template)}"', f'"{last}"'
    updated = edits.with_value(updated, given, cst.parse_expression(name_code))
    updated = edits.with_keyword(updated, "cache_dir", where)
    return edits.with_keyword(updated, "cache_subdir", '""')


RULES = (downloads,)
