"""Networks for small grey images, without layers that mix users."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from shoal import _validate
from shoal.errors import InvalidInput, InvalidType
from shoal.training import features
from shoal.training.data import Bytes
from shoal.training.randomness import Randomness, uniforms

CENTRE, SPREAD = 0.1307, 0.3081
"""Mean and standard deviation of brightness, as generally used for MNIST."""

_SIDE_MIN = 14


class Flatten(nn.Module):
    """Flattens each image in the order of channels-last memory, which copies nothing."""

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)


def small(side: int, classes: int) -> nn.Sequential:
    """One convolution and one linear layer.

    There are 8,890 parameters for 28 x 28 images and ten classes.

    Args:
        side: Rows (and columns) of an image.
        classes: Number of classes.

    Returns:
        The layers, with PyTorch's initial weights.
    """
    after = (side + 4 - 8) // 4 + 1
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=4, padding=2),
        nn.ReLU(),
        Flatten(),
        nn.Linear(16 * after * after, classes),
    )


def opacus(side: int, classes: int) -> nn.Sequential:
    """The network of Opacus' MNIST example, with 26,010 parameters.

    Args:
        side: Rows (and columns) of an image.
        classes: Number of classes.

    Returns:
        The layers, with PyTorch's initial weights.
    """
    after = (((side - 2) // 2) - 4) // 2
    return nn.Sequential(
        nn.Conv2d(1, 16, 8, stride=2, padding=3),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.ReLU(),
        nn.MaxPool2d(2, 1),
        Flatten(),
        nn.Linear(32 * after * after, 32),
        nn.ReLU(),
        nn.Linear(32, classes),
    )


def linear_on_histograms(side: int, classes: int) -> nn.Sequential:
    """A linear model on fixed features.

    There are 3,920 parameters for ten classes. A bias did not help.

    Args:
        side: Rows (and columns) of an image.
        classes: Number of classes.

    Returns:
        The layer, with PyTorch's initial weights.
    """
    return nn.Sequential(nn.Linear(features.size(side), classes, bias=False))


def standardised(images: Bytes) -> Tensor:
    """Images as a network takes them: users x 1 x rows x columns, standardised."""
    values = torch.from_numpy(images.astype("float32")).div_(255.0).sub_(CENTRE).div_(SPREAD)
    return values[:, None].contiguous(memory_format=torch.channels_last)


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network: its layers for a side and a number of classes, and its inputs for images."""

    layers: Callable[[int, int], nn.Sequential]
    inputs: Callable[[Bytes], Tensor] = standardised
    from_zero: bool = False
    """Whether weights start at 0, as they may for a convex problem."""


NETWORKS = {
    "small": Network(layers=small),
    "opacus": Network(layers=opacus),
    "histograms": Network(layers=linear_on_histograms, inputs=features.histograms, from_zero=True),
}


def build(name: str, *, side: int, classes: int, randomness: Randomness) -> nn.Module:
    """A network by name, with fresh weights in channels-last memory.

    Args:
        name: A key of `NETWORKS`.
        side: Rows (and columns) of an image.
        classes: Number of classes.
        randomness: Where the initial weights come from.

    Returns:
        The network.

    Raises:
        InvalidInput: If the name is unknown or the images are too small.
    """
    network = NETWORKS[_validate.choice("network", name, tuple(NETWORKS))]
    if side < _SIDE_MIN:
        raise InvalidInput(f"images must have at least {_SIDE_MIN} rows for the network, got {side}")
    model = network.layers(side, classes)
    with torch.no_grad():
        for layer in model:
            if isinstance(layer, (nn.Linear, nn.Conv2d)):
                # PyTorch's own rule, uniform in +-1/sqrt(inputs), from a generator that can be repeated.
                bound = 0.0 if network.from_zero else 1.0 / math.sqrt(layer.weight[0].numel())
                for p in layer.parameters():
                    drawn = torch.from_numpy(bound * (2.0 * uniforms(randomness, p.numel()) - 1.0))
                    p.copy_(drawn.view_as(p))
    for p in model.parameters():
        if p.dim() == 4:
            p.data = p.data.contiguous(memory_format=torch.channels_last)
    return model


OWN = "own"
"""The network of a run whose model was given as an object."""


def check_network(name: str) -> str:
    """Check a network's name: a key of `NETWORKS`, `module:function`, or `own`."""
    if not isinstance(name, str):
        raise InvalidType(f"network must be a name, got {name!r}")
    if name != OWN and not all(part.isidentifier() for part in name.replace(":", ".").split(".") if ":" in name):
        raise InvalidInput(f"network must be like package.module:function, got {name!r}")
    return name if name == OWN or ":" in name else _validate.choice("network", name, tuple(NETWORKS))


def import_model(name: str, *, seed: int | None) -> nn.Module:
    """The model that `module:function` returns when called without arguments.

    Args:
        name: The function, as `module:function`.
        seed: Seed of PyTorch's generator during the call; None draws one.

    Returns:
        The model.

    Raises:
        InvalidInput: If the function cannot be imported.
        InvalidType: If it returns something else than a module.
    """
    module, _, function = name.partition(":")
    try:
        factory = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError) as error:
        raise InvalidInput(f"model must be module:function that can be imported, got {name!r}: {error}") from None
    with torch.random.fork_rng():
        torch.seed() if seed is None else torch.manual_seed(seed)
        model = factory()
    if not isinstance(model, nn.Module):
        raise InvalidType(f"model must be a function that returns a torch.nn.Module, got {type(model).__name__}")
    return model


@torch.no_grad()
def model_accuracy(model: nn.Module, inputs: Tensor, labels: Tensor, *, batch: int = 500) -> float:
    """The share of records that the model classifies correctly, without dropout.

    Args:
        model: The model, whose training mode is restored afterwards.
        inputs: Records to classify.
        labels: Their classes.
        batch: Number of records classified at a time.

    Returns:
        A share between 0 and 1.
    """
    training = [m for m in model.modules() if m.training]
    model.eval()
    correct = 0
    for i in range(0, len(labels), batch):
        correct += int((model(inputs[i : i + batch]).argmax(dim=1) == labels[i : i + batch]).sum())
    for m in training:
        m.training = True
    return correct / len(labels)


def weights(model: nn.Module) -> list[Tensor]:
    """The trainable parameters, detached: they share memory with the model."""
    return [p.detach() for p in model.parameters() if p.requires_grad]


@torch.no_grad()
def set_weights(model: nn.Module, values: Sequence[Tensor]) -> None:
    """Copy values into the trainable parameters.

    Args:
        model: The model to change.
        values: One tensor for each trainable parameter, in order.
    """
    for p, value in zip(weights(model), values, strict=True):
        p.copy_(value)
