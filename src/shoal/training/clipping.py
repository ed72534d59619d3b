"""Per-user gradients, clipped and summed, at little more than the cost of an ordinary backward pass.

User i's gradient g_i is that of its own loss; its clipped gradient is `g_i * min(1, C / |g_i|)`. The
server needs the sum, a client its own.

**How.** For most of what models do with their parameters (`shoal.training.uses`) user i's gradient follows from what
user i put in and the gradient of what came out, so that norms and sums need no gradient for each user, or cost one
batched product (`shoal.training.gradients`). There are three ways to a user's gradient, with one result.

- *Together*: an ordinary pass over all users at once, without gradients of parameters. A function that uses a
  parameter in another way runs for each user apart, by `torch.func`, with a copy of this parameter for each; the rest
  of the model does not. Row i is taken to be user i. A model that lays its records out otherwise would have something
  clipped that is not a user, so each call tries the way on sixteen records first: the gradients of two must be those of
  ordinary backward passes of each alone, and the sum of all, with a different weight each, that of one pass.
  A microbatch in which the model uses other parameters than it did then, or in another order, goes the next way.
- *Apart*, where that fails: `torch.func` runs the whole model for each user on its own; no layout can mix them. It
  differentiates by the outputs of known products (by a zero added to each) and by all other parameters directly.
  Only the gradients of these others are formed user by user, which costs as many numbers as they have for each user.
  This is tried on one record.
- *One record at a time*, where that fails too: an ordinary backward pass each. Slow, but right for whatever PyTorch can
  differentiate.

**What a trial cannot see.** A model that changes the order of its rows inside only for records that were not among the
sixteen, while it uses its parameters as ever, would have users mixed. Models whose rows are users throughout, as nearly
all are, cannot do that.

Users are worked on in microbatches, so memory does not grow with their number.

A user with several records has the gradient of its mean loss, which is clipped as one: `owners` says whose
record each one is.

**Error.** Norms and sums are computed in the model's precision, single or double, norms of many numbers by pieces.
Clipped gradients are made shorter by a factor of 1 - 1e-5, more than the rounding of single precision, so that none is
longer than C.
"""

from __future__ import annotations

import functools
import itertools
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from shoal import _validate
from shoal.errors import InvalidInput
from shoal.training.gradients import Direct, Gradients, OfParameter, Rows, added, as_one
from shoal.training.uses import Call, UnknownUseError, Watcher, WithoutDropout, version_of

Loss = Callable[[Tensor, Tensor], Tensor]
"""From outputs and labels to one loss per user."""

MICROBATCH = 512
"""Users whose gradients are formed at once where each is needed."""

_CACHE, _LEAST_MICROBATCH, _MOST_MICROBATCH = 5 * 2**19, 16, 8_192
"""Numbers that a microbatch keeps and forms: they should stay in the cache."""

_TRIED = 16
"""Records with which a way is tried."""

_UNEVEN = 2.0 + torch.arange(1.0, _TRIED + 1.0).square().cos()
"""Their weights, no two of which are alike."""

_MARGIN = 1.0 - 1e-5

_SAME = 1e-4
"""Gradients that differ by less, relatively, differ by rounding."""

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
    with _lock(model):
        task = _Task.of(model, loss)
        total = torch.zeros(task.numbers, dtype=torch.float64, device=inputs.device)
        norms, losses = [total.new_zeros(0, dtype=task.dtype)], [total.new_zeros(0, dtype=task.dtype)]
        for found in _gradients(task, inputs, labels, owners, microbatch):
            norm = found.norms()
            total += found.weighted(_factors(norm, bound))
            norms.append(norm)
            losses.append(found.losses)
            del found  # before the next is computed, which finds its place in the cache
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
) -> Tensor:
    """Every user's clipped gradient, a row each: what the clients compute. Memory: users times parameters."""
    bound = _checked(model, inputs, labels, owners, clip, microbatch)
    with _lock(model):
        task = _Task.of(model, loss)
        rows = [inputs.new_zeros(0, task.numbers, dtype=task.dtype)]
        for found in _gradients(task, inputs, labels, owners, microbatch):
            rows.append(found.each() * _factors(_finite(found.norms()), bound)[:, None])
    return torch.cat(rows)


@dataclass(frozen=True, kw_only=True)
class _Task:
    """A model and its loss, with what is asked of the model in each microbatch."""

    model: nn.Module
    outputs: Callable[[Tensor], Tensor]
    """What the model makes of inputs."""
    loss: Loss
    parameters: list[nn.Parameter]
    """Those that are trained."""

    @classmethod
    def of(cls, model: nn.Module, loss: Loss) -> _Task:
        return cls(model=model, outputs=model, loss=loss, parameters=trainable(model))

    def constants(self) -> list[Tensor]:
        """What the model has besides.

        Asked for in each microbatch: a model may put another tensor in the place of a buffer, which would be taken for
        rows of users if it is as long as they are many.
        """
        owners = list(self.model.modules())
        frozen = (p for m in owners for p in m._parameters.values() if p is not None and not p.requires_grad)
        return [*frozen, *(b for m in owners for b in m._buffers.values() if b is not None)]

    def without_dropout(self) -> _Task:
        def outputs(inputs: Tensor) -> Tensor:
            with WithoutDropout():
                found: Tensor = self.model(inputs)
            return found

        return replace(self, outputs=outputs)

    @property
    def numbers(self) -> int:
        return sum(p.numel() for p in self.parameters)

    @property
    def dtype(self) -> torch.dtype:
        return self.parameters[0].dtype

    def anchor(self, inputs: Tensor) -> Tensor:
        """A number on which nothing depends, but which has a gradient."""
        return inputs.new_zeros((), dtype=self.dtype).requires_grad_()


def _gradients(
    task: _Task, inputs: Tensor, labels: Tensor, owners: Tensor | None, microbatch: int | None
) -> Iterator[Gradients | Rows]:
    """The users' gradients, a microbatch at a time."""
    if not len(inputs):
        return
    few = _few_records(inputs, labels, _TRIED)
    tried = _tried(task, inputs[few], labels[few])
    uses, asked = None if tried is None else tried.uses, tried is None
    alone = _alone_tried(task, inputs[:1], labels[:1]) if tried is None else None
    parts = tried.parts if tried is not None else alone.parts if alone is not None else None
    if microbatch is None:
        kept = None if parts is None else sum(part.numbers for part in parts.values())
        microbatch = _microbatch(task.numbers if kept is None else kept + _formed(task, alone, owners))
    del tried, parts
    for x, y, whose in _microbatches(inputs, labels, owners, microbatch):
        found: Gradients | Rows | None = None if uses is None else _together(task, x, y, uses)
        if found is None:
            if not asked:
                alone, asked = _alone_tried(task, x[:1], y[:1]), True
            found = _apart_if_possible(task, x, y, alone)
        yield found if whose is None else as_one(found, whose)
        del found


def _microbatches(
    inputs: Tensor, labels: Tensor, owners: Tensor | None, size: int
) -> Iterator[tuple[Tensor, Tensor, Tensor | None]]:
    """Records with labels and, counted from 0, owners; a user's records are never divided."""
    if owners is None:
        size = -(-len(inputs) // -(-len(inputs) // size))  # as many, but none that is small
        for x, y in zip(torch.split(inputs, size), torch.split(labels, size), strict=True):
            yield x, y, None
        return
    ends = torch.bincount(owners).cumsum(0).tolist() if len(owners) else []
    first = 0
    for user, end in enumerate(ends):
        full = user + 1 == len(ends) or ends[user + 1] - first > size
        if full:
            yield inputs[first:end], labels[first:end], owners[first:end] - owners[first]
            first = end


def _checked(
    model: nn.Module, inputs: Tensor, labels: Tensor, owners: Tensor | None, clip: float, microbatch: int | None
) -> float:
    """The clipping norm, as a number."""
    bound = _validate.real("clip", clip)
    if bound <= 0:
        raise InvalidInput(f"clip must be positive, got {bound}")
    if microbatch is not None:
        _validate.integer("microbatch", microbatch, minimum=1, maximum=10**9)
    for name, given in (("labels", labels), ("owners", owners)):
        if given is not None and len(inputs) != len(given):
            raise InvalidInput(f"inputs and {name} must have the same length, got {len(inputs)} and {len(given)}")
    if owners is not None and len(owners):
        steps = owners.diff()
        if int(owners[0]) != 0 or not ((steps == 0) | (steps == 1)).all():
            raise InvalidInput("owners must be 0, 1, 2, ... in this order, with none left out")
    for name, module in model.named_modules():
        if isinstance(module, _MIXING):
            raise InvalidInput(
                f"model must not mix users, but {name} is a {type(module).__name__}: use GroupNorm or LayerNorm"
            )
    types = {p.dtype for p in trainable(model)}
    if not types:
        raise InvalidInput("model must have trainable parameters, got none")
    if len(types) > 1 or not types <= {torch.float32, torch.float64}:
        told = ", ".join(sorted(str(t).removeprefix("torch.") for t in types))
        raise InvalidInput(f"model must have trainable parameters of one type, float32 or float64, got {told}")
    return bound


def _microbatch(numbers: int) -> int:
    """How many records are worked on at once unless the caller says so, from how many numbers are kept of each."""
    return min(_MOST_MICROBATCH, max(_LEAST_MICROBATCH, _CACHE // max(1, numbers)))


def _formed(task: _Task, alone: _Alone | None, owners: Tensor | None) -> int:
    """How many numbers of each record's gradient have to be formed besides."""
    if owners is not None:
        return task.numbers
    return 0 if alone is None else task.numbers - sum(p.numel() for p in alone.products)


_locks: weakref.WeakKeyDictionary[nn.Module, threading.RLock] = weakref.WeakKeyDictionary()
_any = threading.Lock()


def _lock(model: nn.Module) -> threading.RLock:
    """Of a model: threads take turns, as `torch.func` puts other tensors in the place of its parameters meanwhile."""
    with _any:
        return _locks.setdefault(model, threading.RLock())


def _finite(norms: Tensor) -> Tensor:
    if not torch.isfinite(norms).all():
        raise FloatingPointError("a user's gradient is not finite: the model has diverged; use a smaller learning rate")
    return norms


def _factors(norms: Tensor, clip: float) -> Tensor:
    return norms.reciprocal().mul_(clip * _MARGIN).clamp_(max=_MARGIN)


# ---------------------------------------------------------------------------------------------
# Together: an ordinary pass over all users, in which row i is user i.


class _Tap(torch.autograd.Function):
    """Lets a tensor through, and keeps its gradient; the anchor makes it need one."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, anchor: Tensor, call: Call) -> Tensor:
        ctx.call = call
        return output.detach()  # another tensor, which may be changed in place

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        ctx.call.receive(gradients[0])
        return gradients[0], None, None


def _tapped(anchor: Tensor, output: Tensor, call: Call) -> Tensor:
    if output.requires_grad:
        # Of the output as it is now, even if it is changed in place later.
        output.register_hook(call.receive)  # type: ignore[no-untyped-call]
        return output
    found: Tensor = _Tap.apply(output, anchor, call)  # type: ignore[no-untyped-call]
    return found


def _together(
    task: _Task, inputs: Tensor, labels: Tensor, tried: Sequence[torch.Size] | None = None
) -> Gradients | None:
    """None if a parameter is used in an unknown way, or if the model used others than it did when it was tried."""
    anchor = task.anchor(inputs)
    tap = functools.partial(_tapped, anchor)
    watch = Watcher(task.parameters, inputs=inputs, tap=tap, together=True, constants=task.constants)
    try:
        with torch.enable_grad():
            with watch:
                outputs = task.outputs(inputs)
            values = task.loss(outputs, labels)
            of = [*task.parameters, *(leaf for leaf, _ in watch.leaves), anchor]
            found = torch.autograd.grad(values.sum(), of, allow_unused=True)
    except UnknownUseError:
        return None
    hidden = len(task.parameters)
    if any(g is not None for g in found[:hidden]):  # a parameter reaches the loss in a way that was not seen
        return None
    for (_, call), g in zip(watch.leaves, found[hidden:-1], strict=True):
        if g is not None:
            call.receive(g)
    uses = [use.target.shape for call in watch.calls for use in call.uses]
    if tried is not None and tried != uses:
        return None
    parts = _parts(watch.calls, task.parameters)
    return Gradients(parameters=task.parameters, parts=parts, losses=values.detach(), uses=uses)


def _parts(calls: Iterable[Call], parameters: Sequence[nn.Parameter]) -> dict[int, OfParameter]:
    """The parts of parameters, by their ids."""
    found: dict[int, list[OfParameter]] = {}
    targets: dict[int, Tensor] = {}
    for call in calls:
        for target, part in call.parts():
            targets[id(target)] = target
            found.setdefault(id(target), []).append(part)
    parts = {key: added(given) for key, given in found.items()}
    own = {id(p) for p in parameters}
    derived = {key: target for key, target in targets.items() if key not in own}
    if not derived:
        return parts
    # Each user's gradient of what was derived from parameters, taken back to these.
    gradients = [parts.pop(key).each() for key in derived]
    back = torch.autograd.grad(
        list(derived.values()),
        parameters,
        [g.reshape(len(g), *t.shape) for g, t in zip(gradients, derived.values(), strict=True)],
        is_grads_batched=True,
        allow_unused=True,
    )
    for p, g in zip(parameters, back, strict=True):
        if g is not None:
            parts[id(p)] = added([*found.get(id(p), []), Direct(gradients=g)])
    return parts


def _few_records(inputs: Tensor, labels: Tensor, most: int) -> list[int]:
    """The first record, one that differs from it, as alike ones would not be told apart, and some of the others."""

    def differs(i: int) -> bool:
        return not (torch.equal(inputs[i], inputs[0]) and torch.equal(labels[i], labels[0]))

    users = len(inputs)
    if users == 1:
        return [0]
    other = next((i for i in range(1, users) if differs(i)), 1)
    spread = range(0, users, max(1, users // max(1, most - 2)))
    return [0, other, *itertools.islice((i for i in spread if i not in (0, other)), max(0, most - 2))]


def _tried(task: _Task, inputs: Tensor, labels: Tensor) -> Gradients | None:
    """The gradients of few records together, if each is that of its record alone.

    The first two are compared with a backward pass of each alone: so no record depends on others. All are compared in a
    sum with another weight for each: so none has the gradient of another one, as it would where rows are sorted.
    Dropout is left out on both sides: it takes each number on its own, so it mixes nobody. None is a safe answer: also
    for other random outputs, or where the pass fails.
    """
    task = task.without_dropout()
    try:
        found = _together(task, inputs, labels)
    except Exception:
        return None
    if found is None:
        return None
    weights = torch.eye(len(inputs), dtype=task.dtype, device=inputs.device)[:2]
    rows = [_ordinary(task, inputs[i : i + 1], labels[i : i + 1])[0] for i in range(len(weights))]
    if len(inputs) > 2:
        uneven = _UNEVEN[: len(inputs)].to(weights)
        weights = torch.cat([weights, uneven[None]])
        rows.append(_ordinary(task, inputs, labels, uneven)[0])
    got, sizes = torch.stack([found.weighted(w) for w in weights]), [p.numel() for p in task.parameters]
    return found if _are_same(got, torch.stack(rows), sizes, weights @ found.norms()) else None


def _ordinary(task: _Task, inputs: Tensor, labels: Tensor, weights: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The gradient by an ordinary backward pass, and the losses."""
    with torch.enable_grad():
        values = task.loss(task.outputs(inputs), labels)
        summed = (values if weights is None else values * weights).sum()
        found = torch.autograd.grad(summed, task.parameters, allow_unused=True)
    rows = [torch.zeros_like(p) if g is None else g for p, g in zip(task.parameters, found, strict=True)]
    return flat(rows), values.detach()


def _are_same(found: Tensor, expected: Tensor, sizes: list[int], scale: Tensor) -> bool:
    """Whether gradients agree for each parameter, one that hardly counts within the rounding of the others."""
    norm = torch.linalg.vector_norm
    allowed = torch.stack([norm(e, dim=1) for e in torch.split(expected, sizes, dim=1)]) + 0.1 * scale
    differences = torch.stack([norm(d, dim=1) for d in torch.split(found - expected, sizes, dim=1)])
    return bool((differences <= _SAME * allowed).all())


# ---------------------------------------------------------------------------------------------
# Apart: the model runs for each user on its own.


@dataclass(frozen=True, kw_only=True)
class _Alone:
    """What a record alone showed: the parameters of which all uses are known products, and zeros for what came out."""

    products: list[nn.Parameter]
    zeros: list[Tensor]
    parts: Mapping[int, OfParameter]


def _alone_tried(task: _Task, inputs: Tensor, labels: Tensor) -> _Alone | None:
    """What a record alone shows, if the model can be run apart and then gives this record's gradient.

    It does not if a parameter is used in a way that `torch.func` does not see: in the loss, or from a list of its own.
    """
    devices = [inputs.device] if inputs.is_cuda else []
    try:
        with WithoutDropout():
            alone = _alone(task, inputs, labels)
            with torch.random.fork_rng(devices=devices):  # twice the same random numbers
                found = _apart(task, inputs, labels, alone)
            with torch.random.fork_rng(devices=devices):
                expected, _ = _ordinary(task, inputs, labels)
    except Exception:
        return None
    sizes = [p.numel() for p in task.parameters]
    return alone if _are_same(found.each(), expected[None], sizes, found.norms()) else None


def _apart_if_possible(task: _Task, inputs: Tensor, labels: Tensor, alone: _Alone | None) -> Gradients | Rows:
    """Else by a backward pass of each record: slow, but right for whatever PyTorch can differentiate."""
    if alone is not None:
        try:
            return _apart(task, inputs, labels, alone)
        except Exception:  # what is wrong with the model itself, the backward passes will say
            pass
    rows = [_ordinary(task, inputs[i : i + 1], labels[i : i + 1]) for i in range(len(inputs))]
    return Rows(gradients=torch.stack([g for g, _ in rows]), losses=torch.cat([v.reshape(1) for _, v in rows]))


def _alone(task: _Task, inputs: Tensor, labels: Tensor) -> _Alone:
    parameters, anchor = task.parameters, task.anchor(inputs)
    zeros: list[Tensor] = []

    def tap(output: Tensor, call: Call) -> Tensor:
        zeros.append(torch.zeros_like(output))
        return _tapped(anchor, output, call)

    watch = Watcher(parameters, inputs=inputs, tap=tap)
    with torch.enable_grad():
        with watch:
            outputs = task.outputs(inputs)
        value = task.loss(outputs, labels).sum()
        _, *hidden = torch.autograd.grad(value, [anchor, *parameters], allow_unused=True)
    bad = watch.unknown | {id(p) for p, g in zip(parameters, hidden, strict=True) if g is not None}
    bad |= {id(use.target) for call in watch.calls for use in call.uses if not use.matrix}
    good = {id(use.target) for call in watch.calls for use in call.uses} - bad
    kept = [any(id(use.target) in good for use in call.uses) for call in watch.calls]
    calls = list(itertools.compress(watch.calls, kept))
    for call in calls:
        call.check_unchanged()
    return _Alone(
        products=[p for p in parameters if id(p) in good],
        zeros=list(itertools.compress(zeros, kept)),
        parts=_parts(calls, parameters),
    )


def _apart(task: _Task, inputs: Tensor, labels: Tensor, alone: _Alone) -> Gradients:
    inside = {id(p) for p in alone.products}
    others = {k: p for k, p in task.model.named_parameters() if p.requires_grad and id(p) not in inside}
    calls: list[Call] = []

    def one(given: dict[str, Tensor], zeros: list[Tensor], x: Tensor, y: Tensor) -> tuple[Tensor, Kept]:
        left = iter(zeros)
        row = x[None]
        watch = Watcher(alone.products, inputs=row, tap=lambda output, call: output + next(left))
        with watch:
            outputs = torch.func.functional_call(task.model, given, (row,))
        value = task.loss(outputs, y[None]).sum()
        calls[:] = watch.calls
        return value, (value, [c.inputs for c in watch.calls])

    each = torch.func.vmap(
        torch.func.grad(one, argnums=(0, 1), has_aux=True), in_dims=(None, None, 0, 0), randomness="different"
    )
    with torch.no_grad():  # nothing is recorded outside `grad`
        given = {k: p.detach() for k, p in others.items()}
        (direct, gradients), (losses, kept) = each(given, alone.zeros, inputs, labels)
    for call, a, g in zip(calls, kept, gradients, strict=True):
        call.inputs = a.flatten(0, 1)
        call.version = version_of(call.inputs)
        call.receive(g.flatten(0, 1))
    parts = _parts(calls, alone.products) | {id(p): Direct(gradients=direct[k]) for k, p in others.items()}
    return Gradients(parameters=task.parameters, parts=parts, losses=losses)


Kept = tuple[Tensor, list[Tensor]]
"""A user's loss, and what went into each known product."""
