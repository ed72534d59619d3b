"""The gradients of a microbatch of users, by parameter: their norms, their weighted sum, and the gradients themselves.

A part belongs to one parameter and has a row for each user. Norms and sums of a part are of the same numbers, so that
no gradient enters the sum longer than its norm says, but for rounding.

- `Direct`: the gradients as they are.
- `Product`: user i's gradient of a matrix is `sum_l left_l right_l^T` over L positions. With one position its norm is
  `|left| |right|`. With few, it follows from
  `|sum_l left_l right_l^T|^2 = sum_{l,m} (left_l . left_m) (right_l . right_m)`
  (Goodfellow 2015; Li et al. 2022, "ghost clipping"), and the sum is one product over all users. With more, the
  gradients are formed by one batched product, which is quicker.
- `Convolution`: the same, where right holds the patches of an image.
- `Rows`: the rows of a table that a user looked up, with what each gets.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

_GRAM_POSITIONS = 16
"""With more positions than these, forming the products was always faster where it was measured."""

_PIECE = 1_024
"""Numbers of which a norm is taken at once.

PyTorch adds the squares of contiguous rows in eight sums side by side (where it was looked at): in single precision
each errs by 128 roundings, and the norm by half as much, 4e-6 at worst.
"""

_ROUNDING = 32
"""Times the precision: more than what Gram matrices were seen to be off."""


def suits_grams(positions: int, numbers: int) -> bool:
    """Whether norms without products pay: products cost that many numbers a user, Gram matrices L^2 products each."""
    return positions == 1 or (positions <= _GRAM_POSITIONS and 2 * positions**2 <= numbers)


def _norms(values: Tensor) -> Tensor:
    """Norms of rows, long ones by pieces: numbers added one after the other lose more digits than the margin has."""
    rows = values.contiguous()
    whole = rows.shape[1] // _PIECE * _PIECE if rows.shape[1] > _PIECE else 0
    if whole:
        pieces = torch.linalg.vector_norm(rows[:, :whole].reshape(rows.shape[0], -1, _PIECE), dim=2)
        return _norms(torch.cat([pieces, torch.linalg.vector_norm(rows[:, whole:], dim=1, keepdim=True)], dim=1))
    return torch.as_tensor(torch.linalg.vector_norm(rows, dim=1))


def _gram_norms(left: Tensor, right: Tensor) -> Tensor:
    """Norms from Gram matrices, B x L x L.

    Where the products of a user cancel each other, rounding counts more than what is left: so that no gradient is taken
    for shorter than it is, `_ROUNDING` of the squared sum of the products' norms is added.
    """
    longest = (left.diagonal(dim1=1, dim2=2) * right.diagonal(dim1=1, dim2=2)).sqrt().sum(dim=1).square()
    return ((left * right).sum(dim=(1, 2)) + _ROUNDING * torch.finfo(left.dtype).eps * longest).clamp(min=0.0).sqrt()


class OfParameter:
    """The gradients of a parameter, a row for each user."""

    def rows(self) -> Tensor:
        """The gradients, a flat row for each user."""
        raise NotImplementedError

    def norms(self) -> list[Tensor]:
        """Numbers for each user whose squares add up to the square of the gradient's norm."""
        return [_norms(self.rows())]

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum of the gradients, each times its factor, as one flat vector."""
        return factors @ self.rows()


class Direct(OfParameter):
    """Gradients as they are, B x the parameter's shape."""

    def __init__(self, gradients: Tensor) -> None:
        self.gradients = gradients

    def rows(self) -> Tensor:
        return self.gradients[:, None] if self.gradients.dim() == 1 else self.gradients.flatten(1)


class Product(OfParameter):
    """Gradients `sum_l left_l right_l^T` of a matrix, from B x L x rows and B x L x columns."""

    def __init__(self, left: Tensor, right: Tensor) -> None:
        self.left, self.right = left, right
        self.grams = suits_grams(left.shape[1], left.shape[2] * right.shape[2])

    @functools.cached_property
    def formed(self) -> Tensor:
        """The gradients."""
        return torch.bmm(self.left.mT, self.right).flatten(1)

    def rows(self) -> Tensor:
        return self.formed

    def norms(self) -> list[Tensor]:
        if self.left.shape[1] == 1:
            return [_norms(self.left.flatten(1)) * _norms(self.right.flatten(1))]
        if self.grams:
            return [_gram_norms(torch.bmm(self.left, self.left.mT), torch.bmm(self.right, self.right.mT))]
        return [_norms(self.formed)]

    def weighted(self, factors: Tensor) -> Tensor:
        if not self.grams:
            return factors @ self.formed
        left, right, scale = self.left, self.right, factors[:, None, None]
        left, right = (left * scale, right) if left.shape[2] <= right.shape[2] else (left, right * scale)
        return (left.flatten(0, 1).T @ right.flatten(0, 1)).view(-1)


class Rows(OfParameter):
    """Gradients of a table of which each user looked up L rows, from B x L indices and B x L x columns."""

    def __init__(self, indices: Tensor, gradients: Tensor, size: int) -> None:
        self.indices, self.gradients, self.size = indices, gradients, size

    def rows(self) -> Tensor:
        users = torch.arange(len(self.indices), device=self.indices.device)
        total = self.gradients.new_zeros(len(users) * self.size, self.gradients.shape[2])
        places = (self.indices + self.size * users[:, None]).flatten()
        return total.index_add_(0, places, self.gradients.flatten(0, 1)).view(len(users), -1)

    def norms(self) -> list[Tensor]:
        if self.indices.shape[1] ** 2 > self.size * self.gradients.shape[2]:
            return super().norms()
        same = (self.indices[:, :, None] == self.indices[:, None]).to(self.gradients.dtype)
        return [_gram_norms(torch.bmm(self.gradients, self.gradients.mT), same)]

    def weighted(self, factors: Tensor) -> Tensor:
        total = self.gradients.new_zeros(self.size, self.gradients.shape[2])
        scaled = (self.gradients * factors[:, None, None]).flatten(0, 1)
        return total.index_add_(0, self.indices.flatten(), scaled).view(-1)


class Convolution(Product):
    """Gradients of a convolution, from output gradients B x L x outputs and patches B x L x (kernel, channels)."""

    def __init__(self, left: Tensor, right: Tensor, kernel: torch.Size) -> None:
        super().__init__(left, right)
        self.shape = (left.shape[2], *kernel, right.shape[2] // kernel.numel())

    def rows(self) -> Tensor:
        return self.formed.view(len(self.formed), *self.shape).permute(0, 1, 4, 2, 3).flatten(1)

    def weighted(self, factors: Tensor) -> Tensor:
        return super().weighted(factors).view(self.shape).permute(0, 3, 1, 2).flatten()


def added(parts: Sequence[OfParameter]) -> OfParameter:
    """The gradients of a parameter that was used several times: they are added before anything is squared."""
    if len(parts) == 1:
        return parts[0]
    products = [p for p in parts if type(p) is Product]
    if len(products) == len(parts):
        return Product(torch.cat([p.left for p in products], dim=1), torch.cat([p.right for p in products], dim=1))
    return Direct(functools.reduce(torch.add, (p.rows() for p in parts)))


@dataclass(frozen=True, kw_only=True)
class Gradients:
    """The gradients of all users of a microbatch; parameters without a part have gradient 0."""

    sizes: Sequence[int]
    """How many numbers each parameter has."""
    parts: Mapping[int, OfParameter]
    """By the parameter's place."""
    losses: Tensor

    def norms(self) -> Tensor:
        """The norm of each user's gradient."""
        norms = [norm for part in self.parts.values() for norm in part.norms()]
        return torch.linalg.vector_norm(torch.stack(norms), dim=0) if norms else torch.zeros_like(self.losses)

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum of the gradients, each times its factor, as one flat vector."""
        sums = {place: part.weighted(factors) for place, part in self.parts.items()}
        return torch.cat([sums[i] if i in sums else factors.new_zeros(n) for i, n in enumerate(self.sizes)])

    def rows(self) -> Tensor:
        """The gradients, a row for each user."""
        rows = {place: part.rows() for place, part in self.parts.items()}
        empty = self.losses.new_zeros(len(self.losses), 1)
        return torch.cat([rows[i] if i in rows else empty.expand(-1, n) for i, n in enumerate(self.sizes)], dim=1)


def averaged(gradients: Gradients, owners: Tensor) -> Gradients:
    """The gradients of users' mean losses, from those of their records.

    Args:
        gradients: Those of records, in the place of users.
        owners: Each record's user: 0, 1, 2, ... in this order.

    Returns:
        Those of the users.
    """
    rows, counts = gradients.rows(), torch.bincount(owners).to(gradients.losses.dtype)
    share = (1.0 / counts)[owners]
    total = rows.new_zeros(len(counts), rows.shape[1]).index_add_(0, owners, rows * share[:, None].to(rows.dtype))
    losses = gradients.losses.new_zeros(len(counts)).index_add_(0, owners, gradients.losses * share)
    return Gradients(sizes=[rows.shape[1]], parts={0: Direct(total)}, losses=losses)
