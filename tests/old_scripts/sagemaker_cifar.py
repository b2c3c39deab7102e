"""A SageMaker sample: TF_CONFIG from SM_HOSTS, made by the script before the strategy."""

import json
import os

os.environ.setdefault("SM_HOSTS", '["algo-1"]')
os.environ.setdefault("SM_CURRENT_HOST", "algo-1")


def build_tf_config():
    hosts = json.loads(os.environ["SM_HOSTS"])
    workers = ["{}:2222".format(host) for host in hosts]
    index = hosts.index(os.environ["SM_CURRENT_HOST"])
    return {"cluster": {"worker": workers}, "task": {"type": "worker", "index": index}}


if "TF_CONFIG" not in os.environ:
    os.environ["TF_CONFIG"] = json.dumps(build_tf_config())

import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import Activation, BatchNormalization, Conv2D, Dense, Dropout, Flatten
from tensorflow.keras.models import Sequential
from tensorflow.keras.optimizers import SGD

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = Sequential()
    model.add(Conv2D(4, (3, 3), padding="same", input_shape=(8, 8, 3)))
    model.add(BatchNormalization(fused=True))
    model.add(Activation("relu"))
    model.add(Dropout(0.2))
    model.add(Flatten())
    model.add(Dense(10, activation="softmax"))
    opt = SGD(lr=0.01 * strategy.num_replicas_in_sync, decay=1e-4, momentum=0.9)
    model.compile(loss="categorical_crossentropy", optimizer=opt, metrics=["accuracy"])

x = np.random.RandomState(8).rand(96, 8, 8, 3)
y = tf.keras.utils.to_categorical(np.arange(96) % 10, 10)
model.fit(x, y, batch_size=16, epochs=2, validation_split=0.25, shuffle=True)
score = model.evaluate(x, y, verbose=0)
print("Test loss:{} accuracy:{}".format(*score))
model.save(os.path.join(os.environ.get("SM_MODEL_DIR", "sm_model"), "000000001"))
print("weights", [float(np.sum(w)) for w in model.get_weights()])
