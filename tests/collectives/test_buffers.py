from __future__ import annotations

import numpy as np
import pytest

from drumbeat.collectives.buckets import ALIGNMENT_BYTES
from drumbeat.collectives.buffers import BufferPool, aligned_empty


@pytest.mark.parametrize("size_bytes", [1, 63, 64, 1000])
def test_buffers_are_aligned_and_zeroed(size_bytes: int) -> None:
    buffer = aligned_empty(size_bytes)
    assert buffer.nbytes == size_bytes
    assert buffer.ctypes.data % ALIGNMENT_BYTES == 0
    assert not buffer.any()


def test_a_buffer_that_nobody_sees_is_used_again() -> None:
    pool = BufferPool()
    address = pool.take("k", 100).ctypes.data
    assert [pool.take("k", 100).ctypes.data for _ in range(5)] == [address] * 5
    assert pool.size_bytes == 100 + ALIGNMENT_BYTES


def test_a_buffer_that_a_view_of_a_view_sees_is_not_used_again() -> None:
    pool = BufferPool()
    first = pool.take("k", 100)
    view = first.view(np.float32)[3:7].reshape(2, 2)
    address = first.ctypes.data
    del first
    other = pool.take("k", 100)
    assert other.ctypes.data != address
    view[:] = 1
    assert not other.any()
    del view
    assert pool.take("k", 100).ctypes.data == address


def test_other_layouts_and_sizes_have_buffers_of_their_own() -> None:
    pool = BufferPool()
    pool.take("k", 100)[:] = 7
    assert not pool.take("other", 100).any()
    assert not pool.take("k", 99).any()


def test_what_is_kept_is_bounded() -> None:
    pool = BufferPool()
    held = [pool.take("k", 1000) for _ in range(20)]
    assert len({buffer.ctypes.data for buffer in held}) == 20
    for key in range(100):
        pool.take(key, 1000)
    assert pool.size_bytes < 20_000


@pytest.mark.tensorflow
def test_tensorflow_takes_an_aligned_array_over_and_the_pool_notices() -> None:
    import tensorflow as tf

    pool = BufferPool()

    @tf.function
    def run() -> tf.Tensor:
        def body() -> np.ndarray:
            buffer = pool.take("k", 4096).view(np.float32)
            taken.append(buffer.ctypes.data)
            return buffer

        return tf.numpy_function(body, [], tf.float32)

    taken: list[int] = []
    kept = run()
    del kept
    for _ in range(6):
        run()
    assert len(set(taken)) <= 2, "TensorFlow copies, or keeps its reference: buffers aren't reused"
    kept = [run() for _ in range(6)]
    assert len(set(taken[-6:])) == 6
    for i, tensor in enumerate(kept):
        assert not tensor.numpy().any(), i
