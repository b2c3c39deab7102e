"""The networks in PyTorch, with the weights that Keras begins with."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor, nn
from workloads import (
    BLOCKS,
    FEATURES,
    HEADS,
    LENGTH,
    STAGES,
    TABLE_ROWS,
    TABLE_WIDTH,
    VOCABULARY,
    WIDTH,
    WORKLOADS,
    FirstWeights,
)


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 26 * 26, 10))


def dense() -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    widths = (784, 4096, 4096, 1200)
    for inputs, outputs in zip(widths, widths[1:], strict=False):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(1200, 10))


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, 2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def _convolution(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, filters: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            _convolution(inputs, filters, 1, 1),
            nn.ReLU(),
            _convolution(filters, filters, 3, stride),
            nn.ReLU(),
            _convolution(filters, 4 * filters, 1, 1),
        )
        same = inputs == 4 * filters
        self.short = nn.Identity() if same else _convolution(inputs, 4 * filters, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.body(x) + self.short(x))


def resnet() -> nn.Module:
    """ResNet-50 (He et al. 2016), with the stride in the middle of a block."""
    layers: list[nn.Module] = [_convolution(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for filters, blocks, stride in STAGES:
        for block in range(blocks):
            layers.append(Bottleneck(inputs, filters, stride if block == 0 else 1))
            inputs = 4 * filters
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, WIDTH)
        self.positions = nn.Parameter(torch.zeros(LENGTH, WIDTH))
        block = nn.TransformerEncoderLayer(
            WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(
            block, BLOCKS, nn.LayerNorm(WIDTH), enable_nested_tensor=False
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH))

    def forward(self, x: Tensor) -> Tensor:
        x = self.words(x) + self.positions
        return self.head(self.blocks(x, mask=self.mask, is_causal=True))


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(
            nn.Embedding(TABLE_ROWS, TABLE_WIDTH, sparse=True) for _ in range(FEATURES)
        )
        self.hidden = nn.Linear(FEATURES * TABLE_WIDTH, 64)
        self.head = nn.Linear(64, 1)

    def forward(self, x: Tensor) -> Tensor:
        found = [table(x[:, feature]) for feature, table in enumerate(self.tables)]
        return self.head(torch.relu(self.hidden(torch.cat(found, 1))))


def _attention(attention: nn.MultiheadAttention, random: FirstWeights) -> None:
    parts = [random.next((WIDTH, HEADS, WIDTH // HEADS)) for _ in range(3)]
    stacked = np.concatenate([part.reshape(WIDTH, WIDTH).T for part in parts])
    attention.in_proj_weight.copy_(torch.from_numpy(stacked))
    attention.in_proj_bias.zero_()
    out = random.next((HEADS, WIDTH // HEADS, WIDTH)).reshape(WIDTH, WIDTH)
    attention.out_proj.weight.copy_(torch.from_numpy(out.T.copy()))
    attention.out_proj.bias.zero_()


def _in_order(module: nn.Module) -> Iterator[nn.Module]:
    """The parts with weights, in the order in which Keras has them."""
    if isinstance(module, nn.TransformerEncoderLayer):
        yield from (module.self_attn, module.linear1, module.linear2)
    elif isinstance(module, Bottleneck) and not isinstance(module.short, nn.Identity):
        parts = list(_in_order(module.body))
        # In Keras a layer stands before those that are nearer to the output.
        yield from (*parts[:-2], *_in_order(module.short), *parts[-2:])
    elif list(module.children()) and not isinstance(module, nn.MultiheadAttention):
        for child in module.children():
            yield from _in_order(child)
    else:
        yield module


@torch.no_grad()
def _set_first_weights(model: nn.Module) -> None:
    random = FirstWeights()
    channels = None  # of the images, before they are flattened
    for module in _in_order(model):
        if isinstance(module, nn.MultiheadAttention):
            _attention(module, random)
        elif isinstance(module, nn.Conv2d):
            outputs, inputs, *size = module.weight.shape
            kernel = random.next((*size, inputs, outputs))
            module.weight.copy_(torch.from_numpy(kernel.transpose(3, 2, 0, 1).copy()))
            channels = outputs
        elif isinstance(module, nn.Linear):
            kernel = random.next((module.in_features, module.out_features))
            if channels and module.in_features == channels * 26 * 26:
                kernel = kernel.reshape(26, 26, channels, -1).transpose(2, 0, 1, 3)
                kernel = kernel.reshape(module.in_features, -1)
            module.weight.copy_(torch.from_numpy(kernel.T.copy()))
        elif isinstance(module, nn.Embedding):
            module.weight.copy_(torch.from_numpy(random.next(tuple(module.weight.shape))))
            if isinstance(model, Transformer):
                model.positions.copy_(torch.from_numpy(random.next((LENGTH, WIDTH))))
        if getattr(module, "bias", None) is not None and not isinstance(
            module, nn.MultiheadAttention
        ):
            module.bias.zero_()


def made(name: str) -> nn.Module:
    """The network `name` with its first weights."""
    classes = {"transformer": Transformer, "recommender": Recommender}
    model = classes[name]() if name in classes else globals()[name]()
    _set_first_weights(model)
    return model


def optimizer(name: str, model: nn.Module) -> torch.optim.Optimizer:
    workload = WORKLOADS[name]
    if workload.optimizer == "adam":
        return torch.optim.Adam(model.parameters(), workload.rate, eps=1e-7)
    momentum = 0.9 if workload.optimizer == "momentum" else 0.0
    return torch.optim.SGD(model.parameters(), workload.rate, momentum=momentum)


def loss_of(name: str, scores: Tensor, labels: Tensor) -> Tensor:
    if name == "recommender":
        return nn.functional.binary_cross_entropy_with_logits(scores, labels)
    return nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
