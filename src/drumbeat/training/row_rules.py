"""Which operations of TensorFlow keep the rows of a batch apart, see `rowwise`.

A rule gets an operation, its inputs, and which of them are the same whatever the batch. The
others have rows along their first axes, and ranks are known. It says whether each row of the
result is of the same rows of these alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Rule = Callable[[Any, list[Any], list[bool]], bool]


def _elementwise(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    rank = operation.outputs[0].shape.rank
    for each, is_fixed in zip(given, fixed, strict=True):
        # What has fewer axes, or one entry along the first, is the same for each row.
        if not is_fixed and each.shape.rank != rank:
            return False
        if is_fixed and each.shape.rank == rank and each.shape[0] != 1:
            return False
    return True


def axes_of(operation: Any) -> list[int]:
    """The axes that a reduction goes over; none where they aren't known."""
    values, axes = operation.inputs
    axes, rank = tf.get_static_value(axes), values.shape.rank
    return [] if axes is None or not rank else (np.ravel(axes) % rank).tolist()


def _is_elsewhere(axes: Any, rank: int) -> bool:
    """Whether axes are known, and the first isn't among them."""
    axes = tf.get_static_value(axes)
    return axes is not None and rank > 0 and 0 not in np.ravel(axes) % rank


def _along(number: int, *, new: int = 0) -> Rule:
    """Works along the axes in input `number`, of a tensor that has or gets `new` more."""

    def keeps(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
        del operation
        data = given[1] if number == 0 else given[0]
        if fixed[1 if number == 0 else 0]:
            return False
        return _is_elsewhere(given[number], data.shape.rank + new)

    return keeps


def _by_attribute(name: str, *, new: int = 0) -> Rule:
    """Works along the axis that an attribute names; all inputs have rows, and as many axes."""

    def keeps(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
        axes = operation.get_attr(name)
        ranks = {each.shape.rank for each in given}
        return not any(fixed) and len(ranks) == 1 and 0 not in _modulo(axes, ranks.pop() + new)

    return keeps


def _modulo(axes: Any, rank: int) -> list[int]:
    axes = axes if isinstance(axes, (list, tuple)) else [axes]
    return [int(axis) % rank for axis in axes] or [0]


def _of_axes(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del operation
    return not fixed[0] and all(fixed[1:]) and given[0].shape.rank > 1


def _of_matrices(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    return _of_axes(operation, given, fixed) and given[0].shape.rank > 2


def _pairs(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del operation
    return not any(fixed) and given[0].shape.rank == 2


def _concat(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del operation
    return not any(fixed[:-1]) and _is_elsewhere(given[-1], given[0].shape.rank)


def _matmul(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del given
    return fixed == [False, True] and not operation.get_attr("transpose_a")


def _batch_matmul(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    return operation.outputs[0].shape.rank > 2 and _elementwise(operation, given, fixed)


def _einsum(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del given
    terms, result = operation.get_attr("equation").decode().split("->")
    row = result[:1]
    for term, is_fixed in zip(terms.split(","), fixed, strict=True):
        if (row in term) if is_fixed else not term.startswith(row):
            return False
    return row.isalpha()


def _transpose(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del operation
    order = tf.get_static_value(given[1])
    return not fixed[0] and order is not None and order[0] == 0


def _strided_slice(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    masks = ("begin", "end", "ellipsis", "new_axis", "shrink_axis")
    whole = {name: operation.get_attr(f"{name}_mask") & 1 for name in masks}
    begin, step = tf.get_static_value(given[1]), tf.get_static_value(given[3])
    if fixed[0] or not all(fixed[1:]) or begin is None or step is None:
        return False
    if whole["ellipsis"]:
        new = operation.get_attr("new_axis_mask").bit_count()
        return len(begin) - 1 - new < given[0].shape.rank
    is_sliced = whole["new_axis"] or whole["shrink_axis"]
    return not is_sliced and bool(whole["begin"] and whole["end"]) and step[0] == 1


def _slice(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del operation
    begin, size = map(tf.get_static_value, given[1:])
    if fixed[0] or begin is None or size is None:
        return False
    return begin[0] == 0 and size[0] == -1


def _pad(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del operation
    around = tf.get_static_value(given[1])
    return not fixed[0] and all(fixed[1:]) and around is not None and not np.any(around[0])


def _tile(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del operation
    times = tf.get_static_value(given[1])
    return not fixed[0] and times is not None and times[0] == 1


def _one_hot(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del given
    return fixed == [False, True, True, True] and operation.get_attr("axis") != 0


def _gather(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    params, _, axis = given
    batch_dims = operation.get_attr("batch_dims")
    if fixed[0]:
        return batch_dims == 0 and tf.get_static_value(axis) == 0
    return _is_elsewhere(axis, params.shape.rank) and fixed[1] == (batch_dims == 0)


def _look_up(operation: Any, given: list[Any], fixed: list[bool]) -> bool:
    del operation, given
    return fixed == [True, False]


_OF_NUMBERS = """
    Abs Acos Acosh Add AddN AddV2 Asin Asinh Atan Atan2 Atanh Cast Ceil CheckNumerics
    ClipByValue Cos Cosh Digamma Div DivNoNan Elu Equal Erf Erfc Exp Expm1 Floor FloorDiv
    FloorMod Greater GreaterEqual Identity Inv IsFinite IsInf IsNan LeakyRelu Less LessEqual
    Lgamma Log Log1p LogicalAnd LogicalNot LogicalOr Maximum Minimum Mod Mul MulNoNan Neg
    NotEqual OnesLike Pow PreventGradient RealDiv Reciprocal Relu Relu6 Rint Round Rsqrt Select
    SelectV2 Selu Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Square SquaredDifference
    StopGradient Sub Tan Tanh TruncateDiv TruncateMod Xdivy Xlog1py Xlogy ZerosLike
"""
RULES: dict[str, Rule] = {
    **dict.fromkeys(_OF_NUMBERS.split(), _elementwise),
    **dict.fromkeys(("Sum", "Mean", "Prod", "Max", "Min", "All", "Any"), _along(1)),
    **dict.fromkeys(("EuclideanNorm", "ArgMax", "ArgMin", "Cumsum", "Cumprod"), _along(1)),
    **dict.fromkeys(("ReverseV2", "Reverse"), _along(1)),
    **dict.fromkeys(("Softmax", "LogSoftmax", "TopKV2", "BiasAdd"), _of_axes),
    **dict.fromkeys(("Conv2D", "DepthwiseConv2dNative", "MaxPool", "AvgPool"), _of_axes),
    "MatrixDiagPartV3": _of_matrices,
    "SoftmaxCrossEntropyWithLogits": _pairs,
    "SparseSoftmaxCrossEntropyWithLogits": _pairs,
    "ExpandDims": _along(1, new=1),
    "Squeeze": _by_attribute("squeeze_dims"),
    "Pack": _by_attribute("axis", new=1),
    "Unpack": _by_attribute("axis"),
    "Split": _along(0),
    "SplitV": _along(2),
    "ConcatV2": _concat,
    "MatMul": _matmul,
    **dict.fromkeys(("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _batch_matmul),
    "Einsum": _einsum,
    "Transpose": _transpose,
    "StridedSlice": _strided_slice,
    "Slice": _slice,
    **dict.fromkeys(("Pad", "PadV2", "MirrorPad"), _pad),
    "Tile": _tile,
    "OneHot": _one_hot,
    "GatherV2": _gather,
    **dict.fromkeys(("ResourceGather", "GatherNd"), _look_up),
}
"""By type of operation; those that aren't here may mix rows."""
