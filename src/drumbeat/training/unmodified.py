"""What makes an unmodified script train on many workers; the workers' preloaded module.

The agent's parent process imports it, and with it TensorFlow and Keras, before it
forks the workers. Importing runs no operation.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping

import keras  # noqa: F401  (preloaded for the workers)
import tensorflow as tf

from drumbeat.cluster.identity import Identity
from drumbeat.cluster.recording import Recording
from drumbeat.cluster.rehearsing import Rehearsing
from drumbeat.data.pipelines import keep_alike, unlock_caches
from drumbeat.state.backups import DEFAULT_KEEP
from drumbeat.strategies import stand_in
from drumbeat.strategies.determinism import same_bytes_everywhere
from drumbeat.strategies.placement import make_logical_cpus
from drumbeat.training import evaluating, journal, record, seeds, updates
from drumbeat.training.integrate import integrate
from drumbeat.training.keeping import Every
from drumbeat.training.keras2 import choice as keras2
from drumbeat.training.legacy import install as legacy


def install(env: Mapping[str, str] | None = None) -> None:
    """Prepare a forked worker before its script starts.

    Seeds Python, NumPy and TensorFlow alike on all workers, so that unseeded
    shuffles and initial weights come out the same everywhere; a script's own seeds
    come later and win. Makes `tf.distribute.MultiWorkerMirroredStrategy` yield our
    strategy, unless the run was told to keep TensorFlow's, and has Keras take the names
    of old. Without GPUs, makes as many devices of the CPU as the worker is to have.
    """
    env = os.environ if env is None else env
    identity = Identity.from_env(env)
    if identity is not None:
        install_for(identity, env)


def install_for(identity: Identity, env: Mapping[str, str]) -> None:
    """As `install`, for a process whose identity is known."""
    _install(identity, env)
    if not identity.strict_names:
        # In front of all that is changed in Keras.
        legacy.install(tells=identity.rank <= 0, keras_2=keras2.is_asked_for())


def _install(identity: Identity, env: Mapping[str, str]) -> None:
    if identity.rank < 0:
        # Asked for the strategy, a ps or evaluator is told that it takes no part in it.
        if not identity.keep_tf_strategies:
            stand_in.install()
            # A platform's evaluator doesn't see where the chief's weights are.
            if identity.has_evaluator and evaluating.is_evaluator(env):
                evaluating.install(identity, env)
        return
    evaluating.clear(identity)
    own = journal.own()
    if Rehearsing.from_env(env) is not None and own is not None and own.page is not None:
        updates.install(own.page)
    if identity.devices_per_worker > 1:
        make_logical_cpus(identity.devices_per_worker)
    if identity.seed is not None:
        seeds.sow(identity.seed)
        tf.random.set_seed(identity.seed)
    if identity.exact is not None:
        same_bytes_everywhere()
    if not identity.keep_tf_strategies:
        recording = Recording.from_env(env)
        if identity.attempt > 1:
            unlock_caches(time.time())
        if identity.world_size > 1 or recording is not None:
            keep_alike(identity.rank)
        if recording is not None:
            record.install(recording, identity)
        integrate()
        keras2.install(_integrate_keras_2)
        _keep_backups(identity)
        stand_in.install()


def _integrate_keras_2() -> None:
    # It imports tf_keras, which most jobs have no use for.
    importlib.import_module("drumbeat.training.keras2.integrate").integrate()


def _keep_backups(identity: Identity) -> None:
    own = journal.own()
    if own is not None and identity.backup_dir is not None:
        every = Every(seconds=identity.backup_every_s)
        own.backups.keep_all(own.backups.keeper(identity.backup_dir, every, DEFAULT_KEEP))
        own.listen()
