"""The custom training loop of TensorFlow 2.0 and 2.1: experimental_run_v2, reset_states."""

import numpy as np
import tensorflow as tf

strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
GLOBAL_BATCH_SIZE = 32

x = np.random.RandomState(1).rand(100, 4).astype("float32")
y = (x.sum(axis=1) > 2).astype("int64")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(GLOBAL_BATCH_SIZE)
dist_dataset = strategy.experimental_distribute_dataset(dataset)

with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(8, "relu"), tf.keras.layers.Dense(2)])
    optimizer = tf.keras.optimizers.SGD(0.1)
    loss_object = tf.keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=tf.keras.losses.Reduction.NONE
    )
    train_accuracy = tf.keras.metrics.SparseCategoricalAccuracy(name="train_accuracy")

    def compute_loss(labels, predictions):
        per_example_loss = loss_object(labels, predictions)
        return tf.nn.compute_average_loss(per_example_loss, global_batch_size=GLOBAL_BATCH_SIZE)

    def train_step(inputs):
        images, labels = inputs
        with tf.GradientTape() as tape:
            predictions = model(images, training=True)
            loss = compute_loss(labels, predictions)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        train_accuracy.update_state(labels, predictions)
        return loss

    @tf.function
    def distributed_train_step(dataset_inputs):
        per_replica_losses = strategy.experimental_run_v2(train_step, args=(dataset_inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, per_replica_losses, axis=None)

    for epoch in range(3):
        total_loss, num_batches = 0.0, 0
        for batch in dist_dataset:
            total_loss += distributed_train_step(batch)
            num_batches += 1
        template = "Epoch {}, Loss: {}, Accuracy: {}"
        print(template.format(epoch + 1, total_loss / num_batches, train_accuracy.result() * 100))
        train_accuracy.reset_states()
print("weights", [float(np.sum(w)) for w in model.get_weights()])
