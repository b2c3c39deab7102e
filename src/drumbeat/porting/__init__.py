"""Rewrites scripts of TensorFlow 2.0 to 2.15 for Keras 3, with LibCST; see docs/old-scripts.md."""
