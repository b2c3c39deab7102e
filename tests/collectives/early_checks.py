"""What each of two nodes does: sums gradients as they come, and makes a call that differs.

With two workers on a node, what they share in memory crosses to the other node once.
"""

from __future__ import annotations

import numpy as np
import tensorflow as tf

import drumbeat
from drumbeat.collectives.between import Cost

communicator = drumbeat.strategy().communicator
# Groups of 170 kB, half of what a gradient has, whatever was measured.
communicator.places.cost = Cost(latency_s=1e-4, s_per_byte=1e-8)
weights = [tf.Variable(tf.random.stateless_normal([300, 300], [i, 1]) * 0.05) for i in range(4)]
rows = tf.random.stateless_normal([8, 300], [9, communicator.rank])


def gradients(batch: tf.Tensor) -> list[tf.Tensor]:
    with tf.GradientTape() as tape:
        for weight in weights:
            batch = tf.tanh(batch @ weight)
        loss = tf.reduce_sum(batch**2)
    return tape.gradient(loss, weights)


early = tf.function(lambda batch: communicator.sum_gradients(gradients(batch)))
whole = tf.function(lambda batch: communicator.all_reduce(gradients(batch)))
for _ in range(3):
    ours, expected = early(rows), whole(rows)
    for one, other in zip(ours, expected, strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
exact = sum(
    np.float64(gradient)
    for rank in range(communicator.size)
    for gradient in gradients(tf.random.stateless_normal([8, 300], [9, rank]))[-1:]
)
np.testing.assert_allclose(ours[-1].numpy(), exact, rtol=1e-4, atol=1e-6)
graph = early.get_concrete_function(rows).graph
print("operations", sum(op.type == "PyFunc" for op in graph.get_operations()), flush=True)
last = 300 + communicator.rank
try:
    tf.function(lambda: communicator.sum_gradients([tf.ones([300, 300]), tf.ones([last, 300])]))()
except tf.errors.OpError:
    print(str(communicator.last_error), flush=True)
