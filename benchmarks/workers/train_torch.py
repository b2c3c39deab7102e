"""Trains a workload with PyTorch, under DistributedDataParallel (gloo) with several workers."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable

import clock
import torch
import torch.distributed
import workloads
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    Sampler,
    SequentialSampler,
    Subset,
    TensorDataset,
)
from torch_models import loss_of, made, optimizer

RANK = int(os.environ.get("RANK", "0"))


class Pictures(Dataset):
    def __init__(self, paths: list[str], count: int) -> None:
        self._paths = paths[:count]
        self._labels = torch.from_numpy(workloads.labels_of_pictures())

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        from decoding import picture

        pixels = torch.from_numpy(picture(self._paths[number], number))
        return pixels.permute(2, 0, 1).contiguous(), self._labels[number]


def loader(options: argparse.Namespace, steps: int) -> DataLoader:
    """This worker's part of each global batch."""
    workload = workloads.WORKLOADS[options.workload]
    count = workload.rows * options.workers * steps
    if options.workload == "images":
        pictures: Dataset = Pictures(workloads.pictures(options.pictures), count)
        return DataLoader(
            pictures,
            batch_size=workload.rows,
            sampler=_sampler(pictures, options.workers),
            num_workers=1,
            persistent_workers=True,
        )
    examples, labels = (torch.from_numpy(array) for array in workload.examples(options.workers))
    if examples.ndim == 4:
        examples = examples.permute(0, 3, 1, 2).contiguous()
    if options.workload == "recommender":
        examples = examples.long()
    data = Subset(TensorDataset(examples, labels), range(count))
    # A batch is taken in one go: faster than row by row.
    batches = BatchSampler(_sampler(data, options.workers), workload.rows, drop_last=True)
    return DataLoader(data.dataset, sampler=batches, batch_size=None)


def _sampler(data: Dataset, workers: int) -> Sampler:
    if workers == 1:
        return SequentialSampler(data)
    return DistributedSampler(data, shuffle=False)


class Trainer:
    """A plain loop, with the mean loss and the accuracy of each epoch."""

    def __init__(self, name: str, model: nn.Module) -> None:
        self._name = name
        self._model = model
        self._optimizer = optimizer(name, model)

    def epoch(self, batches: Iterable) -> float:
        total, right, rows = torch.zeros(()), torch.zeros(()), 0
        for examples, labels in batches:
            self._optimizer.zero_grad()
            scores = self._model(examples)
            loss = loss_of(self._name, scores, labels)
            loss.backward()
            self._optimizer.step()
            total += loss.detach() * len(examples)
            rows += len(examples)
            if self._name != "recommender":
                right += (scores.detach().argmax(-1) == labels).sum()
        return float(total) / rows


def _mean(loss: float, workers: int) -> float:
    """Over the workers."""
    if workers == 1:
        return loss
    value = torch.tensor(loss)
    torch.distributed.all_reduce(value)
    return float(value) / workers


def main() -> None:
    options = clock.arguments()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    workload = workloads.WORKLOADS[options.workload]
    steps = options.steps or workload.steps
    model = made(options.workload)
    count = sum(parameter.numel() for parameter in model.parameters())
    if options.workers > 1:
        torch.distributed.init_process_group("gloo")
        model = DistributedDataParallel(model)
    mine = clock.Clock(options, RANK)
    trainer = Trainer(options.workload, model)
    batches = loader(options, steps)
    first = trainer.epoch([next(iter(batches))])
    mine.first_step(_mean(first, options.workers))
    losses = []
    for _ in range(options.epochs):
        losses.append(_mean(trainer.epoch(batches), options.workers))
        mine.epoch()
    mine.write(
        steps=steps,
        rows=workload.rows * options.workers,
        losses=losses,
        parameters=count,
        versions=f"torch {torch.__version__}",
    )
    if options.workers > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
