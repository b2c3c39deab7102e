"""The interface through which workers talk to one another, and what is common to its kinds."""

from __future__ import annotations

import functools
import math
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import tensorflow as tf

from drumbeat.collectives.bridge import Bridge
from drumbeat.collectives.calls import Call, TensorSpec, digest_of
from drumbeat.collectives.times import CollectiveTimes
from drumbeat.errors import CollectiveError, CollectiveTimeout, ConfigError

OPS = ("sum", "min", "max")
REDUCIBLE = ("float16", "bfloat16", "float32", "float64", "int32", "int64")
MOVABLE = (*REDUCIBLE, "bool", "int8", "uint8", "int16", "uint16", "uint32", "uint64")

Value = tf.Tensor | tf.IndexedSlices

Mask = Callable[[list[Any]], list[Any]]

# Shapes that change all the time must not fill the memory.
_MAX_SITES = 1024

_Function = TypeVar("_Function", bound=Callable[..., Any])


def not_converted(function: _Function) -> _Function:
    """Keeps AutoGraph from rewriting what has no graph control flow; keeps the signature's type."""
    return cast(_Function, tf.autograph.experimental.do_not_convert(function))


class Observer(Protocol):
    """Is told in which collective this worker is; calls come one at a time, from any thread."""

    def enter(self, number: int, kind: str, name: str) -> None:
        """A collective begins, the `number`-th; 0 is the making of the communicator."""
        ...

    def leave(self) -> None:
        """It is over, or has failed."""
        ...


class Communicator(ABC):
    """Collective operations among the workers of a job.

    Every worker must make the same calls in the same order. Before any data
    moves the workers compare what they called: if it differs, every one of them
    raises `CollectiveMismatch`. If one does not come within `timeout_s`, the
    others raise `CollectiveTimeout`. After either, every further call raises
    the same error again, as the workers are no longer in step.

    Calls work eagerly and inside `tf.function` (also in loops and branches, with
    shapes unknown when traced, not under XLA). In a graph TensorFlow raises
    its own error class around our text: `last_error` has the original, and
    `raise_last_error` raises it.

    No gradients flow through a call; the strategy defines them.

    With one worker a call returns its input and does nothing else.

    Results are the same bytes on every worker.

    Attributes:
        observer: Is told of each collective, where somebody wants to know.
        times: What collectives have cost this worker so far.
    """

    def __init__(self, *, rank: int, size: int, timeout_s: float, bridge: Bridge) -> None:
        """Stores; use `drumbeat.collectives.choose.communicator` to get one."""
        self.rank = rank
        self.size = size
        self.timeout_s = timeout_s
        self._bridge = bridge
        self._lock = threading.Lock()
        self._sequence = 0
        self._last_error: CollectiveError | None = None
        self.times = CollectiveTimes()
        self._sites: dict[Any, Any] = {}
        self.observer: Observer | None = None

    @property
    def last_error(self) -> CollectiveError | None:
        """The error that ended this communicator's use, with its full text."""
        return self._last_error

    def raise_last_error(self) -> None:
        """Raises `last_error` if there is one; for callers that caught TensorFlow's wrapper."""
        if self._last_error is not None:
            raise self._last_error from None

    @not_converted
    def all_reduce(
        self, tensors: Sequence[Value], op: str = "sum", *, name: str = ""
    ) -> list[Value]:
        """Combines each tensor, element by element, over all workers.

        Args:
            tensors: Same number, dtypes (`REDUCIBLE`) and shapes on every worker.
                IndexedSlices may have any number of rows.
            op: "sum", "min" or "max".
            name: Label for error messages; must be the same on every worker.

        Returns:
            One result for each tensor. float16 and bfloat16 are combined in
            float32 and rounded once. IndexedSlices (sum only) come back with all
            workers' rows in rank order, as one worker would have them for the
            concatenated batch.

        Raises:
            ConfigError: A dtype or op that is not supported.
            CollectiveError: See the class.
        """
        values = [_tensor(value) for value in tensors]
        self._check_op(op)
        dense = [i for i, v in enumerate(values) if not isinstance(v, tf.IndexedSlices)]
        sparse = [i for i, v in enumerate(values) if isinstance(v, tf.IndexedSlices)]
        if sparse and op != "sum":
            raise ConfigError(
                f"all_reduce got op={op!r} and IndexedSlices, which can only be summed. "
                "Convert them with tf.convert_to_tensor first."
            )
        _check_dtypes("all_reduce", REDUCIBLE, [values[i].dtype for i in dense])
        if self.size == 1 or not values:
            return values
        if dense:
            reduced = self._reduce_dense([values[i] for i in dense], op, name)
            for i, result in zip(dense, reduced, strict=True):
                values[i] = result
        if sparse:
            gathered = self._gather_slices([values[i] for i in sparse], name)
            for i, result in zip(sparse, gathered, strict=True):
                values[i] = result
        return values

    @not_converted
    def sum_gradients(self, gradients: Sequence[Value], mask: Mask = list) -> list[Value]:
        """`all_reduce`, which may begin with some of them before others have been computed.

        Args:
            gradients: See `all_reduce`.
            mask: What to do with them before; called once or, with a part of them, often.
        """
        return self.all_reduce(mask(list(gradients)))

    @not_converted
    def broadcast(
        self, tensors: Sequence[tf.Tensor], root: int = 0, *, name: str = ""
    ) -> list[tf.Tensor]:
        """Gives every worker the tensors of one.

        Args:
            tensors: Same number, dtypes (`MOVABLE`) and shapes on every worker; only
                the values of `root` matter.
            root: Rank of the worker whose values are taken.
            name: Label for error messages.

        Raises:
            ConfigError: A dtype that is not supported, or no such rank.
            CollectiveError: See the class.
        """
        values: list[tf.Tensor] = [tf.convert_to_tensor(value) for value in tensors]
        self._check_root(root)
        _check_dtypes("broadcast", MOVABLE, [value.dtype for value in values])
        if self.size == 1 or not values:
            return values
        return self._transfer("broadcast", values, root=root, name=name)

    @not_converted
    def all_gather(self, tensor: tf.Tensor, *, name: str = "") -> tf.Tensor:
        """Concatenates the workers' tensors along the first axis, in rank order.

        Args:
            tensor: At least one dimension, dtype in `MOVABLE`. The number of rows may
                differ among workers, and may be zero; all else must agree.
            name: Label for error messages.

        Raises:
            ConfigError: A scalar, or a dtype that is not supported.
            CollectiveError: See the class.
        """
        value = tf.convert_to_tensor(tensor)
        _check_dtypes("all_gather", MOVABLE, [value.dtype])
        if value.shape.rank == 0:
            raise ConfigError("all_gather got a scalar; it needs rows to concatenate: use x[None].")
        if self.size == 1:
            return value
        return self._gather_tensors([value], name)[0]

    @not_converted
    def barrier(self, name: str = "") -> None:
        """Returns when every worker has called it."""
        if self.size > 1:
            self._bridge(functools.partial(self._run, "barrier", name=name), [], [])

    @not_converted
    def all_reduce_numpy(self, array: Any, op: str = "sum", *, name: str = "") -> np.ndarray:
        """`all_reduce` of one array, for control data outside of graphs."""
        with tf.init_scope():
            return _numpy(self.all_reduce([tf.constant(array)], op, name=name)[0])

    @not_converted
    def broadcast_numpy(self, array: Any, root: int = 0, *, name: str = "") -> np.ndarray:
        """`broadcast` of one array, for control data outside of graphs."""
        with tf.init_scope():
            return _numpy(self.broadcast([tf.constant(array)], root, name=name)[0])

    @not_converted
    def all_gather_numpy(self, array: Any, *, name: str = "") -> np.ndarray:
        """`all_gather` of one array, for control data outside of graphs."""
        with tf.init_scope():
            return _numpy(self.all_gather(tf.constant(array), name=name))

    # For Python that works on arrays itself, and calls collectives as it goes.

    @not_converted
    def in_order(
        self, body: Callable[..., Any], inputs: Sequence[tf.Tensor], outputs: Sequence[Any]
    ) -> list[tf.Tensor]:
        """Runs Python in program order, as a collective is.

        Args:
            body: Gets what `Bridge` hands over, and may call `sum_arrays` and the like.
            inputs: What it gets.
            outputs: A `tf.TensorSpec` for each of the results that it returns as a list.
        """
        return self._bridge(body, inputs, outputs)

    def sum_arrays(self, arrays: Sequence[np.ndarray], *, name: str = "") -> list[np.ndarray]:
        """`all_reduce` of float32, float64 or whole numbers; not within another collective."""
        if self.size == 1:
            return list(arrays)
        packed = [np.asarray(array) for array in self._sum_arrays(arrays, name)]
        return [p.reshape(a.shape) for p, a in zip(packed, arrays, strict=True)]

    def gather_rows(self, row: np.ndarray, *, name: str = "") -> np.ndarray:
        """Every worker's row of whole numbers, int32 or int64 [n]: [workers, n]."""
        if self.size == 1:
            return row[None]
        return np.asarray(self._run("all_gather", row[None], name=name)[0])

    swaps_among_some = False
    """Whether `swap_rows` takes `peers`."""

    def swap_rows(
        self, rows: np.ndarray, peers: Sequence[int] | None = None, *, name: str = ""
    ) -> np.ndarray:
        """Sends each row to a worker, and returns what the workers have sent here.

        Args:
            rows: int32, [peers, n], alike in shape on all workers.
            peers: The ranks that they go to, ascending, and this worker among them, who are
                each other's peers; None for all. Where it `swaps_among_some`.
            name: Label for error messages.

        Returns:
            Like `rows`, in the order of the peers.

        Raises:
            CollectiveError: See the class.
        """
        if self.size == 1:
            return rows
        ranks = np.array(range(self.size) if peers is None else peers)
        return np.asarray(self._run("all_to_all", rows, packed=[rows, ranks], name=name)[0])

    def _sum_arrays(self, arrays: Sequence[np.ndarray], name: str) -> list[Any]:
        return self._run("all_reduce", *arrays, op="sum", name=name)

    def close(self, grace_s: float = 1.0) -> None:  # noqa: B027
        """Ends the use of the connection; waits at most `grace_s` seconds for the others."""

    # What an implementation provides; called on Python's side, one at a time.

    @abstractmethod
    def _agree(self, call: Call) -> None:
        """Returns when every worker makes the same call, else raises."""

    def _prepare(self, call: Call, values: list[Any]) -> Any:  # noqa: B027
        """What a reduction can do before all have come; `_reduce` gets what it returns."""

    @abstractmethod
    def _reduce(self, call: Call, values: list[Any], op: str, prepared: Any) -> list[Any]:
        """Combines values of dtypes in `REDUCIBLE` but the half ones."""

    @abstractmethod
    def _broadcast(self, call: Call, values: list[Any], root: int) -> list[Any]:
        """Returns root's values."""

    @abstractmethod
    def _gather(self, call: Call, values: list[Any]) -> list[Any]:
        """Concatenates rows; has to find out how many each worker has."""

    @abstractmethod
    def _swap(self, call: Call, rows: Any, peers: np.ndarray) -> Any:
        """Sends each row to one of `peers`; returns what came from them, in their order."""

    def _run(
        self,
        kind: str,
        *values: Any,
        packed: Sequence[Any] | None = None,
        op: str = "",
        root: int = 0,
        name: str = "",
    ) -> list[Any]:
        """One call: what the workers compare are `values`, what moves is `packed` or they."""
        data = list(values if packed is None else packed)
        if not self._lock.acquire(timeout=self.timeout_s):
            raise CollectiveTimeout(
                f"worker {self.rank} waited {self.timeout_s:g} s to start {kind}: another thread "
                "of the same process is still in a collective."
            )
        try:
            if self._last_error is not None:
                raise self._last_error
            self._sequence += 1
            if self.observer is not None:
                self.observer.enter(self._sequence, kind, name)
            return self._timed(kind, values, data, op, root, name)
        except CollectiveError as error:
            self._last_error = error
            raise
        finally:
            if self.observer is not None:
                self.observer.leave()
            self._lock.release()

    def _timed(
        self, kind: str, values: Sequence[Any], data: list[Any], op: str, root: int, name: str
    ) -> list[Any]:
        times = self.times
        times.calls += 1
        times.bytes_sent += sum(map(_size_bytes, data))
        began_s = time.monotonic()
        agreed_s = None
        try:
            call = self._describe(kind, values, op, root, name)
            prepared = self._prepare(call, data) if kind == "all_reduce" else None
            self._agree(call)
            agreed_s = time.monotonic()
            if kind == "all_reduce":
                return self._reduce(call, data, op, prepared)
            if kind == "broadcast":
                return self._broadcast(call, data, root)
            if kind == "all_gather":
                return self._gather(call, data)
            if kind == "all_to_all":
                return [self._swap(call, *data)]
            return []
        finally:
            ended_s = time.monotonic()
            agreed_s = ended_s if agreed_s is None else agreed_s
            times.waiting_s += agreed_s - began_s
            times.transfer_s += ended_s - agreed_s

    def _describe(self, kind: str, values: Sequence[Any], op: str, root: int, name: str) -> Call:
        # The same calls come again and again, and describing many tensors takes longer than
        # summing small ones.
        key = (kind, op, root, name, *[(v.dtype, tuple(v.shape)) for v in values])
        site = self._sites.get(key)
        if site is None:
            specs = [TensorSpec(dtype=v.dtype.name, shape=tuple(v.shape)) for v in values]
            if kind == "all_gather":
                specs = [spec.any_rows for spec in specs]
            # The usual op and root go without saying, as every call's text is read by people.
            detail = f"op={op}" if op not in ("", "sum") else f"root={root}" if root else ""
            site = (tuple(specs), detail, digest_of(kind, specs, detail, name))
            if len(self._sites) >= _MAX_SITES:
                self._sites.clear()
            self._sites[key] = site
        specs, detail, digest = site
        return Call(
            kind=kind,
            sequence=self._sequence,
            specs=specs,
            detail=detail,
            name=name,
            digest=digest,
        )

    def _reduce_dense(self, values: list[Any], op: str, name: str) -> list[tf.Tensor]:
        wide = [tf.cast(v, tf.float32) if v.dtype.size == 2 else v for v in values]
        results = self._transfer("all_reduce", wide, op=op, name=name)
        return [tf.cast(r, v.dtype) for r, v in zip(results, values, strict=True)]

    def _transfer(self, kind: str, values: list[Any], **how: Any) -> list[tf.Tensor]:
        """Runs a collective whose results have the shapes of its inputs."""
        body = functools.partial(self._run, kind, **how)
        return self._bridge(body, values, [tf.TensorSpec(v.shape, v.dtype) for v in values])

    def _gather_tensors(self, values: list[Any], name: str) -> list[tf.Tensor]:
        specs = [tf.TensorSpec(_any_rows(v.shape), v.dtype) for v in values]
        return self._bridge(functools.partial(self._run, "all_gather", name=name), values, specs)

    def _gather_slices(self, slices: list[Any], name: str) -> list[tf.IndexedSlices]:
        pieces = [piece for s in slices for piece in (s.values, s.indices)]
        _check_dtypes("all_reduce", MOVABLE, [piece.dtype for piece in pieces])
        gathered = self._gather_tensors(pieces, name or "IndexedSlices")
        return [
            tf.IndexedSlices(gathered[2 * i], gathered[2 * i + 1], s.dense_shape)
            for i, s in enumerate(slices)
        ]

    def _check_op(self, op: str) -> None:
        if op not in OPS:
            raise ConfigError(f"all_reduce got op={op!r}; expected one of {', '.join(OPS)}.")

    def _check_root(self, root: int) -> None:
        if not 0 <= root < self.size:
            raise ConfigError(
                f"broadcast got root={root}; expected a rank from 0 to {self.size - 1}."
            )


def _tensor(value: Any) -> Any:
    return value if isinstance(value, tf.IndexedSlices) else tf.convert_to_tensor(value)


def _size_bytes(value: Any) -> int:
    """Of an array or an eager tensor."""
    nbytes = getattr(value, "nbytes", None)
    return math.prod(value.shape) * value.dtype.size if nbytes is None else nbytes


def _any_rows(shape: tf.TensorShape) -> tf.TensorShape:
    return tf.TensorShape([None]).concatenate(shape[1:]) if shape.rank else shape


def _numpy(tensor: Any) -> np.ndarray:
    return np.asarray(tensor.numpy())


def _check_dtypes(kind: str, allowed: Sequence[str], dtypes: Sequence[tf.DType]) -> None:
    for position, dtype in enumerate(dtypes):
        if dtype.name not in allowed:
            raise ConfigError(
                f"{kind} can't carry {dtype.name} (tensor {position + 1} of {len(dtypes)}); "
                f"expected one of {', '.join(allowed)}. Cast or encode it first."
            )


def row_elements(shape: Sequence[int]) -> int:
    """How many elements one row of `shape` has."""
    return math.prod(shape[1:])
