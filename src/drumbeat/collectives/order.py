"""The one binary tree in which addends are summed, wherever they live. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Range = tuple[int, int]


def split(node: Range) -> tuple[Range, Range]:
    """The two subtrees of a node, a half-open range of at least two leaves.

    The left one has the largest power of two of leaves that leaves some for the right.
    """
    first, end = node
    middle = first + (1 << (end - first - 1).bit_length() - 1)
    return (first, middle), (middle, end)


def subtrees(leaves: Range, node: Range) -> list[Range]:
    """The largest subtrees of `node` that lie within `leaves`, from left to right."""
    if node[0] >= leaves[1] or node[1] <= leaves[0]:
        return []
    if leaves[0] <= node[0] and node[1] <= leaves[1]:
        return [node]
    return [found for half in split(node) for found in subtrees(leaves, half)]


def fold(node: Range, known: Callable[[Range], Any | None], add: Callable[[Any, Any], Any]) -> Any:
    """The value of `node`: known, or the sum of its two halves."""
    value = known(node)
    if value is not None:
        return value
    left, right = split(node)
    return add(fold(left, known, add), fold(right, known, add))
