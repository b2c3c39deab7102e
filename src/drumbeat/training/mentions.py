"""Whether the code that an object may run mentions a name, such as "stop_training".

Nothing is run: functions are looked through for the names and constants in them, and so
are the functions, classes and values that they name in turn, as far as these can be found.
What can't be looked into for sure (a module that is yet to be imported, very many objects)
counts as a mention. Python can always hide a name, as in `getattr(model, "stop" + rest)`.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import inspect
import sys
import types
from collections import deque
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any

MOST_OBJECTS = 20_000
"""So many take about 30 ms; more are not looked through."""

# Packages whose functions set nothing of a model's, but for what Keras's callbacks do.
_HARMLESS = frozenset(sys.stdlib_module_names - {"__main__"}) | {
    "absl",
    "drumbeat",
    "h5py",
    "keras",
    "numpy",
    "pandas",
    "tensorflow",
    "tf_keras",
}
_CALLBACKS = ("keras.src.callbacks", "tf_keras.src.callbacks")


def mentions(roots: Iterable[Any], word: str) -> bool:
    """Whether `word` is in a name or a text of what `roots` are, hold or may call.

    Args:
        roots: Any objects.
        word: Also as a part of a longer name or text.
    """
    search = _Search(word)
    return any(search.finds(root) for root in roots)


class _Search:
    """One search, over objects that lead to others."""

    def __init__(self, word: str) -> None:
        self._word = word
        # Those seen are kept: a number that is free again may become another object's.
        self._seen: dict[int, Any] = {}
        self._dull: dict[type, bool] = {}

    def finds(self, root: Any) -> bool:
        """Whether `root`, or what it leads to, has the word."""
        waiting = deque([root])
        while waiting:
            each = waiting.popleft()
            if isinstance(each, str):
                if self._word in each:
                    return True
                continue
            if id(each) in self._seen or self._is_dull(type(each)):
                continue
            self._seen[id(each)] = each
            if each is _UNKNOWN or len(self._seen) > MOST_OBJECTS:
                return True
            try:
                waiting.extend(_leads_to(each))
            except RuntimeError:  # another thread changes it meanwhile
                return True
        return False

    def _is_dull(self, kind: type) -> bool:
        """Whether objects of `kind` lead nowhere, such as numbers, arrays and layers."""
        if kind not in self._dull:
            self._dull[kind] = not issubclass(kind, _LEADING) and not _is_of_interest(kind)
        return self._dull[kind]


_UNKNOWN = SimpleNamespace()
"""Stands for what can't be looked into."""

_CONTAINERS = (list, tuple, set, frozenset, deque)
_MAPPINGS = (dict, types.MappingProxyType)
_LEADING = (
    *_CONTAINERS,
    *_MAPPINGS,
    SimpleNamespace,
    classmethod,
    functools.partial,
    property,
    staticmethod,
    type,
    type(functools.lru_cache(lambda: None)),
    types.CodeType,
    types.FunctionType,
    types.MethodType,
)


def _leads_to(each: Any) -> Iterator[Any]:
    """What has to be looked at as well; texts are names and constants."""
    if isinstance(each, types.CodeType):
        # Among the constants is the code of functions within it.
        yield from (*each.co_names, *each.co_consts, *each.co_freevars)
    elif isinstance(each, types.FunctionType):
        if not _is_harmless(each.__module__):
            yield from _in_function(each)
    elif isinstance(each, types.MethodType):
        yield from (each.__func__, each.__self__)
    elif isinstance(each, functools.partial):
        yield from (each.func, each.args, each.keywords)
    elif isinstance(each, property):
        yield from (each.fget, each.fset, each.fdel)
    elif isinstance(each, type):
        yield from _in_class(each)
    else:
        if isinstance(each, _MAPPINGS):
            yield from (part for pair in each.items() for part in pair)
        elif isinstance(each, _CONTAINERS):
            yield from each
        yield from _in_instance(each)


def _in_function(function: types.FunctionType) -> Iterator[Any]:
    yield function.__code__
    yield from (function.__defaults__, function.__kwdefaults__, vars(function))
    for cell in function.__closure__ or ():
        with contextlib.suppress(ValueError):  # not filled yet
            yield cell.cell_contents
    for code in _codes(function.__code__):
        yield from _named(code, function)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from _codes(const)


def _named(code: types.CodeType, function: types.FunctionType) -> Iterator[Any]:
    """What the names in `code` stand for, as far as modules and classes lead to it."""
    scope = function.__globals__
    found = [scope[name] for name in code.co_names if name in scope]
    for name in _imports(code):
        module = sys.modules.get(name) or sys.modules.get(f"{scope.get('__package__')}.{name}")
        if module is not None:
            found.append(module)
        elif not _is_harmless(name):
            yield _UNKNOWN
    waiting, seen = deque(found), set()
    while waiting:
        each = waiting.popleft()
        yield each
        if isinstance(each, types.ModuleType) and id(each) not in seen:
            seen.add(id(each))
            own = vars(each)
            waiting.extend(own[name] for name in code.co_names if name in own)


def _imports(code: types.CodeType) -> Iterator[str]:
    """Names of modules that are imported within `code`."""
    for instruction in dis.get_instructions(code):
        if instruction.opname == "IMPORT_NAME" and instruction.argval:
            yield instruction.argval


def _in_class(cls: type) -> Iterator[Any]:
    for base in cls.__mro__:
        of_keras = base.__module__.startswith(_CALLBACKS)
        if of_keras:
            # Keras's own functions are looked through, but not what they call in turn.
            yield from (f.__code__ for f in vars(base).values() if hasattr(f, "__code__"))
        elif not _is_harmless(base.__module__):
            own = vars(base)
            yield from (name for name in own if not name.startswith("__"))
            yield from (value for name, value in own.items() if name not in _OF_ANY_CLASS)


_OF_ANY_CLASS = ("__dict__", "__weakref__", "__module__", "__doc__")


def _in_instance(each: Any) -> Iterator[Any]:
    kind = type(each)
    if _is_of_interest(kind):
        yield kind
    yield getattr(each, "__wrapped__", None) if kind in _LEADING else None
    yield vars(each) if hasattr(each, "__dict__") else None
    for base in inspect.getmro(kind):
        slots: Any = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            yield getattr(each, name, None)


def _is_of_interest(kind: type) -> bool:
    return any(
        base.__module__.startswith(_CALLBACKS) or not _is_harmless(base.__module__)
        for base in kind.__mro__
    )


def _is_harmless(module: Any) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _HARMLESS
