"""Communicator over TensorFlow's own collective ops: NCCL among GPUs, a gRPC ring elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat import tf_internals
from drumbeat.cluster.spec import ClusterSpec, Task
from drumbeat.collectives.bridge import Bridge
from drumbeat.collectives.calls import (
    TEXT_BYTES,
    Call,
    mismatch_message,
    text_from_bytes,
    workers,
)
from drumbeat.collectives.communicator import Communicator
from drumbeat.collectives.watchdog import Watchdog
from drumbeat.errors import CollectiveError, CollectiveMismatch, CollectiveTimeout, ConfigError

# Groups of devices, numbered alike on every worker.
_HOST_GROUP = 1
_GPU_GROUP = 2
# Numbers of one call's parts: header, text or rows, then payloads.
_KEYS_PER_CALL = 64
_MERGE = {"sum": "Add", "min": "Min", "max": "Max"}
_ON_GPU = ("float32", "float64")


class TensorFlowCommunicator(Communicator):
    """Collectives of TensorFlow's runtime over the addresses of TF_CONFIG.

    Each call runs eagerly from a Python function, in a graph too, so that the
    number of a call is its place in the order of execution, and errors are ours.
    The workers' fingerprints are gathered on the CPU; floats travel between GPUs
    when every worker has one.
    """

    def __init__(self, *, rank: int, size: int, timeout_s: float, gpu: bool) -> None:
        """Stores; use `connect`."""
        super().__init__(rank=rank, size=size, timeout_s=timeout_s, bridge=Bridge(on_device=True))
        self._gpu = gpu
        self._key = 0
        self._watchdog = Watchdog(tf_internals.abort_collectives)

    @classmethod
    def connect(cls, cluster: ClusterSpec, *, timeout_s: float) -> TensorFlowCommunicator:
        """Joins the cluster; must come before TensorFlow runs its first op.

        Args:
            cluster: TF_CONFIG's cluster, with this process's task; only its chief and
                workers take part.
            timeout_s: Deadline of one collective, seconds.

        Raises:
            ConfigError: TensorFlow is already initialised, the task does not train, or
                its port is in use.
            CollectiveTimeout: The other workers did not come in time.
        """
        if cluster.task is None or cluster.task not in cluster.sync_tasks:
            raise ConfigError(
                f"this process is {cluster.task}, which does not train in the cluster {cluster}. "
                "Expected its chief or one of its workers."
            )
        rank, size = cluster.rank_of(cluster.task), cluster.world_size
        communicator = cls(rank=rank, size=size, timeout_s=timeout_s, gpu=False)
        if size > 1:
            _join(cluster, cluster.task)
            communicator._meet()
        return communicator

    def _meet(self) -> None:
        # All or none use GPUs: a group must have a device of every worker.
        mine = len(tf.config.list_logical_devices("GPU"))
        self._gpu = bool(self.all_reduce_numpy(np.int64(mine), "min", name="connect") > 0)

    def _agree(self, call: Call) -> None:
        self._key = (self._sequence * _KEYS_PER_CALL) % (2**31 - _KEYS_PER_CALL)
        prints = self._host_gather(call, np.array([call.fingerprint()], np.int64))
        if len(set(prints.tolist())) > 1:
            text = np.frombuffer(call.to_bytes(), np.uint8).astype(np.int32)
            texts = self._host_gather(call, text).astype(np.uint8).reshape(self.size, TEXT_BYTES)
            raise CollectiveMismatch(
                mismatch_message([text_from_bytes(row.tobytes()) for row in texts])
            )

    def _transfer(self, kind: str, values: list[Any], **how: Any) -> list[tf.Tensor]:
        """Joins tensors of a dtype before they enter Python, and cuts the results up after."""
        groups: dict[tf.DType, list[int]] = {}
        for i, value in enumerate(values):
            groups.setdefault(value.dtype, []).append(i)
        members = [[values[i] for i in group] for group in groups.values()]
        flats = [_pack(group) for group in members]

        def body(*args: Any) -> list[Any]:
            return self._run(kind, *args[: len(values)], packed=args[len(values) :], **how)

        specs = [tf.TensorSpec([None], dtype) for dtype in groups]
        moved = self._bridge(body, [*values, *flats], specs)
        results = list(values)
        for flat, group, indices in zip(moved, members, groups.values(), strict=True):
            for i, part in zip(indices, _unpack(flat, group), strict=True):
                part.set_shape(values[i].shape)
                results[i] = part
        return results

    def _reduce(self, call: Call, values: list[Any], op: str, prepared: Any) -> list[Any]:
        def reduce(flat: Any) -> Any:
            return self._collective(
                call,
                flat.dtype,
                lambda **where: tf_internals.all_reduce_v2(
                    flat, merge_op=_MERGE[op], final_op="Id", **where
                ),
            )

        return [reduce(flat) if len(flat) else flat for flat in values]

    def _broadcast(self, call: Call, values: list[Any], root: int) -> list[Any]:
        def send(flat: Any) -> Any:
            carrier = _to_carrier(flat)

            def run(**where: Any) -> Any:
                if self.rank == root:
                    return tf_internals.broadcast_send_v2(carrier, **where)
                return tf_internals.broadcast_recv_v2(carrier.shape, carrier.dtype, **where)

            return tf.cast(self._collective(call, carrier.dtype, run), flat.dtype)

        return [send(flat) if len(flat) else flat for flat in values]

    def _gather(self, call: Call, values: list[Any]) -> list[Any]:
        tensors = [tf.convert_to_tensor(value) for value in values]
        mine = np.array([[len(tensor) for tensor in tensors]], np.int64)
        rows = self._host_gather(call, mine)
        return [self._gather_one(call, t, rows[:, i].tolist()) for i, t in enumerate(tensors)]

    def _swap(self, call: Call, rows: Any, peers: np.ndarray) -> Any:
        assert len(peers) == self.size  # noqa: S101  (there is no op for some of them)
        tensor = tf.convert_to_tensor(rows)
        return self._collective(
            call, tensor.dtype, lambda **where: tf_internals.all_to_all_v2(tensor, **where)
        )

    def _sum_arrays(self, arrays: Sequence[np.ndarray], name: str) -> list[Any]:
        # Flat, one after the other: the op can't take a scalar or an empty tensor.
        flats = [tf.constant(array.reshape(-1)) for array in arrays]
        return self._run("all_reduce", *arrays, packed=flats, op="sum", name=name)

    def _gather_one(self, call: Call, tensor: Any, rows: list[int]) -> Any:
        longest = max(rows)
        if not longest or not all(tensor.shape[1:]):
            return tf.zeros([sum(rows), *tensor.shape[1:]], tensor.dtype)
        # The op wants equal shapes: fill up, gather, take the fill out again.
        carrier = _to_carrier(tensor)
        fill = [[0, longest - len(tensor)], *[[0, 0]] * (tensor.shape.rank - 1)]
        padded = tf.pad(carrier, fill) if longest > len(tensor) else carrier
        gathered = self._collective(
            call, carrier.dtype, lambda **where: tf_internals.all_gather_v2(padded, **where)
        )
        if min(rows) < longest:
            starts = [rank * longest for rank in range(self.size)]
            parts = [gathered[s : s + n] for s, n in zip(starts, rows, strict=True)]
            gathered = tf.concat(parts, 0)
        return tf.cast(gathered, tensor.dtype)

    def _host_gather(self, call: Call, array: np.ndarray) -> np.ndarray:
        tensor = tf.constant(array)
        gathered = self._collective(
            call, tensor.dtype, lambda **where: tf_internals.all_gather_v2(tensor, **where)
        )
        return gathered.numpy()

    def _collective(self, call: Call, dtype: tf.DType, run: Callable[..., Any]) -> Any:
        """Runs one op in the group that carries `dtype`, and words its errors."""
        self._key += 1
        on_gpu = self._gpu and dtype.name in _ON_GPU
        where = {
            "group_size": self.size,
            "group_key": _GPU_GROUP if on_gpu else _HOST_GROUP,
            "instance_key": self._key,
            "communication_hint": "auto",
        }
        try:
            # Not the op's own timeout: TensorFlow 2.21 then ends the op while its transfers
            # go on, and they crash the process when they find the op's memory freed.
            with (
                self._watchdog.within(self.timeout_s),
                tf.device("GPU:0" if on_gpu else "CPU:0"),
            ):
                return run(**where)
        except tf.errors.DeadlineExceededError as error:
            others = [rank for rank in range(self.size) if rank != self.rank]
            unsure = "" if len(others) == 1 else "; TensorFlow can't tell which of them is missing"
            raise CollectiveTimeout(
                f"worker {self.rank} waited {self.timeout_s:g} s in {call} for "
                f"{workers(others)}{unsure}. Look into the log of {workers(others)}, or allow more "
                f"time (now {self.timeout_s:g} s)."
            ) from error
        except tf.errors.OpError as error:
            raise CollectiveError(
                f"worker {self.rank} lost another worker in {call}: TensorFlow says "
                f"{error.message}. Look into the other workers' logs."
            ) from error


def _join(cluster: ClusterSpec, me: Task) -> None:
    if tf_internals.context_is_initialized():
        raise ConfigError(
            "TensorFlow has already run an operation or listed its devices, so it can't join the "
            "other workers any more. Create the strategy first thing in the script, right after "
            "the imports, or choose --collectives mpi."
        )
    jobs: dict[str, list[str]] = {}
    for task in cluster.sync_tasks:
        jobs.setdefault(task.type, []).append(cluster.address(task))
    try:
        tf_internals.join_cluster(
            jobs,
            job=me.type,
            index=me.index,
            protocol=cluster.rpc_layer or "grpc",
        )
    except tf.errors.UnknownError as error:
        port = cluster.address(me).rpartition(":")[2]
        raise ConfigError(
            f"{me} can't serve its part of TensorFlow's collectives at {cluster.address(me)}: "
            f"{error.message}. TensorFlow listens at port {port} of all addresses of the machine; "
            "expected that nothing else does. End the other process, or give the task another port."
        ) from None


# Graphs, as dozens of small operations take five times as long one by one. They
# must not run within a Python function of another graph: it occupies a thread of
# TensorFlow's, and there may be only one.
def _pack(tensors: list[tf.Tensor]) -> Any:
    # One alone, such as a variable's first value, isn't worth a trace for its shape.
    run = _flatten if len(tensors) == 1 else _flatten_in_graph
    return run(tensors)


def _unpack(flat: tf.Tensor, like: list[tf.Tensor]) -> Any:
    run = _restore if len(like) == 1 else _restore_in_graph
    return run(flat, like)


def _flatten(tensors: list[tf.Tensor]) -> tf.Tensor:
    return tf.concat([tf.reshape(tensor, [-1]) for tensor in tensors], 0)


def _restore(flat: tf.Tensor, like: list[tf.Tensor]) -> list[tf.Tensor]:
    parts = tf.split(flat, [tf.size(tensor) for tensor in like])
    return [tf.reshape(part, tf.shape(tensor)) for part, tensor in zip(parts, like, strict=True)]


_flatten_in_graph = tf.function(_flatten, autograph=False, reduce_retracing=True)
_restore_in_graph = tf.function(_restore, autograph=False, reduce_retracing=True)


_CARRIERS: dict[str, Any] = {
    "bool": tf.int32,
    "uint8": tf.int32,
    "int8": tf.int32,
    "int16": tf.int32,
    "uint16": tf.int32,
    "uint32": tf.int64,
    "uint64": tf.int64,  # wraps round, and back
    "bfloat16": tf.float32,
}


def _to_carrier(tensor: Any) -> Any:
    """The tensor in a dtype that the ops take and that holds its values exactly."""
    carrier = _CARRIERS.get(tensor.dtype.name)
    return tensor if carrier is None else tf.cast(tensor, carrier)
