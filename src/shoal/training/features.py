"""Image features that each user computes from its own image alone; nothing is learnt.

Histograms of oriented gradients (Dalal and Triggs 2005) in a smooth form. At each pixel the brightness
rises in some direction, by some amount; eight channels, one for each eighth of the circle, share that
amount linearly between the two nearest directions. Each channel is averaged in 10 x 10 windows (Hann) every
3 pixels: 7 x 7 x 8 numbers for a 28 x 28 image. Their square roots (as in "RootSIFT", Arandjelović and
Zisserman 2012), centred and scaled to length 1 *within the record*, are the features: every record has the
same length, so that clipping is the same for all.

A linear model on fixed features is what private training with little budget needs (Tramèr and Boneh 2021):
noise is added to each weight, so few weights, and none of the noise of one layer is multiplied by another.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from shoal.training.data import Bytes

DIRECTIONS, WINDOW, STEP = 8, 10, 3
_IMAGES_AT_ONCE = 1_000


def histograms(images: Bytes) -> Tensor:
    """Features of images: one row of length 1 for each image."""
    return torch.cat([_histograms(images[i : i + _IMAGES_AT_ONCE]) for i in range(0, len(images), _IMAGES_AT_ONCE)])


def size(side: int) -> int:
    """Number of features of a square image."""
    cells = (side - WINDOW) // STEP + 1
    return DIRECTIONS * cells * cells


def _histograms(images: Bytes) -> Tensor:
    x = functional.pad(torch.from_numpy(images.astype("float32")).div_(255.0), (1, 1, 1, 1))
    across, down = x[:, 1:-1, 2:] - x[:, 1:-1, :-2], x[:, 2:, 1:-1] - x[:, :-2, 1:-1]
    turn = torch.remainder(torch.atan2(down, across) / (2.0 * math.pi), 1.0) * DIRECTIONS
    below = turn.floor()
    share, nearest = turn - below, below.long() % DIRECTIONS
    amount = torch.hypot(across, down)
    channels = amount.new_zeros(len(x), DIRECTIONS, *amount.shape[1:])
    channels.scatter_add_(1, nearest[:, None], (amount * (1.0 - share))[:, None])
    channels.scatter_add_(1, ((nearest + 1) % DIRECTIONS)[:, None], (amount * share)[:, None])
    window = torch.hann_window(WINDOW + 2, periodic=False)[1:-1]
    window = window / window.sum()
    kernel = (window[:, None] * window).expand(DIRECTIONS, 1, WINDOW, WINDOW)
    cells = functional.conv2d(channels, kernel, stride=STEP, groups=DIRECTIONS).flatten(1)
    roots = cells.clamp(min=0.0).sqrt()
    centred = roots - roots.mean(dim=1, keepdim=True)
    return functional.normalize(centred, dim=1)  # an empty image stays at 0
