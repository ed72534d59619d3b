"""Per-user gradients, clipped and summed: no user can weigh more than C, whatever the model does.

User i's gradient g_i is that of its own loss; its clipped gradient is `g_i * min(1, C / |g_i|)`. The
server needs the sum, a client its own.

**Why no user weighs more than C.** The model never meets two users. `torch.func.vmap` runs it for a single record, with
a leading dimension of 1, on all records of a microbatch; or a loop does, where `vmap` cannot. What the model does with
a record (sorting rows, attention over the first dimension, views) stays with this record. What a record changes in the
model (parameters, buffers, attributes) is changed in a copy, which is thrown away. The norm of a gradient is that of
the numbers which enter the sum (`shoal.training.gradients`).

**How**, in this order; an error in a step leads to the next:

1. *With products*: the gradients of matrices, convolutions and tables follow from inputs and output gradients
   (`shoal.training.uses`), which is quicker and smaller than to form them; those of other parameters are formed user
   by user. A record shows which are which. A parameter that reaches the loss otherwise later is noticed: the loss then
   depends on the model's own tensor, not on what stands for it.
2. *Directly*: `torch.func` forms the gradients of all parameters.
3. *Singly*: an ordinary backward pass of each record. Slow, but right for whatever PyTorch can differentiate.

Used of PyTorch: `torch.func` (`vmap`, `grad`, `functional_call`, `debug_unwrap`), `torch.autograd.Function` with a rule
for `vmap`, `torch.overrides.TorchFunctionMode`, `torch.autograd.graph.saved_tensors_hooks`, and
`torch.nn.attention.sdpa_kernel`, by which attention takes the variant that `vmap` has a rule for.

Users are worked on in microbatches, so that memory does not grow with their number.

A user with several records has the gradient of its mean loss, which is clipped as one: `owners` says whose
record each one is.

**Error.** Norms and sums are computed in the model's precision, single or double, norms of many numbers by pieces.
Clipped gradients are made shorter by a factor of 1 - 1e-5, more than the rounding of single precision, so that none is
longer than C.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from shoal import _validate
from shoal.errors import InvalidInput, ShoalError
from shoal.training.gradients import Direct, Gradients, OfParameter, added, averaged
from shoal.training.uses import Call, Products

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and labels to one loss per user."""

MEMORY = 2**29
"""Bytes that a microbatch may take, unless the caller says otherwise."""

_NUMBERS, _MICROBATCH_MIN, _MICROBATCH_MAX = 2**24, 16, 8_192
"""Numbers that a microbatch holds, if memory allows it: with fewer the calls of PyTorch cost more than the numbers."""

_MARGIN = 1.0 - 1e-5

_MIXING = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class UnseenUseError(ShoalError):
    """A parameter was used in a way that leaves its gradient unknown."""


def user_losses(outputs: Tensor, labels: Tensor) -> Tensor:
    """Cross entropy of each user.

    Args:
        outputs: The model's outputs, a row for each user.
        labels: The users' classes.

    Returns:
        A loss for each user.
    """
    return functional.cross_entropy(outputs, labels, reduction="none")


@dataclass(frozen=True, kw_only=True)
class ClippedSum:
    """The sum of clipped gradients as one flat vector, and the norm of each user's gradient."""

    total: Tensor
    norms: Tensor
    losses: Tensor


def trainable(model: nn.Module) -> list[nn.Parameter]:
    """The parameters that are trained, in the order of the flat vector."""
    return [p for p in model.parameters() if p.requires_grad]


def clipped_sum(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    clip: float,
    owners: Tensor | None = None,
    loss: Loss = user_losses,
    microbatch: int | None = None,
    memory: int = MEMORY,
) -> ClippedSum:
    """The sum over users of their gradients, each clipped to norm `clip`.

    Args:
        model: The model, which stays as it was.
        inputs: The records.
        labels: Their labels.
        clip: The clipping norm C.
        owners: Each record's user: 0, 1, 2, ... in this order, none left out. None makes each record a user.
        loss: From outputs and labels to a loss for each record.
        microbatch: Number of records that are worked on at once; None chooses it.
        memory: Bytes that a microbatch of a chosen size may take, besides the model and the records. A single user may
            take more.

    Returns:
        The sum, with each user's norm and loss.

    Raises:
        InvalidInput: If an argument is out of range, or the model has layers that mix users.
        FloatingPointError: If a user's gradient is not finite.
    """
    task, bound = _Task(model, inputs.detach(), labels, owners, loss, microbatch, memory).checked(), _bound(clip)
    total = torch.zeros(sum(task.sizes), dtype=torch.float64, device=inputs.device)
    norms, losses = [total.new_zeros(0, dtype=task.dtype)], [total.new_zeros(0, dtype=task.dtype)]
    for gradients in _gradients(task):
        norm = gradients.norms()
        total += gradients.weighted(_factors(norm, bound))
        norms.append(norm)
        losses.append(gradients.losses)
        del gradients  # before the next is computed, which finds its place in the cache
    return ClippedSum(total=total.to(task.dtype), norms=_finite(torch.cat(norms)), losses=torch.cat(losses))


def clipped_each(
    model: nn.Module,
    inputs: Tensor,
    labels: Tensor,
    *,
    clip: float,
    owners: Tensor | None = None,
    loss: Loss = user_losses,
    microbatch: int | None = None,
    memory: int = MEMORY,
) -> Tensor:
    """Every user's clipped gradient, a row each: what the clients compute.

    Args:
        model: As in `clipped_sum`.
        inputs: As in `clipped_sum`.
        labels: As in `clipped_sum`.
        clip: As in `clipped_sum`.
        owners: As in `clipped_sum`.
        loss: As in `clipped_sum`.
        microbatch: As in `clipped_sum`.
        memory: As in `clipped_sum`; the result, users times parameters, comes on top.

    Returns:
        Users x parameters.

    Raises:
        InvalidInput: As in `clipped_sum`.
        FloatingPointError: As in `clipped_sum`.
    """
    task, bound = _Task(model, inputs.detach(), labels, owners, loss, microbatch, memory).checked(), _bound(clip)
    rows = [inputs.new_zeros(0, sum(task.sizes), dtype=task.dtype)]
    for gradients in _gradients(task):
        rows.append(gradients.rows() * _factors(_finite(gradients.norms()), bound)[:, None])
    return torch.cat(rows)


def _bound(clip: float) -> float:
    bound = _validate.real("clip", clip)
    if bound <= 0:
        raise InvalidInput(f"clip must be positive, got {bound}")
    return bound


def _finite(norms: Tensor) -> Tensor:
    if not torch.isfinite(norms).all():
        raise FloatingPointError("a user's gradient is not finite: the model has diverged; use a smaller learning rate")
    return norms


def _factors(norms: Tensor, clip: float) -> Tensor:
    return norms.reciprocal().mul_(clip * _MARGIN).clamp_(max=_MARGIN)


class _Task(NamedTuple):
    """A model, its records and its loss."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    owners: Tensor | None
    loss: Loss
    microbatch: int | None
    memory: int

    def checked(self) -> _Task:
        """The task itself, if all is in order."""
        if self.microbatch is not None:
            _validate.integer("microbatch", self.microbatch, minimum=1, maximum=10**9)
        _validate.integer("memory", self.memory, minimum=1, maximum=2**60)
        users, owners = len(self.inputs), self.owners
        for name, tensor in (("labels", self.labels), ("owners", owners)):
            if tensor is not None and users != len(tensor):
                raise InvalidInput(f"inputs and {name} must have the same length, got {users} and {len(tensor)}")
        if owners is not None and len(owners):
            steps = owners.diff()
            if int(owners[0]) != 0 or not ((steps == 0) | (steps == 1)).all():
                raise InvalidInput("owners must be 0, 1, 2, ... in this order, with none left out")
        for name, module in self.model.named_modules():
            if isinstance(module, _MIXING):
                kind = type(module).__name__
                raise InvalidInput(f"model must not mix users, but {name} is a {kind}: use GroupNorm or LayerNorm")
        types = {p.dtype for p in trainable(self.model)}
        if not types:
            raise InvalidInput("model must have trainable parameters, got none")
        if len(types) > 1 or not types <= {torch.float32, torch.float64}:
            names = ", ".join(sorted(str(t).removeprefix("torch.") for t in types))
            raise InvalidInput(f"model must have trainable parameters of one type, float32 or float64, got {names}")
        return self

    @property
    def sizes(self) -> list[int]:
        """How many numbers each parameter has."""
        return [p.numel() for p in trainable(self.model)]

    @property
    def dtype(self) -> torch.dtype:
        """The type of the parameters."""
        return trainable(self.model)[0].dtype

    def copied(self) -> nn.Module:
        """A copy of the model, with parameters, buffers and attributes of its own."""
        attributes = [t for m in self.model.modules() for t in vars(m).values() if isinstance(t, Tensor)]
        # Such as the last value of a normalised weight.
        memo: dict[int, Any] = {id(t): t.detach() for t in attributes if not t.is_leaf}
        try:
            return copy.deepcopy(self.model, memo)
        except Exception as error:
            raise InvalidInput(f"model must be such that copy.deepcopy can copy it, got {error}") from error


class _Plan(NamedTuple):
    """How a model uses its parameters: the places of those of which all uses are products."""

    products: frozenset[int]
    zeros: list[Tensor]
    """Of the shapes of the products' outputs."""
    numbers: int
    """How many numbers a user takes."""


def _gradients(task: _Task) -> Iterator[Gradients]:
    """The users' gradients, a microbatch at a time."""
    if not len(task.inputs):
        return
    record = task.inputs[:1].clone()
    plans, size = _plans(task, record, task.labels[:1]), task.microbatch
    altered = not torch.equal(record, task.inputs[:1])  # then the model must not get the caller's tensor
    if size is None:
        numbers = (plans[0].numbers if plans else 0) + (sum(task.sizes) if task.owners is not None or not plans else 1)
        allowed = max(1, task.memory // (numbers * task.dtype.itemsize))
        size = min(allowed, _MICROBATCH_MAX, max(_MICROBATCH_MIN, _NUMBERS // numbers))
    for x, y, users in _microbatches(task.inputs, task.labels, task.owners, size):
        gradients = None
        while plans and gradients is None:
            try:
                gradients = _vectorised(task, plans[0], x.clone() if altered else x, y)
            except Exception:  # what is wrong with the model itself, the backward passes will say
                plans.pop(0)
        if gradients is None:
            gradients = _singly(task, x.clone() if altered else x, y)
        yield gradients if users is None else averaged(gradients, users)
        del gradients


def _microbatches(
    inputs: Tensor, labels: Tensor, owners: Tensor | None, size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Records with labels and, counted from 0, owners; a user's records are never divided."""
    if owners is None:
        size = -(-len(inputs) // -(-len(inputs) // size))  # as many microbatches, but none that is small
        for x, y in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
            yield x, y, None
        return
    ends = torch.bincount(owners).cumsum(0).tolist()
    first = 0
    for user, end in enumerate(ends):
        if user + 1 == len(ends) or ends[user + 1] - first > size:
            yield inputs[first:end], labels[first:end], owners[first:end] - owners[first]
            first = end


def _plans(task: _Task, x: Tensor, y: Tensor) -> list[_Plan]:
    """The plans to try, from a single record; none if the model cannot run for it."""
    model, zero = task.copied(), x.new_zeros((), dtype=task.dtype).requires_grad_()
    parameters = trainable(model)
    watch, stored = Products(parameters, itertools.repeat(zero)), {p.data_ptr(): 0 for p in parameters}

    def note(t: Tensor) -> Tensor:
        stored.setdefault(t.data_ptr(), t.numel())
        return t

    try:
        with torch.random.fork_rng([x.device] if x.is_cuda else []), torch.enable_grad():
            with saved_tensors_hooks(note, lambda t: t):
                with watch, sdpa_kernel(SDPBackend.MATH):
                    outputs = model(x)
                value, watch.phase.over = task.loss(outputs, y).sum(), True
            _, *hidden = torch.autograd.grad(value, [zero, *parameters], allow_unused=True)
    except Exception:
        return []
    every = frozenset(range(len(parameters)))
    bad = {i for i, g in enumerate(hidden) if g is not None}
    if any(torch.func.debug_unwrap(call.x) is not call.x for call in watch.calls):  # inside a transformation
        bad |= every
    while mixed := [call for call in watch.calls if call.places & bad and not call.places <= bad]:
        bad.update(*(call.places for call in mixed))
    calls = [call for call in watch.calls if not call.places & bad]
    products = frozenset[int]().union(*(call.places for call in calls))
    stays = sum(stored.values())
    formed = sum(n for i, n in enumerate(task.sizes) if i not in products)
    zeros = [zero.detach().expand(call.shape) for call in calls]
    plan = _Plan(products, zeros, sum(call.numbers for call in calls) + formed + stays)
    return [plan, _Plan(frozenset(), [], sum(task.sizes) + stays)] if products else [plan]


def _vectorised(task: _Task, plan: _Plan, inputs: Tensor, labels: Tensor) -> Gradients:
    """The gradients by `torch.func`, which runs the model for each record."""
    model, calls = task.copied(), list[Call]()
    parameters = trainable(model)
    place = {id(p): i for i, p in enumerate(parameters)}
    standing = {
        k: p.detach() for k, p in model.named_parameters() if p.requires_grad and place[id(p)] not in plan.products
    }

    def record_loss(standing: dict[str, Tensor], zeros: list[Tensor], x: Tensor, y: Tensor) -> Any:
        watch = Products(parameters, iter(zeros))
        with watch, sdpa_kernel(SDPBackend.MATH):
            outputs = torch.func.functional_call(model, standing, (x[None],))
        value, watch.phase.over = task.loss(outputs, y[None]).sum(), True
        calls[:] = watch.calls
        return value, (value, [call.x for call in calls])

    differentiated = torch.func.grad(record_loss, argnums=(0, 1), has_aux=True)
    run = torch.func.vmap(differentiated, in_dims=(None, None, 0, 0), randomness="different")
    with torch.enable_grad():
        (formed, outputs), (losses, xs) = run(standing, plan.zeros, inputs, labels)
    if len(calls) != len(outputs) or any(t.requires_grad for t in (losses, *formed.values(), *outputs, *xs)):
        raise UnseenUseError("model must use its parameters as it did for the first record")
    uses: dict[int, list[OfParameter]] = {
        place[id(p)]: [Direct(formed[k])] for k, p in model.named_parameters() if k in formed
    }
    for call, x, g in zip(calls, xs, outputs, strict=True):
        for t, part in call.use.parts(x, g):
            if id(t) in place:
                uses.setdefault(place[id(t)], []).append(part)
    return Gradients(sizes=task.sizes, parts={i: added(parts) for i, parts in uses.items()}, losses=losses)


def _singly(task: _Task, inputs: Tensor, labels: Tensor) -> Gradients:
    """The gradients by an ordinary backward pass of each record."""
    rows, losses, zero = [], [], inputs.new_zeros((), dtype=task.dtype).requires_grad_()
    for x, y in zip(torch.split(inputs, 1), torch.split(labels, 1), strict=True):
        model = task.copied()
        with torch.enable_grad():
            value = task.loss(model(x), y).sum() + zero  # which needs a gradient even if the loss does not
            # By the model's own too, which the loss may use.
            gradients = torch.autograd.grad(value, [*trainable(model), *trainable(task.model)], materialize_grads=True)
        flat = torch.cat([g.flatten() for g in gradients])
        rows.append(flat.view(2, -1).sum(dim=0))
        losses.append(value.detach())
    return Gradients(sizes=[rows[0].numel()], parts={0: Direct(torch.stack(rows))}, losses=torch.stack(losses))
