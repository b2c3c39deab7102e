"""From a user's dataset to one worker's part of it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, MutableMapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from drumbeat.collectives.communicator import Communicator
from drumbeat.data.at_source import NotAtSource, at_source
from drumbeat.data.distributed import (
    DistributedDataset,
    OwnBatches,
    PlacedBatches,
    WholeBatches,
    in_one_order,
    joined,
    without_autotuning,
)
from drumbeat.data.ordered import DistributedOrderedDataset, OrderedDataset
from drumbeat.data.policies import shard
from drumbeat.data.rows import BatchRows, Span
from drumbeat.data.shares import Shares, range_of
from drumbeat.errors import ConfigError
from drumbeat.strategies.rebalance import Rebalancer

logger = logging.getLogger("drumbeat")

_KEPT = (
    "shares='auto' has no effect on datasets of drumbeat.data: which rows a worker reads is "
    "settled ahead. They are shared out as %s; give shares as numbers to change that."
)
_ALL_ROWS = (
    "Every worker runs the maps of a tf.data pipeline for all rows of each batch, not for its own "
    "only: %s."
)
_AUTO = "with --shares auto it is settled late which rows of a batch are a worker's"


class Inputs:
    """The inputs of one strategy.

    Attributes:
        shares: How much of each global batch each worker takes.
        rebalancer: What adapts them; None where they stay.
        rows: Where the span of each batch that is handed out is recorded.
        obstacles: Why workers run maps for rows that aren't theirs, as far as they do.

    Args:
        communicator: Of the workers.
        shares: See above.
    """

    def __init__(self, communicator: Communicator, shares: Shares) -> None:
        self.shares = shares
        self.rebalancer: Rebalancer | None = None
        self.rows = BatchRows(communicator.rank, communicator.size)
        self.obstacles: list[str] = []
        self._communicator = communicator
        self._bounds: Any = None
        # To each dataset what a worker runs for its rows; None where it can't be told apart.
        self._at_source: MutableMapping[Any, Any] = weakref.WeakKeyDictionary()
        self._whole = WholeBatches(self.rows, self._rows_of)
        self._placed = PlacedBatches(self.rows)
        self._own = OwnBatches(self.rows, self._agree_on_rows)

    def follow_speed(self) -> None:
        """From now on the shares follow the workers' speed."""
        with tf.init_scope(), tf.device("CPU:0"):
            self._bounds = tf.Variable(
                tf.constant(self.shares.bounds, tf.int64), trainable=False, name="shares"
            )
        self.rebalancer = Rebalancer(self._communicator, lambda: self.shares, self._use)

    def _use(self, shares: Shares) -> None:
        self.shares = shares
        self._bounds.assign(shares.bounds)

    def distribute(self, dataset: Any) -> Any:
        """This worker's view of a dataset of global batches."""
        if isinstance(dataset, DistributedDataset):
            return dataset
        if self._communicator.size == 1:
            return _alone(dataset)
        rank, size = self._communicator.rank, self._communicator.size
        if isinstance(dataset, OrderedDataset):
            if self.rebalancer is not None and rank == 0:
                logger.warning(_KEPT, ", ".join(map(str, self.shares.units)))
            shares = self.shares
            return DistributedOrderedDataset(
                dataset, lambda total: shares.rows_of(rank, total), self._placed, self._gather
            )
        own = shard(dataset, rank, size, self._all_agree)
        if own is not None:
            return DistributedDataset(own, self._own)
        if dataset not in self._at_source:
            self._at_source[dataset] = self._run_for_own_rows(dataset)
        shared = self._at_source[dataset]
        if shared is None:
            return DistributedDataset(in_one_order(dataset), self._whole)
        return DistributedDataset(in_one_order(shared), self._placed)

    def _run_for_own_rows(self, dataset: tf.data.Dataset) -> tf.data.Dataset | None:
        """See `at_source`; None where each worker has to run all of a pipeline."""
        rank, shares = self._communicator.rank, self.shares
        try:
            if self.rebalancer is not None:
                raise NotAtSource(_AUTO)
            return at_source(dataset, rank, lambda total: shares.rows_of(rank, total))
        except NotAtSource as why:
            obstacle = str(why)
            if obstacle and obstacle not in self.obstacles:
                self.obstacles.append(obstacle)
                if rank == 0:
                    logger.info(_ALL_ROWS, obstacle)
            return None

    def from_function(
        self, function: Callable[[tf.distribute.InputContext], Any], devices: int = 1
    ) -> Any:
        """This worker's view of the batches that it makes for itself.

        Args:
            function: Makes a dataset of batches for one device, as in tf.distribute.
            devices: How many this worker has; each takes a batch in each step.
        """
        # In exact mode a batch is for a worker, whatever number of shards it is cut into.
        size = self._communicator.size
        dataset = function(
            tf.distribute.InputContext(
                num_input_pipelines=size,
                input_pipeline_id=self._communicator.rank,
                num_replicas_in_sync=size * devices,
            )
        )
        if devices > 1:
            dataset = joined(dataset, devices)
        return _alone(dataset) if size == 1 else DistributedDataset(dataset, self._own)

    def _rows_of(self, total: Any) -> tuple[Any, Any]:
        """The range of this worker's rows in a global batch of `total` rows."""
        rank = self._communicator.rank
        if self._bounds is None:
            return self.shares.rows_of(rank, total)
        if self.rebalancer is not None and tf.executing_eagerly():
            # In a loop of Python's a step lasts from one batch to the next.
            self.rebalancer.end()
            self.rebalancer.begin()
        bounds = tf.convert_to_tensor(self._bounds)
        return range_of(bounds, rank, total)

    def _agree_on_rows(self, rows: Any) -> Span:
        everyones = self._communicator.all_gather(rows[None])
        return Span(
            tf.reduce_sum(everyones[: self._communicator.rank]), rows, tf.reduce_sum(everyones)
        )

    def _gather(self, numbers: Sequence[int]) -> np.ndarray:
        """Every worker's `numbers`, as many of each, [workers, n]."""
        return self._communicator.all_gather_numpy(np.array([numbers], np.int64), name="data")

    def _all_agree(self, mine: bool) -> bool:
        agreed = self._communicator.all_reduce_numpy(np.array([mine], np.int64), "min")
        return bool(agreed[0])


def _alone(dataset: Any) -> Any:
    return without_autotuning(dataset) if isinstance(dataset, tf.data.Dataset) else dataset


def check(size: int, shares: Shares, exact: int | None) -> None:
    """Whether `size` workers can have these shares of a batch, or of `exact` virtual shards.

    Raises:
        ConfigError: They can't.
    """
    if len(shares.units) != size:
        raise ConfigError(
            f"shares are for {len(shares.units)} workers, {list(shares.units)}, but there are "
            f"{size}. Give one number for each worker."
        )
    if exact is None:
        return
    if exact < 1 or exact % size:
        fits = [n for n in range(1, exact + 1) if exact % n == 0]
        raise ConfigError(
            f"{size} workers can't share {exact} virtual shards evenly; expected a number of "
            f"workers among {fits}, or a number of shards that {size} divides, such as "
            f"{size * -(-max(exact, 1) // size)}."
        )
    if len(set(shares.units)) > 1:
        raise ConfigError(
            f"shares {list(shares.units)} and exact={exact} exclude each other: in exact mode "
            "every worker has as many virtual shards. Leave one of them out."
        )
