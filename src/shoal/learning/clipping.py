"""Per-user gradients, clipped and summed, at little more than the cost of an ordinary backward pass.

User i's gradient g_i is that of its own loss; its clipped gradient is `g_i * min(1, C / |g_i|)`. The
server needs the sum, a client its own.

**How.** A linear layer and a convolution are both `y_l = W a_l + b` over L positions (a convolution's
positions are its patches, and a layer used several times has the positions of all its uses), so user i's
gradient of W is `G_i^T A_i` with the L x K inputs A_i and the L x O output gradients G_i. One backward pass
*without* weight gradients yields all A_i and G_i. Then either

- the B products `G_i^T A_i` are formed (one batched product, which takes the place of the weight
  gradient of the ordinary pass) and both norms and sum are read off them; or
- where L is small against O K, norms come from `|G_i^T A_i|^2 = sum_{l,m} (A_i A_i^T)_{lm} (G_i G_i^T)_{lm}`
  (Goodfellow 2015; Li et al. 2022, "ghost clipping") and the weighted sum is one product over all users.

There are two ways to A_i and G_i, with one result.

- *Together*: an ordinary pass over all users at once, for models of such layers and of layer and group normalisation
  (whose few weights multiply what is normalised, so that gradients are sums over positions). It takes row i of a
  layer to be user i. A model that lays its records out otherwise would have something clipped that is not a user, so
  the way is tried on two records first.
- *Apart*: `torch.func` runs the model for each user on its own; no layout can mix them. It differentiates by the
  outputs of the layers above (by a zero added to each, whose gradient is G_i) and by all other parameters directly,
  those of embeddings, say, or of the user's own making. Only the gradients of these others are formed
  user by user, which costs as many numbers as they have for each user.

Users are worked on in microbatches, so memory does not grow with their number.

A user with several records has the gradient of its mean loss, which is clipped as one: `owners` says whose
record each one is.

**Error.** Norms and sums are computed in the model's precision. Clipped gradients are made shorter by
a factor of 1 - 1e-5, more than the rounding of single precision, so that none is longer than C.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal import _validate

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and labels to one loss per user."""

MICROBATCH = 512
"""Records worked on at once: large enough for fast products, small enough for the cache."""

_MICROBATCH_LINEAR = 4_096
"""The same where every layer sees a record as one row of numbers: little is kept of each."""

_FORMED, _LEAST_MICROBATCH = 2**21, 16
"""Numbers in the gradients that a microbatch forms user by user: they should stay in the cache."""

_MARGIN = 1.0 - 1e-5
_GHOST_POSITIONS = 16
"""With more positions than these, forming the products was always faster where it was measured."""

_SAME = 1e-4
"""Outputs that differ by less, relatively, differ by rounding."""

Norm = nn.LayerNorm | nn.GroupNorm
_NORMS = (nn.LayerNorm, nn.GroupNorm)
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
    bound = _checked(model, inputs, labels, owners, clip, microbatch)
    total = torch.zeros(sum(p.numel() for p in trainable(model)), dtype=torch.float64, device=inputs.device)
    norms, losses = [inputs.new_zeros(0)], [inputs.new_zeros(0)]
    for found in _gradients(model, inputs, labels, owners, loss, microbatch):
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
    bound = _checked(model, inputs, labels, owners, clip, microbatch)
    rows = [inputs.new_zeros(0, sum(p.numel() for p in trainable(model)))]
    for found in _gradients(model, inputs, labels, owners, loss, microbatch):
        rows.append(found.each() * _factors(found.squares().sqrt(), bound)[:, None])
    return torch.cat(rows)


def _gradients(
    model: nn.Module, inputs: Tensor, labels: Tensor, owners: Tensor | None, loss: Loss, microbatch: int | None
) -> Iterator[_Gradients | _Rows]:
    """The users' gradients, a microbatch at a time."""
    if not len(inputs):
        return
    size = _microbatch(model, inputs, owners) if microbatch is None else microbatch
    way = _together if _can_go_together(model, inputs[:2], labels[:2], loss) else _apart
    for x, y, whose in _microbatches(inputs, labels, owners, size):
        found = way(model, x, y, loss)
        yield found if whose is None else found.as_one(whose)


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
    """Whether all that is trained are linear layers, convolutions and normalisations, with weights of their own."""
    return len(trainable(model)) == sum(len(_own(m)) for m in (*_layers(model), *_norms(model)))


def _layers(model: nn.Module) -> list[nn.Module]:
    """The linear layers and convolutions that are trained."""
    return _alone(model, _is_product)


def _norms(model: nn.Module) -> list[nn.Module]:
    """The normalisations that are trained."""
    return _alone(model, lambda m: type(m) in _NORMS)


def _alone(model: nn.Module, kind: Callable[[nn.Module], bool]) -> list[nn.Module]:
    """The modules of a kind whose weight and bias are trained and belong to nobody else."""
    holders = Counter(id(p) for m in model.modules() for p in _own(m))
    return [m for m in model.modules() if kind(m) and _is_simple(m) and all(holders[id(p)] == 1 for p in _own(m))]


def _own(layer: nn.Module) -> list[nn.Parameter]:
    return list(layer.parameters(recurse=False))


def _is_simple(layer: nn.Module) -> bool:
    names = dict(layer.named_parameters(recurse=False))
    # Other names mean a weight that is made of other parameters, as by weight normalisation.
    return {"weight"} <= set(names) <= {"weight", "bias"} and all(p.requires_grad for p in names.values())


def _is_product(layer: nn.Module) -> bool:
    if type(layer) is nn.Conv2d:
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return type(layer) is nn.Linear


def _checked(
    model: nn.Module, inputs: Tensor, labels: Tensor, owners: Tensor | None, clip: float, microbatch: int | None
) -> float:
    """The clipping norm, as a number."""
    bound = _validate.real("clip", clip)
    if bound <= 0:
        raise ValueError(f"clip must be positive, got {bound}")
    if microbatch is not None:
        _validate.integer("microbatch", microbatch, minimum=1, maximum=10**9)
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
    return bound


def _microbatch(model: nn.Module, inputs: Tensor, owners: Tensor | None) -> int:
    """How many records are worked on at once unless the caller says so."""
    layers = _layers(model)
    uses = [(m, z) for m, found in zip(layers, _zeros(model, layers, inputs[:1]), strict=True) for z in found]
    rows = all(isinstance(m, nn.Linear) and z.numel() == m.out_features for m, z in uses) if uses else inputs.dim() == 2
    formed = {id(p): p.numel() for p in trainable(model)}
    if owners is None:
        for p in (p for m in layers for p in _own(m)):
            del formed[id(p)]
    most = _FORMED // max(1, sum(formed.values()))
    return min(_MICROBATCH_LINEAR if rows else MICROBATCH, max(_LEAST_MICROBATCH, most))


def _factors(norms: Tensor, clip: float) -> Tensor:
    if not torch.isfinite(norms).all():
        raise FloatingPointError("a user's gradient is not finite: the model has diverged; use a smaller learning rate")
    return (clip * _MARGIN / norms).clamp(max=_MARGIN)


# ---------------------------------------------------------------------------------------------
# The gradients of a microbatch of users, in parts. Each part gives squared norms, the sum with a factor for each user,
# and the gradients themselves.

Named = list[tuple[nn.Parameter, Tensor]]


@dataclass(frozen=True, kw_only=True)
class _Gradients:
    parts: Sequence[_Layer | _Direct]
    parameters: list[nn.Parameter]
    losses: Tensor

    def squares(self) -> Tensor:
        return torch.stack([part.squares() for part in self.parts]).sum(dim=0)

    def weighted(self, factors: Tensor) -> Tensor:
        found = {id(p): g for part in self.parts for p, g in part.weighted(factors)}
        return flat([found[id(p)] for p in self.parameters])

    def each(self) -> Tensor:
        found = {id(p): g for part in self.parts for p, g in part.each()}
        return torch.cat([found[id(p)].flatten(1) for p in self.parameters], dim=1)

    def as_one(self, owners: Tensor) -> _Rows:
        """The gradients of users' mean losses, from those of their records."""
        counts = torch.bincount(owners).to(self.losses.dtype)
        gradients, users = self.each(), len(counts)
        share = (1.0 / counts)[owners]
        return _Rows(
            gradients=gradients.new_zeros(users, gradients.shape[1]).index_add_(0, owners, gradients * share[:, None]),
            losses=self.losses.new_zeros(users).index_add_(0, owners, self.losses * share),
        )


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """Gradients formed, a row each."""

    gradients: Tensor
    losses: Tensor

    def squares(self) -> Tensor:
        return self.gradients.square().sum(dim=1)

    def weighted(self, factors: Tensor) -> Tensor:
        return factors @ self.gradients

    def each(self) -> Tensor:
        return self.gradients


@dataclass(frozen=True, kw_only=True)
class _Direct:
    """The gradients of one parameter, formed user by user."""

    parameter: nn.Parameter
    gradients: Tensor

    def squares(self) -> Tensor:
        norms: Tensor = torch.linalg.vector_norm(self.gradients.flatten(1), dim=1)
        return norms.square()

    def weighted(self, factors: Tensor) -> Named:
        return [(self.parameter, factors @ self.gradients.flatten(1))]

    def each(self) -> Named:
        return [(self.parameter, self.gradients)]


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

    def weighted(self, factors: Tensor) -> Named:
        if self.products is not None:
            weight = (factors @ self.products.flatten(1)).view(self.products.shape[1:])
        else:
            scaled = self.g * factors[:, None, None]
            weight = scaled.flatten(0, 1).T @ self.a.flatten(0, 1)
        return self._named(weight, None if self.bias is None else factors @ self.bias)

    def each(self) -> Named:
        return self._named(torch.bmm(self.g.mT, self.a) if self.products is None else self.products, self.bias)

    def _named(self, weight: Tensor, bias: Tensor | None) -> Named:
        """In the order of the layer's own weight: patches are channels-last."""
        if isinstance(self.module, nn.Conv2d):
            o, c = self.module.out_channels, self.module.in_channels
            weight = weight.view(*weight.shape[:-2], o, *self.module.kernel_size, c).movedim(-1, -3)
        return list(zip(_own(self.module), [weight] if bias is None else [weight, bias], strict=True))


# ---------------------------------------------------------------------------------------------
# Together: an ordinary pass over all users, in which a layer's row i is user i.


def _can_go_together(model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss) -> bool:
    """Whether layers see a record in its row, and alone as beside another, with the same outputs.

    No is a safe answer: also for random outputs, or where the pass fails, as after layers that change their input.
    """
    if not is_fast(model):
        return False
    seen: list[list[tuple[int, ...]]] = []
    outputs: list[Tensor] = []
    try:
        for count in (1, len(inputs)):
            with _recording(model) as record, torch.enable_grad():
                outputs.append(model(inputs[:count]))
                loss(outputs[-1], labels[:count]).sum().backward()  # type: ignore[no-untyped-call]
            if not all(calls and all(c.g is not None for c in calls) for calls in record.calls.values()):
                return False
            shapes = [tuple(t.shape) for calls in record.calls.values() for c in calls for t in (c.a, c.g)]  # type: ignore[union-attr]
            if any(shape[0] != count for shape in shapes):
                return False
            seen.append([shape[1:] for shape in shapes])
    except (RuntimeError, ValueError, IndexError):
        return False
    alone, beside = (o.detach()[:1] for o in outputs)
    return seen[0] == seen[1] and bool((alone - beside).abs().max() <= _SAME * alone.abs().max())


def _together(model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss) -> _Gradients:
    with _recording(model) as record, torch.enable_grad():
        values = loss(model(inputs), labels)
        values.sum().backward()  # type: ignore[no-untyped-call]
    parts: list[_Layer | _Direct] = []
    for module, calls in record.calls.items():
        uses = [(c.a, c.g) for c in calls if c.g is not None]
        parts.extend(_norm(module, uses) if isinstance(module, _NORMS) else [_layer(module, uses)])
    return _Gradients(parts=parts, parameters=trainable(model), losses=values.detach())


class _Call:
    """One use of a layer: its inputs as B x L x K (of a normalisation, its values), and output gradients once known."""

    def __init__(self, a: Tensor) -> None:
        self.a = a
        self.g: Tensor | None = None


class _Record:
    """The calls of layers, taken while the model runs."""

    def __init__(self, layers: list[nn.Module]) -> None:
        self.calls: dict[nn.Module, list[_Call]] = {m: [] for m in layers}

    def forward(self, module: nn.Module, x: Tensor) -> Tensor:
        """The layer's output; the patches that the gradient needs serve a first convolution as well."""
        if isinstance(module, _NORMS):
            normal = _normalised(module, x)
            a, output = normal.detach(), _scaled(module, normal)
        else:
            a = _inputs(module, x.detach())
            if isinstance(module, nn.Conv2d) and not x.requires_grad:
                output = _convolved(a, x, module)
            else:
                output = type(module).forward(module, x)
        call = _Call(a)
        self.calls[module].append(call)
        if not output.requires_grad:  # the first layer: nothing before it is trained
            output.requires_grad_()
        output.register_hook(lambda g: setattr(call, "g", _outputs(module, g)))  # type: ignore[no-untyped-call]
        return output


@contextmanager
def _recording(model: nn.Module) -> Iterator[_Record]:
    """Parameters count as constants meanwhile, so that the backward pass skips their gradients."""
    layers = [*_layers(model), *_norms(model)]
    record = _Record(layers)
    parameters = [p for m in layers for p in _own(m)]
    with _running(layers, record.forward):
        try:
            for p in parameters:
                p.requires_grad_(False)
            yield record
        finally:
            for p in parameters:
                p.requires_grad_(True)


@contextmanager
def _running(layers: list[nn.Module], forward: Callable[[nn.Module, Tensor], Tensor]) -> Iterator[None]:
    """The layers compute their outputs so, meanwhile."""
    try:
        for m in layers:
            m.forward = functools.partial(forward, m)
        yield
    finally:
        for m in layers:
            m.__dict__.pop("forward", None)


def _convolved(patches: Tensor, x: Tensor, conv: nn.Conv2d) -> Tensor:
    """The convolution as one product over all patches; its result is laid out channels-last."""
    kernel = conv.weight.permute(2, 3, 1, 0).reshape(-1, conv.out_channels)
    flat_patches = patches.flatten(0, 1)
    product = flat_patches @ kernel if conv.bias is None else torch.addmm(conv.bias, flat_patches, kernel)
    rows, columns = (_positions(x.shape[2 + axis], conv, axis) for axis in (0, 1))
    return product.view(len(x), rows, columns, conv.out_channels).permute(0, 3, 1, 2)


def _normalised(norm: Norm, x: Tensor) -> Tensor:
    if isinstance(norm, nn.LayerNorm):
        return functional.layer_norm(x, norm.normalized_shape, eps=norm.eps)
    return functional.group_norm(x, norm.num_groups, eps=norm.eps)


def _scaled(norm: Norm, normal: Tensor) -> Tensor:
    """Weight and bias applied: a group normalisation's are of the channels, which come second."""
    shape = (-1, *[1] * (normal.dim() - 2)) if isinstance(norm, nn.GroupNorm) else norm.weight.shape
    scaled = normal * norm.weight.view(shape)
    return scaled if norm.bias is None else scaled + norm.bias.view(shape)


def _norm(norm: Norm, uses: list[tuple[Tensor, Tensor]]) -> list[_Direct]:
    """Gradients of weight (output gradients times what was normalised) and bias, both summed over positions."""

    def summed(t: Tensor) -> Tensor:
        if isinstance(norm, nn.GroupNorm):
            return t.flatten(2).sum(dim=2) if t.dim() > 2 else t
        between = tuple(range(1, t.dim() - len(norm.normalized_shape)))
        return t.sum(dim=between) if between else t

    found = [
        torch.stack([summed(t) for t in which]).sum(dim=0) for which in ([a * g for a, g in uses], [g for _, g in uses])
    ]
    return [_Direct(parameter=p, gradients=g) for p, g in zip(_own(norm), found, strict=False)]


# ---------------------------------------------------------------------------------------------
# Apart: the model runs for each user on its own.


def _apart(model: nn.Module, inputs: Tensor, labels: Tensor, loss: Loss) -> _Gradients:
    layers = _layers(model)
    inside = {id(p) for m in layers for p in _own(m)}
    others = {k: p for k, p in model.named_parameters() if p.requires_grad and id(p) not in inside}

    def one(given: dict[str, Tensor], zeros: list[list[Tensor]], x: Tensor, y: Tensor) -> tuple[Tensor, Kept]:
        kept: list[list[Tensor]] = [[] for _ in layers]
        left = {id(m): (iter(z), k) for m, z, k in zip(layers, zeros, kept, strict=True)}

        def forward(module: nn.Module, a: Tensor) -> Tensor:
            added, mine = left[id(module)]
            mine.append(a)
            output: Tensor = type(module).forward(module, a)
            return output + next(added)

        with _running(layers, forward):
            value = loss(torch.func.functional_call(model, given, (x[None],)), y[None]).sum()
        return value, (value, kept)

    each = torch.func.vmap(
        torch.func.grad(one, argnums=(0, 1), has_aux=True), in_dims=(None, None, 0, 0), randomness="different"
    )
    with torch.no_grad():  # nothing is recorded outside `grad`
        zeros = _zeros(model, layers, inputs[:1])
        (direct, g), (losses, a) = each({k: p.detach() for k, p in others.items()}, zeros, inputs, labels)
    parts: list[_Layer | _Direct] = [_Direct(parameter=p, gradients=direct[k]) for k, p in others.items()]
    for m, inputs_of, outputs_of in zip(layers, a, g, strict=True):
        if inputs_of:
            uses = [(_inputs(m, x), _outputs(m, y)) for x, y in zip(inputs_of, outputs_of, strict=True)]
            parts.append(_layer(m, uses))
        else:  # never called
            parts.extend(_Direct(parameter=p, gradients=p.new_zeros(len(inputs), *p.shape)) for p in _own(m))
    return _Gradients(parts=parts, parameters=trainable(model), losses=losses)


Kept = tuple[Tensor, list[list[Tensor]]]
"""A user's loss, and what went into each layer at each of its uses."""


@torch.no_grad()
def _zeros(model: nn.Module, layers: list[nn.Module], record: Tensor) -> list[list[Tensor]]:
    """A zero of the shape of the output of each layer at each of its uses."""
    found: dict[int, list[Tensor]] = {id(m): [] for m in layers}

    def forward(module: nn.Module, a: Tensor) -> Tensor:
        output: Tensor = type(module).forward(module, a)
        found[id(module)].append(torch.zeros_like(output))
        return output

    with _running(layers, forward):
        model(record)
    return list(found.values())


# ---------------------------------------------------------------------------------------------
# Layers as products over positions. The first dimension is the user's; others may stand before the last
# (of a convolution: the last three).


def _layer(module: nn.Module, uses: list[tuple[Tensor, Tensor]]) -> _Layer:
    a, g = ((t[0] if len(t) == 1 else torch.cat(t, dim=1)) for t in zip(*uses, strict=True))
    return _Layer(module, a, g)


def _inputs(module: nn.Module, x: Tensor) -> Tensor:
    """B x L x K."""
    if not isinstance(module, nn.Conv2d):
        return x.reshape(len(x), -1, x.shape[-1])
    patches = _patches(x.reshape(-1, *x.shape[-3:]), module)
    return patches.reshape(len(x), -1, patches.shape[2])


def _outputs(module: nn.Module, g: Tensor) -> Tensor:
    """B x L x O; a normalisation's as they are."""
    if isinstance(module, _NORMS):
        return g
    last = g.movedim(-3, -1) if isinstance(module, nn.Conv2d) else g
    return last.reshape(len(g), -1, last.shape[-1])


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
