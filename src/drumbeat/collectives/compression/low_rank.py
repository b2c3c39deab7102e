"""powersgd: matrices as products of two thin ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.compression.method import Method
from drumbeat.collectives.compression.pieces import PIECE_ELEMENTS
from drumbeat.collectives.compression.residuals import Group

_NAME = "compressed gradients"
_SEED = 1909
# A column is taken for dependent on those before it where so little is left of it.
_DEPENDENT = 1e-6


class LowRank(Method):
    """PowerSGD (Vogels, Karimireddy, Jaggi 2019), algorithms 1 and 2.

    A gradient of several dimensions is taken as a matrix of as many columns as its last
    dimension has. One step of power iteration from the factor of the step before finds the
    sum's best low-rank approximation, so that two small all-reduces carry it. Where its
    factors are not less than half of the matrix, it travels as it is, as vectors do.

    All workers find the factors' bases by the same operations on the same bytes. These
    include sums in an order that a CPU's linear algebra library chooses: workers must have
    the same kind of processor to come to the same bits.

    Args:
        communicator: Of the workers.
        group: Of the gradients.
        rank: Columns of a factor.
    """

    def __init__(self, communicator: Communicator, group: Group, rank: int) -> None:
        super().__init__(communicator, group)
        shapes = [_as_matrix(shape) for shape in group.shapes]
        self._factored = [
            _Factored(i, rows, columns, rank)
            for i, (rows, columns) in enumerate(shapes)
            if 2 * rank * (rows + columns) < rows * columns
        ]
        numbers = {each.number for each in self._factored}
        self._plain = [i for i in range(len(shapes)) if i not in numbers]
        for each in self._factored:
            initial = _random((each.columns, rank), each.number)
            group.factor(_name(each, group), initial)

    def _sum(
        self,
        gradients: Sequence[np.ndarray],
        residuals: Sequence[np.ndarray],
        left: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
    ) -> bool:
        communicator = self._communicator
        factors = [self._group.factors[_name(each, self._group)] for each in self._factored]
        starts = [
            each.project(gradients, residuals, left, factor.array)
            for each, factor in zip(self._factored, factors, strict=True)
        ]
        plain = [gradients[i] + residuals[i] for i in self._plain]
        summed = communicator.sum_arrays([*starts, *plain], name=_NAME)
        for number, total in zip(self._plain, summed[len(starts) :], strict=True):
            np.copyto(results[number], total)
            left[number].fill(0)
        if not _are_finite(summed):
            self._fail(results)
            return False
        bases = [
            orthonormal(total, each.number)
            for each, total in zip(self._factored, summed, strict=False)
        ]
        own = [
            each.coefficients(left, basis)
            for each, basis in zip(self._factored, bases, strict=True)
        ]
        totals = communicator.sum_arrays(own, name=_NAME) if own else []
        if not _are_finite(totals):
            self._fail(results)
            return False
        for each, factor, basis, mine, total in zip(
            self._factored, factors, bases, own, totals, strict=True
        ):
            each.rebuild(results, left, basis, mine, total)
            factor.array = np.array(total)
        return True

    def _fail(self, results: Sequence[np.ndarray]) -> None:
        for each in self._factored:
            results[each.number].fill(np.nan)


@dataclass(frozen=True)
class _Factored:
    """A gradient that is sent as factors: the number of it in its group, and its matrix."""

    number: int
    rows: int
    columns: int
    rank: int

    def project(
        self,
        gradients: Sequence[np.ndarray],
        residuals: Sequence[np.ndarray],
        left: Sequence[np.ndarray],
        factor: np.ndarray,
    ) -> np.ndarray:
        """Adds gradient and residual up in `left`; the product of that and `factor`."""
        given, owed, total = map(self._matrix, (gradients, residuals, left))
        start = np.empty((self.rows, self.rank), np.float32)
        for part in self._parts():
            np.add(given[part], owed[part], out=total[part])
            np.matmul(total[part], factor, out=start[part])
        return start

    def coefficients(self, left: Sequence[np.ndarray], basis: np.ndarray) -> np.ndarray:
        """What each of the basis's columns counts in the columns of this worker's matrix."""
        total = self._matrix(left)
        result = np.zeros((self.columns, self.rank), np.float32)
        for part in self._parts():
            result += total[part].T @ basis[part]
        return result

    def rebuild(
        self,
        results: Sequence[np.ndarray],
        left: Sequence[np.ndarray],
        basis: np.ndarray,
        own: np.ndarray,
        total: np.ndarray,
    ) -> None:
        """Writes the sum into `results`, and takes this worker's part of it from `left`."""
        result, rest = self._matrix(results), self._matrix(left)
        mine, everyones = np.ascontiguousarray(own.T), np.ascontiguousarray(total.T)
        for part in self._parts():
            np.matmul(basis[part], everyones, out=result[part])
            rest[part] -= basis[part] @ mine

    def _matrix(self, arrays: Sequence[np.ndarray]) -> np.ndarray:
        return arrays[self.number].reshape(self.rows, self.columns)

    def _parts(self) -> Iterator[slice]:
        """Rows that fit into a cache together."""
        step = max(1, PIECE_ELEMENTS // self.columns)
        return (slice(i, i + step) for i in range(0, self.rows, step))


def orthonormal(matrix: np.ndarray, seed: int) -> np.ndarray:
    """Orthonormal columns that span those of `matrix`, by Gram and Schmidt, twice each.

    Args:
        matrix: [rows, columns], finite, with no more columns than rows.
        seed: A column that depends on those before it, or is zero, becomes a random one, so
            that the factor that comes of it can grow again; of this seed.

    Returns:
        float32, [rows, columns].
    """
    columns = np.ascontiguousarray(matrix.T, np.float64)
    for i, column in enumerate(columns):
        before = columns[:i]
        size = np.sqrt(column @ column)
        for _ in range(2):
            column -= (before @ column) @ before
        if np.sqrt(column @ column) <= _DEPENDENT * size:
            column[:] = _random(column.shape, seed * len(columns) + i)
            for _ in range(2):
                column -= (before @ column) @ before
        column /= np.sqrt(column @ column)
    return np.ascontiguousarray(columns.T, np.float32)


def _as_matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    if len(shape) < 2:
        return 1, int(np.prod(shape))
    return int(np.prod(shape[:-1])), shape[-1]


def _name(each: _Factored, group: Group) -> str:
    return f"factor of {group.names[each.number]} ({each.number})"


def _random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng([_SEED, seed]).standard_normal(shape, np.float32)


def _are_finite(arrays: Sequence[np.ndarray]) -> bool:
    return all(bool(np.isfinite(array).all()) for array in arrays)
