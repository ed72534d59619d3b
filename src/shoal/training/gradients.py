"""The gradients of a microbatch of users, in parts: each gives norms, a weighted sum, and the gradients.

A part belongs to one parameter. B users' gradients of a matrix W are `sum_l left_l right_l^T` over L positions, and
so are those of a convolution, whose positions are its outputs and whose inputs are patches. Then either

- the B products are formed, one batched product, and both norms and sum are read off them; or
- where L is small against the size of W, norms come from
  `|sum_l left_l right_l^T|^2 = sum_{l,m} (left_l . left_m) (right_l . right_m)`
  (Goodfellow 2015; Li et al. 2022, "ghost clipping") and the weighted sum is one product over all users.

Norms and sums of a part are of the same numbers, so that no gradient enters the sum longer than its norm says, but
for rounding.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

_GHOST_POSITIONS = 16
"""With more positions than these, forming the products was always faster where it was measured."""

_PIECE = 1_024
"""Numbers of which a norm is taken at once.

PyTorch adds the squares of contiguous rows in eight sums side by side (where it was looked at): in single precision
each errs by 128 roundings, and the norm by half as much, 4e-6 at worst.
"""

_ROUNDING = 32
"""Times the precision: more than what Gram matrices were seen to be off."""


def _few(positions: int, numbers: int) -> bool:
    """Whether norms without products pay: products cost that many numbers a user, Gram matrices L^2 products each."""
    return positions <= _GHOST_POSITIONS and 2 * positions**2 <= numbers


def _rows(formed: Tensor) -> Tensor:
    """A row for each user, also of a parameter that is a single number."""
    if formed.dim() == 2:
        return formed
    return formed[:, None] if formed.dim() == 1 else formed.flatten(1)


def _norms(formed: Tensor) -> Tensor:
    """Of long rows by pieces, as many numbers added one after the other lose more digits than the margin has."""
    rows = _rows(formed).contiguous()
    whole = rows.shape[1] // _PIECE * _PIECE if rows.shape[1] > _PIECE else 0
    if whole:
        pieces = torch.linalg.vector_norm(rows[:, :whole].reshape(rows.shape[0], -1, _PIECE), dim=2)
        return _norms(torch.cat([pieces, torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)], dim=1))
    found: Tensor = torch.linalg.vector_norm(rows, dim=1)
    return found


def _each(given: Tensor) -> int:
    """How many numbers there are for each user."""
    return given.numel() // given.shape[0]


def _scaled(left: Tensor, right: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """The smaller side times the factors."""
    return (left * factors, right) if left.shape[-1] <= right.shape[-1] else (left, right * factors)


def _by_grams(left: Tensor, right: Tensor) -> Tensor:
    """Norms from Gram matrices.

    Where the products of a user cancel each other, rounding counts more than what is left: so that no gradient is taken
    for shorter than it is, `_ROUNDING` of the squared sum of the products' norms is added.
    """
    longest = (left.diagonal(dim1=1, dim2=2) * right.diagonal(dim1=1, dim2=2)).sqrt().sum(dim=1).square()
    return ((left * right).sum(dim=(1, 2)) + _ROUNDING * torch.finfo(left.dtype).eps * longest).clamp(min=0.0).sqrt()


@dataclass(frozen=True, kw_only=True)
class Direct:
    """Gradients formed, B x the parameter's shape."""

    gradients: Tensor

    @property
    def numbers(self) -> int:
        """How many numbers are kept for a user: here and in the other parts."""
        return _each(self.gradients)

    def norms(self) -> list[Tensor]:
        """Whose squares add up to those of the gradients' norms: here and in the other parts."""
        return [_norms(self.gradients)]

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum of the gradients, each times its factor, as one flat vector: here and in the other parts."""
        return factors @ _rows(self.gradients)

    def each(self) -> Tensor:
        return self.gradients


@dataclass(frozen=True, kw_only=True)
class Outer:
    """Gradients `left right^T` of a matrix, from B x rows and B x columns."""

    left: Tensor
    right: Tensor

    @property
    def numbers(self) -> int:
        return _each(self.left) + _each(self.right)

    def norms(self) -> list[Tensor]:
        return [_norms(self.left) * _norms(self.right)]

    def weighted(self, factors: Tensor) -> Tensor:
        left, right = _scaled(self.left, self.right, factors[:, None])
        return (left.T @ right).view(-1)

    def each(self) -> Tensor:
        return self.left[:, :, None] * self.right[:, None]


class Product:
    """Gradients `sum_l left_l right_l^T` of a matrix, from B x L x rows and B x L x columns."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right

    @functools.cached_property
    def formed(self) -> Tensor | None:
        few = _few(self.left.shape[1], self.left.shape[2] * self.right.shape[2])
        return None if few else torch.bmm(self.left.mT, self.right)

    @property
    def numbers(self) -> int:
        return sum(_each(t) for t in (self.left, self.right, self.formed) if t is not None)

    def norms(self) -> list[Tensor]:
        if self.formed is not None:
            return [_norms(self.formed)]
        return [_by_grams(torch.bmm(self.left, self.left.mT), torch.bmm(self.right, self.right.mT))]

    def weighted(self, factors: Tensor) -> Tensor:
        if self.formed is not None:
            return Direct(gradients=self.formed).weighted(factors)
        left, right = _scaled(self.left, self.right, factors[:, None, None])
        return (left.flatten(0, 1).T @ right.flatten(0, 1)).view(-1)

    def each(self) -> Tensor:
        return torch.bmm(self.left.mT, self.right) if self.formed is None else self.formed


@dataclass(frozen=True, kw_only=True)
class Geometry:
    """Of a convolution, for rows and columns."""

    kernel: tuple[int, int]
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]

    @functools.cached_property
    def reach(self) -> int:
        """How far its last row lies below its first."""
        return self.dilation[0] * (self.kernel[0] - 1)

    def positions(self, size: int, axis: int) -> int:
        """How many output positions there are along an axis of that size."""
        reach = self.dilation[axis] * (self.kernel[axis] - 1)
        return (size + 2 * self.padding[axis] - reach - 1) // self.stride[axis] + 1

    @property
    def dense(self) -> bool:
        """Whether no row lies between two of the kernel's: then columns that are written out can be convolved.

        That was as fast as PyTorch's own convolution of channels-last images where it was measured (within 2 %), and
        with one channel faster by a fifth to a third. What comes out is channels-last, which suits pooling best.
        """
        return self.dilation[0] == 1

    @functools.cached_property
    def bands(self) -> Sequence[tuple[int, int]]:
        """The kernel's rows in groups of one size: how many steps down each begins, and at which row of the step."""
        step, apart = self.stride[0], self.dilation[0]
        return [divmod(i * apart, step) for i in range(0, self.kernel[0], self.together)]

    @functools.cached_property
    def together(self) -> int:
        """How many rows a group has: such that none reaches beyond a step."""
        return math.gcd(self.kernel[0], self.stride[0]) if self.dilation[0] == 1 else 1


class Columns:
    """The inputs B x C x H x W of a convolution, with the columns of its kernel written out.

    Patches overlap, and most of the time would go into writing them out whole. Only the columns of the kernel are:
    each row of positions is kept once, beside the rows of its step, and a band of the kernel's rows finds all its
    inputs in one block of this, some steps further down.
    """

    def __init__(self, x: Tensor, geometry: Geometry) -> None:
        self.geometry, self.channels = geometry, x.shape[1]
        self.kept = _columns(x, geometry)
        """B x steps x positions across x (rows of a step, kernel's columns, channels)."""

    def bands(self) -> list[Tensor]:
        """The inputs of all positions that meet a band of the kernel's rows: B x L x (its rows, columns, channels)."""
        steps, across = self.kept.shape[1:3]
        down = steps - self.geometry.reach // self.geometry.stride[0]
        flat, row = self.kept.flatten(1, 2), self.geometry.kernel[1] * self.channels
        found = [flat.narrow(1, step * across, down * across) for step, _ in self.geometry.bands]
        wide = self.geometry.together * row
        if wide == flat.shape[2]:
            return found
        return [part.narrow(2, first * row, wide) for part, (_, first) in zip(found, self.geometry.bands, strict=True)]

    def convolved(self, weight: Tensor, bias: Tensor | None) -> Tensor:
        """The convolution's outputs: those of a kernel of one column, whose rows are the bands."""
        outputs, channels, rows, columns = weight.shape
        step = self.kept.shape[3] // (columns * channels)
        bands = -(-rows // step)
        whole = functional.pad(weight, (0, 0, 0, bands * step - rows)) if rows % step else weight
        tall = whole.view(outputs, channels, bands, step, columns).permute(0, 2, 3, 4, 1).reshape(outputs, bands, 1, -1)
        return functional.conv2d(self.kept.permute(0, 3, 1, 2), tall.permute(0, 3, 1, 2), bias)


class Convolution:
    """Gradients of a convolution's weight, from its inputs and output gradients B x O x H' x W'."""

    def __init__(self, columns: Columns, g: Tensor) -> None:
        self.geometry, self.channels = columns.geometry, columns.channels
        self.outputs = g.permute(0, 2, 3, 1).flatten(1, 2)
        self.bands = columns.bands()
        numbers = g.shape[1] * len(self.bands) * self.bands[0].shape[2]
        self.numbers = _each(columns.kept) + _each(self.outputs) + numbers
        self.formed = None if _few(self.outputs.shape[1], numbers) else self._products()
        if self.formed is not None:  # inputs are needed no more, and what comes next finds their place in the cache
            self.bands, self.outputs = [], self.outputs[:0]

    def norms(self) -> list[Tensor]:
        if self.formed is not None:
            return list(_norms(self.formed.flatten(0, 1)).view(self.formed.shape[:2]).unbind())
        inputs = torch.stack([torch.bmm(band, band.mT) for band in self.bands]).sum(dim=0)
        return [_by_grams(inputs, torch.bmm(self.outputs, self.outputs.mT))]

    def weighted(self, factors: Tensor) -> Tensor:
        if self.formed is not None:
            found = torch.bmm(factors.expand(len(self.formed), 1, -1), self.formed)
        else:
            scaled = (self.outputs * factors[:, None, None]).flatten(0, 1).T
            found = torch.stack([(scaled @ band.flatten(0, 1)).view(1, -1) for band in self.bands])
        return self._weights(found).flatten()

    def each(self) -> Tensor:
        return self._weights(self._products() if self.formed is None else self.formed)

    def _products(self) -> Tensor:
        """Bands x B x (outputs, a band's rows, columns, channels)."""
        users, outputs = self.outputs.shape[0], self.outputs.shape[2]
        found = self.outputs.new_empty(len(self.bands), users, outputs, self.bands[0].shape[2])
        for band, into in zip(self.bands, found.unbind(), strict=True):
            torch.bmm(self.outputs.mT, band, out=into)
        return found.flatten(2)

    def _weights(self, products: Tensor) -> Tensor:
        """In the order of the weight: B x O x C x rows x columns."""
        shape = (*products.shape[:2], -1, self.geometry.together, self.geometry.kernel[1], self.channels)
        return products.view(shape).permute(1, 2, 5, 0, 3, 4).flatten(3, 4)


def _columns(x: Tensor, geometry: Geometry) -> Tensor:
    columns, (sh, sw), (ph, pw), dw = geometry.kernel[1], geometry.stride, geometry.padding, geometry.dilation[1]
    users, channels, height, width = x.shape
    steps, across = geometry.positions(height, 0) + geometry.reach // sh, geometry.positions(width, 1)
    residues = min(sh, geometry.reach + 1)
    below = max(ph, (steps - 1) * sh + residues - height - ph)
    last = x.permute(0, 2, 3, 1)
    if pw or ph or below:
        last = functional.pad(last, (0, 0, pw, pw, ph, below))
    last = last.contiguous()
    kept, row = last.new_empty(users, steps, across, residues, columns, channels), last.shape[2] * channels
    unit, wide = 16 // last.element_size(), columns * channels
    numbers = (wide, sw * channels, row, last.storage_offset())
    if dw == 1 and wide <= 4 * unit and not any(n % unit for n in numbers):
        # Neighbours of which all or none are wanted are copied as one number of 16 bytes: of a few such numbers each
        # goes to all positions at once.
        taken, right, down, first = (n // unit for n in numbers)
        given, into = (t.view(-1).view(torch.complex128) for t in (last, kept))
        for i, place in enumerate(into.view(users, steps, across, -1).unbind(3)):
            begins = first + i // taken * down + i % taken
            place.copy_(given.as_strided(place.shape, (last.stride(0) // unit, down * sh, right), begins))
    else:
        strides, first = (last.stride(0), row * sh, channels * sw, channels * dw, 1), last.storage_offset()
        for r, place in enumerate(kept.unbind(3)):  # one copy each is several times as fast as one of all
            place.copy_(last.as_strided(place.shape, strides, first + r * row))
    return kept.flatten(3)


OfParameter = Direct | Outer | Product | Convolution


def added(parts: Sequence[OfParameter]) -> OfParameter:
    """The gradients of a parameter that was used several times: they are added before anything is squared."""
    if len(parts) == 1:
        return parts[0]
    products = [p for p in parts if isinstance(p, (Outer, Product))]
    if len(products) == len(parts):
        left, right = (
            [side if side.dim() == 3 else side[:, None] for side in sides]
            for sides in zip(*((p.left, p.right) for p in products), strict=True)
        )
        return Product(torch.cat(left, dim=1), torch.cat(right, dim=1))
    return Direct(gradients=torch.stack([_rows(p.each()) for p in parts]).sum(dim=0))


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """Of all parameters, in their order; those without a part have gradient 0."""

    parameters: Sequence[nn.Parameter]
    parts: Mapping[int, OfParameter]
    """By the parameter's id."""
    losses: Tensor
    uses: Sequence[torch.Size] = ()
    """The shapes of what was used, in the order of use: a pass that shows others did something else."""

    def norms(self) -> Tensor:
        found = [norm for part in self.parts.values() for norm in part.norms()]
        return torch.linalg.vector_norm(torch.stack(found), dim=0) if found else torch.zeros_like(self.losses)

    def weighted(self, factors: Tensor) -> Tensor:
        found = {key: part.weighted(factors) for key, part in self.parts.items()}
        return torch.cat([found[id(p)] if id(p) in found else p.new_zeros(p.numel()) for p in self.parameters])

    def each(self) -> Tensor:
        users, found = len(self.losses), {key: _rows(part.each()) for key, part in self.parts.items()}
        return torch.cat([found.get(id(p), p.new_zeros(users, p.numel())) for p in self.parameters], dim=1)


@dataclass(frozen=True, kw_only=True)
class Rows:
    """Gradients formed, a row each."""

    gradients: Tensor
    losses: Tensor

    def norms(self) -> Tensor:
        return _norms(self.gradients)

    def weighted(self, factors: Tensor) -> Tensor:
        return factors @ self.gradients

    def each(self) -> Tensor:
        return self.gradients


def as_one(found: Gradients | Rows, owners: Tensor) -> Rows:
    """The gradients of users' mean losses, from those of their records."""
    counts = torch.bincount(owners).to(found.losses.dtype)
    gradients, users = found.each(), len(counts)
    share = (1.0 / counts)[owners]
    return Rows(
        gradients=gradients.new_zeros(users, gradients.shape[1]).index_add_(
            0, owners, gradients * share[:, None].to(gradients.dtype)
        ),
        losses=found.losses.new_zeros(users).index_add_(0, owners, found.losses * share),
    )
