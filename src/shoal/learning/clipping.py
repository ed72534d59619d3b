"""Per-user gradients, clipped and summed, at little more than the cost of an ordinary backward pass.

User i's gradient g_i is that of its own loss; its clipped gradient is `g_i * min(1, C / |g_i|)`. The
server needs the sum, a client its own.

**How.** A linear layer and a convolution are both `y_l = W a_l + b` over L positions (a convolution's
positions are its patches), so user i's gradient of W is `G_i^T A_i` with the L x K inputs A_i and the
L x O output gradients G_i. One ordinary backward pass *without* weight gradients yields all A_i and G_i.
Then either

- the B products `G_i^T A_i` are formed (one batched product, which takes the place of the weight
  gradient of the ordinary pass) and both norms and sum are read off them; or
- where L is small against O K, norms come from `|G_i^T A_i|^2 = sum_{l,m} (A_i A_i^T)_{lm} (G_i G_i^T)_{lm}`
  (Goodfellow 2015; Li et al. 2022, "ghost clipping") and the weighted sum is one product over all users.

Users are worked on in microbatches, so memory does not grow with their number. Models with trainable
layers of other kinds, or that use a layer twice, go through `torch.func` with the same result.

A user with several records has the gradient of its mean loss, which is clipped as one: `owners` says whose
record each one is.

**Error.** Norms and sums are computed in the model's precision. Clipped gradients are made shorter by
a factor of 1 - 1e-5, more than the rounding of single precision, so that none is longer than C.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal import _validate

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and labels to one loss per user."""

MICROBATCH = 512
"""Records worked on at once: large enough for fast products, small enough for the cache."""

_MICROBATCH_LINEAR = 4_096
"""The same for records that are rows of numbers, where little is kept of each."""

_MARGIN = 1.0 - 1e-5
_GHOST_POSITIONS = 16
"""With more positions than these, forming the products was always faster where it was measured."""

_MIXING = (nn.modules.batchnorm._BatchNorm,)


def user_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each user."""
    return functional.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """The sum of clipped gradients as one flat vector (in the order of `model.parameters()`), and each user's norm."""

    total: Tensor
    norms: Tensor
    losses: Tensor


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained, in the order of the flat vector."""
    return [p for p in model.parameters() if p.requires_grad]


def flat(tensors: list[Tensor]) -> Tensor:
    return torch.cat([t.reshape(-1) for t in tensors])


def clipped_sum(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    clip: float,
    owners: Tensor | None = None,
    loss: Loss = user_losses,
    microbatch: int | None = None,
) -> ClippedSum:
    """The sum over users of their gradients, each clipped to norm `clip`.

    Each record is a user, unless `owners` gives each record's user: 0, 1, 2, ... in this order, none left out.
    """
    per_user, bound, size = _checked(model, inputs, labels, owners, clip, microbatch)
    total = torch.zeros(sum(p.numel() for p in trainable(model)), dtype=torch.float64, device=inputs.device)
    norms, losses = [inputs.new_zeros(0)], [inputs.new_zeros(0)]
    for x, y, whose in _microbatches(inputs, labels, owners, size):
        found = per_user(model, x, y, loss)
        if whose is not None:
            found = _as_one(found, whose)
        norm = found.squares().sqrt()
        total += found.weighted(_factors(norm, bound)).to(total.dtype)
        norms.append(norm)
        losses.append(found.losses)
    return ClippedSum(total=total.to(inputs.dtype), norms=torch.cat(norms), losses=torch.cat(losses))


def clipped_each(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    clip: float,
    owners: Tensor | None = None,
    loss: Loss = user_losses,
    microbatch: int | None = None,
) -> Tensor:
    """Every user's clipped gradient, a row each: what the clients compute. Memory: users times parameters."""
    _, bound, size = _checked(model, inputs, labels, owners, clip, microbatch)
    rows = [inputs.new_zeros(0, sum(p.numel() for p in trainable(model)))]
    for x, y, whose in _microbatches(inputs, labels, owners, size):
        found = _Each.of(model, x, y, loss)
        if whose is not None:
            found = _as_one(found, whose)
        rows.append(found.gradients * _factors(found.squares().sqrt(), bound)[:, None])
    return torch.cat(rows)


def _microbatches(
    inputs: Tensor, labels: Tensor, owners: Tensor | None, size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Records with labels and, counted from 0, owners; a user's records are never divided."""
    if owners is None:
        for i in range(0, len(inputs), size):
            yield inputs[i : i + size], labels[i : i + size], None
        return
    ends = torch.bincount(owners).cumsum(0).tolist() if len(owners) else []
    first = 0
    for user, end in enumerate(ends):
        full = user + 1 == len(ends) or ends[user + 1] - first > size
        if full:
            yield inputs[first:end], labels[first:end], owners[first:end] - owners[first]
            first = end


def is_fast(model: nn.Module) -> bool:
    """Whether the model's gradients are clipped without `torch.func`: linear layers and convolutions only."""
    owners = _owners(model)
    seen = [id(p) for m in owners for p in m.parameters(recurse=False)]
    return all(_is_known(m) for m in owners) and len(set(seen)) == len(seen)


def _owners(model: nn.Module) -> list[nn.Module]:
    """The layers with trained parameters of their own."""
    return [m for m in model.modules() if any(p.requires_grad for p in m.parameters(recurse=False))]


def _is_known(layer: nn.Module) -> bool:
    if not all(p.requires_grad for p in layer.parameters(recurse=False)):
        return False
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def _checked(
    model: nn.Module, inputs: Tensor, labels: Tensor, owners: Tensor | None, clip: float, microbatch: int | None
) -> tuple[Callable[..., Any], float, int]:
    """The way to gradients, the clipping norm, and the size of a microbatch."""
    bound = _validate.real("clip", clip)
    if bound <= 0:
        raise ValueError(f"clip must be positive, got {bound}")
    size = (_MICROBATCH_LINEAR if inputs.dim() == 2 else MICROBATCH) if microbatch is None else microbatch
    _validate.integer("microbatch", size, minimum=1, maximum=10**9)
    for name, given in (("labels", labels), ("owners", owners)):
        if given is not None and len(inputs) != len(given):
            raise ValueError(f"inputs and {name} must have the same length, got {len(inputs)} and {len(given)}")
    if owners is not None and len(owners):
        steps = owners.diff()
        if int(owners[0]) != 0 or not ((steps == 0) | (steps == 1)).all():
            raise ValueError("owners must be 0, 1, 2, ... in this order, with none left out")
    for name, module in model.named_modules():
        if isinstance(module, _MIXING):
            raise ValueError(
                f"model must not mix users, but {name} is a {type(module).__name__}: use GroupNorm or LayerNorm"
            )
    if not trainable(model):
        raise ValueError("model must have trainable parameters, got none")
    return (_Layers.of if is_fast(model) else _Each.of), bound, size


def _factors(norms: Tensor, clip: float) -> Tensor:
    if not torch.isfinite(norms).all():
        raise FloatingPointError("a user's gradient is not finite: the model has diverged; use a smaller learning rate")
    return (clip * _MARGIN / norms).clamp(max=_MARGIN)


# ---------------------------------------------------------------------------------------------
# Any model: one gradient per user, materialised for a microbatch.


@dataclass(frozen=True, kw_only=True)
class _Each:
    gradients: Tensor
    losses: Tensor

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss) -> _Each:
        named = {k: v.detach() for k, v in model.named_parameters() if v.requires_grad}

        def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            outputs = torch.func.functional_call(model, parameters, (x[None],))
            value = loss(outputs, y[None]).sum()
            return value, value

        grads, losses = torch.func.vmap(
            torch.func.grad(one, has_aux=True), in_dims=(None, 0, 0), randomness="different"
        )(named, inputs, labels)
        return cls(
            gradients=torch.cat([g.reshape(len(inputs), -1) for g in grads.values()], dim=1), losses=losses.detach()
        )

    def squares(self) -> Tensor:
        return self.gradients.square().sum(dim=1)

    def weighted(self, factors: Tensor) -> Tensor:
        return factors @ self.gradients

    def each(self) -> Tensor:
        return self.gradients


def _as_one(found: _Each | _Layers, owners: Tensor) -> _Each:
    """The gradients of users' mean losses, from those of their records."""
    counts = torch.bincount(owners).to(found.losses.dtype)
    gradients, users = found.each(), len(counts)
    share = (1.0 / counts)[owners]
    return _Each(
        gradients=gradients.new_zeros(users, gradients.shape[1]).index_add_(0, owners, gradients * share[:, None]),
        losses=found.losses.new_zeros(users).index_add_(0, owners, found.losses * share),
    )


# ---------------------------------------------------------------------------------------------
# Linear layers and convolutions: inputs and output gradients of each layer.


@dataclass(frozen=True, kw_only=True)
class _Layers:
    layers: list[_Layer]
    losses: Tensor

    @classmethod
    def of(cls, model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss) -> _Layers | _Each:
        owners = _owners(model)
        with _recording(owners) as record, torch.enable_grad():
            values = loss(model(inputs), labels)
            calls = [record.inputs.get(id(m), []) for m in owners]
            once = all(len(c) == 1 for c in calls)
            if once:
                values.sum().backward()  # type: ignore[no-untyped-call]
        if not once:  # a layer used twice, or passed over
            return _Each.of(model, inputs, labels, loss)
        layers = []
        for module, (a,) in zip(owners, calls, strict=True):
            layers.append(_layer(module, a, record.gradients[id(module)]))
        return cls(layers=layers, losses=values.detach())

    def squares(self) -> Tensor:
        return torch.stack([layer.squares() for layer in self.layers]).sum(dim=0)

    def weighted(self, factors: Tensor) -> Tensor:
        return flat([part for layer in self.layers for part in layer.weighted(factors)])

    def each(self) -> Tensor:
        return torch.cat([part.flatten(1) for layer in self.layers for part in layer.each()], dim=1)


class _Record:
    """Inputs (a convolution's as patches) and output gradients of layers, taken while the model runs."""

    def __init__(self) -> None:
        self.inputs: dict[int, list[Tensor]] = {}
        self.gradients: dict[int, Tensor] = {}

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        """The layer's output; the patches that the gradient needs serve a first convolution as well."""
        key = id(module)
        if isinstance(module, nn.Conv2d):
            a = _patches(x.detach(), module)
            output = type(module).forward(module, x) if x.requires_grad else _convolved(a, x, module)
        else:
            a = x.detach()
            output = type(module).forward(module, x)
        self.inputs.setdefault(key, []).append(a)
        if not output.requires_grad:  # the first layer: nothing before it is trained
            output.requires_grad_()
        output.register_hook(lambda g: self.gradients.__setitem__(key, g))  # type: ignore[no-untyped-call]
        return output


@contextmanager
def _recording(owners: list[nn.Module]) -> Iterator[_Record]:
    """Parameters count as constants meanwhile, so that the backward pass skips their gradients."""
    record = _Record()
    parameters = [p for m in owners for p in m.parameters(recurse=False)]
    try:
        for m in owners:
            m.forward = functools.partial(record.forward, m)
        for p in parameters:
            p.requires_grad_(False)
        yield record
    finally:
        for m in owners:
            m.__dict__.pop("forward", None)
        for p in parameters:
            p.requires_grad_(True)


def _convolved(patches: Tensor, x: Tensor, conv: nn.Conv2d) -> Tensor:
    """The convolution as one product over all patches; its result is laid out channels-last."""
    kernel = conv.weight.permute(2, 3, 1, 0).reshape(-1, conv.out_channels)
    flat_patches = patches.flatten(0, 1)
    product = flat_patches @ kernel if conv.bias is None else torch.addmm(conv.bias, flat_patches, kernel)
    rows, columns = (_positions(x.shape[2 + axis], conv, axis) for axis in (0, 1))
    return product.view(len(x), rows, columns, conv.out_channels).permute(0, 3, 1, 2)


class _Layer:
    """`y_l = W a_l + b` over L positions: B x L x K inputs and B x L x O output gradients."""

    def __init__(self, module: nn.Module, a: Tensor, g: Tensor) -> None:
        self.module, self.a, self.g = module, a, g
        _, positions, k = a.shape
        o = g.shape[2]
        # Products cost O K numbers a user to write and read; Gram matrices L^2 (K + O) operations more.
        self.products = None if positions <= _GHOST_POSITIONS and 2 * positions**2 <= k * o else torch.bmm(g.mT, a)
        self.bias = g.sum(dim=1) if getattr(module, "bias", None) is not None else None

    def squares(self) -> Tensor:
        if self.products is not None:
            found = self.products.square().sum(dim=(1, 2))
        elif self.a.shape[1] == 1:
            found = self.a.square().sum(dim=(1, 2)) * self.g.square().sum(dim=(1, 2))
        else:
            found = (torch.bmm(self.a, self.a.mT) * torch.bmm(self.g, self.g.mT)).sum(dim=(1, 2))
        return found if self.bias is None else found + self.bias.square().sum(dim=1)

    def weighted(self, factors: Tensor) -> list[Tensor]:
        if self.products is not None:
            weight = (factors @ self.products.flatten(1)).view(self.products.shape[1:])
        else:
            scaled = self.g * factors[:, None, None]
            weight = scaled.flatten(0, 1).T @ self.a.flatten(0, 1)
        weight = self._ordered(weight)
        return [weight] if self.bias is None else [weight, factors @ self.bias]

    def each(self) -> list[Tensor]:
        products = torch.bmm(self.g.mT, self.a) if self.products is None else self.products
        return [self._ordered(products)] if self.bias is None else [self._ordered(products), self.bias]

    def _ordered(self, weight: Tensor) -> Tensor:
        """In the order of the layer's own weight: patches are channels-last."""
        if not isinstance(self.module, nn.Conv2d):
            return weight
        o, c = self.module.out_channels, self.module.in_channels
        return weight.view(*weight.shape[:-2], o, *self.module.kernel_size, c).movedim(-1, -3)


def _layer(module: nn.Module, a: Tensor, g: Tensor) -> _Layer:
    if isinstance(module, nn.Conv2d):
        return _Layer(module, a, g.permute(0, 2, 3, 1).flatten(1, 2))
    return _Layer(module, a.reshape(len(a), -1, a.shape[-1]), g.reshape(len(g), -1, g.shape[-1]))


def _padding(conv: nn.Conv2d) -> tuple[int, int]:
    """The padding of rows and of columns, as numbers."""
    rows, columns = (int(p) for p in conv.padding)
    return rows, columns


def _positions(size: int, conv: nn.Conv2d, axis: int) -> int:
    """How many output positions a convolution has along an axis of that size."""
    padding, stride, dilation = _padding(conv)[axis], conv.stride[axis], conv.dilation[axis]
    return (size + 2 * padding - dilation * (conv.kernel_size[axis] - 1) - 1) // stride + 1


def _patches(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """The inputs of each output position, B x L x K with K in the order (row, column, channel)."""
    (ph, pw), (sh, sw), (dh, dw), (kh, kw) = _padding(conv), conv.stride, conv.dilation, conv.kernel_size
    rows, columns = (_positions(x.shape[2 + axis], conv, axis) for axis in (0, 1))
    last = functional.pad(x.permute(0, 2, 3, 1), (0, 0, pw, pw, ph, ph)).contiguous()
    b, h, w, c = last.stride()
    users, channels = len(last), last.shape[3]
    view = last.as_strided((users, rows, columns, kh, kw, channels), (b, h * sh, w * sw, h * dh, w * dw, c))
    return view.reshape(users, rows * columns, kh * kw * channels)
