#!/usr/bin/env python
# coding: utf-8

# # Multi-worker training with Keras
#
# This is a notebook, converted by nbconvert.

# In[1]:


get_ipython().system("pip install -q tf-nightly")  # noqa: F821
get_ipython().run_line_magic("matplotlib", "inline")  # noqa: F821

import json
import os
import sys

# In[2]:


os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
if "." not in sys.path:
    sys.path.insert(0, ".")

import numpy as np
import tensorflow as tf

# In[3]:


per_worker_batch_size = 16
tf_config = json.loads(os.environ.get("TF_CONFIG") or '{"cluster": {"worker": ["localhost"]}}')
num_workers = len(tf_config["cluster"]["worker"])

strategy = tf.distribute.MultiWorkerMirroredStrategy()
x = np.random.RandomState(24).rand(64, 4).astype("float32")

# In[4]:


with strategy.scope():
    model = tf.keras.models.Sequential([tf.keras.layers.Dense(1, input_shape=(4,))])
    model.compile(optimizer=tf.keras.optimizers.Adam(lr=0.01), loss="mae")
model.fit(x, x.mean(axis=1), batch_size=per_worker_batch_size * num_workers, epochs=2)
print("weights", [float(np.sum(w)) for w in model.get_weights()])
