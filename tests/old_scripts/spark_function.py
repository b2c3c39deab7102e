"""Spark's distributor: a function that is handed to a runner, with everything imported inside."""


def train():
    import uuid

    import numpy as np
    import tensorflow as tf

    BUFFER_SIZE, BATCH_SIZE = 1000, 64

    def make_datasets():
        x = np.random.RandomState(21).rand(256, 10).astype("float32")
        y = (x.argmax(axis=1) % 3).astype("int64")
        dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(BUFFER_SIZE)
        return dataset.batch(BATCH_SIZE)

    def build_and_compile_model():
        model = tf.keras.Sequential(
            [tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(3)]
        )
        model.compile(
            loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            optimizer=tf.keras.optimizers.SGD(learning_rate=0.01),
            metrics=["accuracy"],
        )
        return model

    strategy = tf.distribute.experimental.MultiWorkerMirroredStrategy()
    train_datasets = make_datasets()
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    train_datasets = train_datasets.with_options(options)
    with strategy.scope():
        multi_worker_model = build_and_compile_model()
    multi_worker_model.fit(x=train_datasets, epochs=2, steps_per_epoch=4)
    print("weights", [float(np.sum(w)) for w in multi_worker_model.get_weights()])
    return uuid.uuid4().hex


class MirroredStrategyRunner:
    def __init__(self, num_slots):
        self.num_slots = num_slots

    def run(self, function):
        return function()


MirroredStrategyRunner(num_slots=2).run(train)
