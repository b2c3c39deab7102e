"""Changes to the arguments of a call that keep its layout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import libcst as cst

_SPACE = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))


def keyword_of(arg: cst.Arg) -> str:
    """The argument's name, or "" for one by position."""
    return arg.keyword.value if arg.keyword else ""


def find(call: cst.Call, name: str, position: int | None = None) -> cst.Arg | None:
    """The argument called `name`, or the one at `position` where all before it are plain."""
    for number, arg in enumerate(call.args):
        if keyword_of(arg) == name or (number == position and not arg.keyword and not arg.star):
            return arg
        if arg.star == "*":
            position = None
    return None


def without(call: cst.Call, drop: Callable[[cst.Arg], bool]) -> cst.Call:
    """The call without some arguments."""
    kept = [arg for arg in call.args if not drop(arg)]
    if len(kept) == len(call.args):
        return call
    if not kept:
        return call.with_changes(args=(), whitespace_before_args=cst.SimpleWhitespace(""))
    last = call.args[-1]
    kept[-1] = kept[-1].with_changes(
        comma=last.comma, whitespace_after_arg=last.whitespace_after_arg
    )
    return call.with_changes(args=kept)


def without_names(call: cst.Call, names: Sequence[str]) -> cst.Call:
    """The call without the keyword arguments `names`."""
    return without(call, lambda arg: keyword_of(arg) in names)


def renamed(call: cst.Call, old: str, new: str) -> cst.Call:
    """The call with a keyword argument under another name."""
    return replaced(call, lambda arg: keyword_of(arg) == old, lambda arg: _called(arg, new))


def _called(arg: cst.Arg, name: str) -> cst.Arg:
    return arg.with_changes(keyword=cst.Name(name), equal=_equal(arg))


def _equal(arg: cst.Arg) -> cst.AssignEqual:
    if isinstance(arg.equal, cst.AssignEqual):
        return arg.equal
    none = cst.SimpleWhitespace("")
    return cst.AssignEqual(none, none)


def replaced(
    call: cst.Call, which: Callable[[cst.Arg], bool], by: Callable[[cst.Arg], cst.Arg]
) -> cst.Call:
    """The call with some arguments changed."""
    return call.with_changes(args=[by(arg) if which(arg) else arg for arg in call.args])


def with_value(call: cst.Call, which: cst.Arg, value: cst.BaseExpression) -> cst.Call:
    """The call with another value for the argument `which`, one of its own."""
    return replaced(call, lambda arg: arg is which, lambda arg: arg.with_changes(value=value))


def named(call: cst.Call, names: Sequence[str]) -> cst.Call | None:
    """The call with the arguments by position called `names`, "" for one that stays so.

    None where it can't be told which they are.
    """
    args = []
    for number, arg in enumerate(call.args):
        if arg.star == "*":
            return None
        is_plain = not arg.keyword and not arg.star
        if is_plain and number >= len(names):
            return None
        args.append(_called(arg, names[number]) if is_plain and names[number] else arg)
    return call.with_changes(args=args)


def with_keyword(call: cst.Call, name: str, text: str) -> cst.Call:
    """The call with one more argument, or with another value for it."""
    value = cst.parse_expression(text)
    present = find(call, name)
    if present is not None:
        return with_value(call, present, value)
    new = _called(cst.Arg(value), name)
    args = list(call.args)
    if args and args[-1].star == "**":
        between = _comma_between(call)
        return call.with_changes(args=[*args[:-1], new.with_changes(comma=between), args[-1]])
    if args:
        end = args[-1].comma
        after = args[-1].whitespace_after_arg
        args[-1] = args[-1].with_changes(
            comma=_comma_between(call), whitespace_after_arg=cst.SimpleWhitespace("")
        )
        new = new.with_changes(comma=end, whitespace_after_arg=after)
    return call.with_changes(args=[*args, new])


def _comma_between(call: cst.Call) -> cst.Comma:
    first = call.args[0].comma
    return first if isinstance(first, cst.Comma) and len(call.args) > 1 else _SPACE
