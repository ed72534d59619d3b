"""Products of a model's parameters, seen while the model runs for a single user under `torch.func.vmap`.

Forming each user's gradient of a large matrix costs as many numbers as the matrix has. For these functions it need not
be formed, or is formed quicker, from what the user put in and the gradient of what came out:

- products with a matrix (`Linear`, `functional.linear`, `x @ W`);
- convolutions of an image in one group (`Conv2d`);
- rows looked up in a table (`Embedding`);
- group normalisation, of which `vmap` copies what lies channels last;
- recurrent layers (`LSTM`, `GRU`, `RNN`), which `torch.func` has no batching rule for: written out as such products.

`Products` sees each function of PyTorch that the model calls (`torch.overrides.TorchFunctionMode`). Where one of these
gets a parameter itself, it computes the function with the parameter as a constant, through `_Constant`, an ordinary
`torch.autograd.Function` with a rule for `vmap`: the first dimension of what the rule gets is the users', whatever the
model's layout. The output's gradient is the gradient by a zero that is added to it. Everything else runs as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from shoal.errors import InvalidInput
from shoal.training.gradients import Convolution, Direct, OfParameter, Product, Rows, suits_grams


@dataclass(frozen=True, kw_only=True)
class _Matrix:
    """`x @ weight.T + bias`, or `x @ weight`.

    This and the next three are functions of x with their parameters as constants. `back` is the gradient by x, `parts`
    those of the parameters, from B x inputs and B x output gradients, which take that many `numbers` for a user.
    """

    weight: Tensor
    bias: Tensor | None = None
    flipped: bool = False

    def output(self, x: Tensor) -> Tensor:
        weight = self.weight.detach()
        return x @ weight if self.flipped else functional.linear(x, weight, _detached(self.bias))

    def back(self, gradient: Tensor, x: Tensor) -> Tensor:
        return gradient @ (self.weight.detach().T if self.flipped else self.weight.detach())

    def parts(self, x: Tensor, gradient: Tensor) -> list[tuple[Tensor | None, OfParameter]]:
        left, right = (t.flatten(1, -2) for t in ((x, gradient) if self.flipped else (gradient, x)))
        flat = gradient.flatten(1, -2)
        bias = Direct(flat[:, 0] if flat.shape[1] == 1 else flat.sum(dim=1))
        return [(self.weight, Product(left, right)), (self.bias, bias)]

    def numbers(self, x: Tensor, output: Tensor) -> int:
        size = self.weight.numel()
        return x.numel() + output.numel() + (0 if suits_grams(x.numel() // x.shape[-1], size) else size)


@dataclass(frozen=True, kw_only=True)
class _Convolution:
    """A convolution of images in one group, without gaps in its kernel."""

    weight: Tensor
    bias: Tensor | None
    stride: tuple[int, int]
    padding: tuple[int, int]

    def output(self, x: Tensor) -> Tensor:
        weight, bias = self.weight.detach(), _detached(self.bias)
        output = functional.conv2d(x.flatten(0, -4), weight, bias, self.stride, self.padding)
        return (
            output if x.dim() == 4 else output.view(*x.shape[:-3], *output.shape[1:])
        )  # a view cannot change in place

    def back(self, gradient: Tensor, x: Tensor) -> Tensor:
        sizes = zip(x.shape[-2:], self.weight.shape[2:], self.stride, self.padding, strict=True)
        rest = [(n + 2 * p - k) % s for n, k, s, p in sizes]  # what a stride leaves over reaches no output
        return functional.conv_transpose2d(gradient, self.weight.detach(), None, self.stride, self.padding, rest)

    def parts(self, x: Tensor, gradient: Tensor) -> list[tuple[Tensor | None, OfParameter]]:
        (rows, columns), (ph, pw) = self.weight.shape[2:], self.padding
        padded = functional.pad(x.movedim(-3, -1), (0, 0, pw, pw, ph, ph))
        patches = padded.unfold(-3, rows, self.stride[0]).unfold(-3, columns, self.stride[1]).movedim(-3, -1)
        left, right = gradient.movedim(-3, -1).flatten(1, -2), patches.flatten(-3).flatten(1, -2)
        return [(self.weight, Convolution(left, right, self.weight.shape[2:])), (self.bias, Direct(left.sum(dim=1)))]

    def numbers(self, x: Tensor, output: Tensor) -> int:
        positions, size = output.numel() // output.shape[1], self.weight.numel()
        patches = positions * self.weight[0].numel()
        return x.numel() + patches + output.numel() + (0 if suits_grams(positions, size) else size)


@dataclass(frozen=True, kw_only=True)
class _Table:
    """Rows of a table, by whole numbers, of which nothing has a gradient."""

    weight: Tensor
    padding: int | None

    def output(self, x: Tensor) -> Tensor:
        return functional.embedding(x, self.weight.detach())

    def parts(self, x: Tensor, gradient: Tensor) -> list[tuple[Tensor | None, OfParameter]]:
        if self.padding is not None:
            gradient = gradient * (x != self.padding)[..., None].to(gradient.dtype)
        return [(self.weight, Rows(x.flatten(1), gradient.flatten(1, -2), len(self.weight)))]

    def numbers(self, x: Tensor, output: Tensor) -> int:
        return x.numel() + output.numel() + min(x.numel() ** 2, self.weight.numel())


@dataclass(frozen=True, kw_only=True)
class _GroupNorm:
    """Group normalisation of one record: channels last in memory stay so, unlike under `vmap`."""

    weight: Tensor
    bias: Tensor | None
    groups: int
    eps: float
    dimensions: int

    def output(self, x: Tensor) -> Tensor:
        rows, bias = x.flatten(0, x.dim() - self.dimensions), _detached(self.bias)
        output = functional.group_norm(rows, self.groups, self.weight.detach(), bias, self.eps)
        return output if x.dim() == self.dimensions else output.view(x.shape)

    def _spread(self, values: Tensor) -> Tensor:
        """Numbers of channels or groups, beside all that belongs to each."""
        wide = values.expand(*values.shape[:-1], self.weight.numel() // self.groups).flatten(-2)
        return wide[(..., *[None] * (self.dimensions - 2))]

    def _sums(self, gradient: Tensor, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Centred x, each group's inverse deviation, and sums by channel of gradients and of these times normal x."""
        inner, by_group = tuple(range(2 - self.dimensions, 0)), (self.groups, -1)
        mean = x.mean(dim=inner)
        centred = x - self._spread(mean.reshape(*mean.shape[:-1], *by_group).mean(dim=-1, keepdim=True))
        square, total, weighted = (
            t.sum(dim=inner).reshape(*mean.shape[:-1], *by_group)
            for t in (centred.square(), gradient, gradient * centred)
        )
        scale = (square.sum(dim=-1, keepdim=True) / self._count(x) + self.eps).rsqrt()
        return centred, scale, total, weighted * scale

    def _count(self, x: Tensor) -> int:
        return x.shape[1 - self.dimensions :].numel() // self.groups

    def back(self, gradient: Tensor, x: Tensor) -> Tensor:
        centred, scale, total, weighted = self._sums(gradient, x)
        weight = self.weight.detach().view(self.groups, -1)
        shift, slope = ((t * weight).sum(dim=-1, keepdim=True) * scale / self._count(x) for t in (total, weighted))
        through = torch.addcmul(gradient * self._spread(scale * weight), centred, self._spread(-slope * scale))
        return through - self._spread(shift)

    def parts(self, x: Tensor, gradient: Tensor) -> list[tuple[Tensor | None, OfParameter]]:
        _, _, total, weighted = self._sums(gradient, x)
        return [(self.weight, Direct(weighted.flatten(1))), (self.bias, Direct(total.flatten(1)))]

    def numbers(self, x: Tensor, output: Tensor) -> int:
        return x.numel() + output.numel()


Use = _Matrix | _Convolution | _Table | _GroupNorm


def _detached(t: Tensor | None) -> Tensor | None:
    return None if t is None else t.detach()


class Phase:
    """The phase of a pass: once `over`, the loss is known and gradients are those of the loss."""

    over = False


class _Constant(torch.autograd.Function):
    """A use's output plus a zero, by whose gradient the output's is known."""

    @staticmethod
    def forward(x: Tensor, zero: Tensor, use: Use, phase: Phase) -> Tensor:
        return use.output(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Use, Phase], output: Tensor) -> None:
        x, _, ctx.use, ctx.phase = inputs
        ctx.save_for_backward(x)  # so that autograd notices a change in place, which the gradient would not follow

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        if not ctx.phase.over:
            raise NotImplementedError("a gradient inside the model depends on its parameters in a way that is not seen")
        with torch.no_grad():
            through = ctx.use.back(gradient, x) if ctx.needs_input_grad[0] else None
        return through, gradient, None, None

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor, zero: Tensor, use: Use, phase: Phase) -> tuple[Tensor, int]:
        return use.output(x.movedim(in_dims[0], 0)), 0


class Call(NamedTuple):
    """A product that was computed: with the shape of its output, the numbers it takes, and its parameters' places."""

    use: Use
    x: Tensor
    shape: torch.Size
    numbers: int
    places: frozenset[int]


class Products(TorchFunctionMode):
    """Sees the products of what runs inside it.

    Args:
        parameters: Those of which products are looked for: the tensors themselves, not others of the same values.
        zeros: A zero for each call.
    """

    def __init__(self, parameters: Sequence[Tensor], zeros: Iterator[Tensor]) -> None:
        super().__init__()
        self.places, self.zeros, self.phase = {id(p): i for i, p in enumerate(parameters)}, zeros, Phase()
        self.calls: list[Call] = []

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        output, kwargs = NotImplemented, kwargs or {}
        if func in _RULES and (not kwargs or func in _NAMED):
            output = _RULES[func](self, *args, **kwargs)
        return func(*args, **kwargs) if output is NotImplemented else output

    def covers(self, *tensors: Tensor | None) -> bool:
        """Whether some of these are parameters looked for, and the rest are constants."""
        looked_for = [id(t) in self.places for t in tensors if t is not None]
        constant = [isinstance(t, nn.Parameter) and not t.requires_grad for t in tensors if t is not None]
        return any(looked_for) and all(map(max, looked_for, constant))

    def call(self, x: Tensor, use: Use, *parameters: Tensor | None) -> Tensor:
        """The use's output, which is noted."""
        zero = next(self.zeros)
        output: Tensor = _Constant.apply(x, zero, use, self.phase)  # type: ignore[no-untyped-call]
        if zero.dim() and zero.shape != output.shape:
            raise InvalidInput(
                f"a product's output has the shape {output.shape}, after {zero.shape} for the first record"
            )
        self.note(use, x, output, *parameters)
        return output

    def note(self, use: Use, x: Tensor, output: Tensor, *parameters: Tensor | None) -> None:
        """Note a call of which the output's gradient will be known."""
        places = frozenset(self.places[id(p)] for p in parameters if id(p) in self.places)
        self.calls.append(Call(use, x, output.shape, use.numbers(x, output), places))


# --- the rules: each gives the output, or NotImplemented ---------------------------------------


def _linear(watch: Products, input: Any, weight: Any, bias: Any = None) -> Any:
    if not watch.covers(weight, bias) or weight.dim() != 2 or input.dim() < 2:
        return NotImplemented
    return watch.call(input, _Matrix(weight=weight, bias=bias), weight, bias)


def _matmul(watch: Products, input: Any, other: Any) -> Any:
    if not isinstance(other, Tensor) or not watch.covers(other) or other.dim() != 2 or input.dim() < 2:
        return NotImplemented
    return watch.call(input, _Matrix(weight=other, flipped=True), other)


def _conv2d(watch: Products, input: Any, weight: Any, bias: Any = None, *settings: Any) -> Any:
    stride, padding, dilation, groups = settings + (1, 0, 1, 1)[len(settings) :]
    if input.dim() != 4 or groups != 1 or _pair(dilation) != (1, 1) or isinstance(padding, str):
        return NotImplemented
    if not watch.covers(weight, bias):
        return NotImplemented
    use = _Convolution(weight=weight, bias=bias, stride=_pair(stride), padding=_pair(padding))
    return watch.call(input, use, weight, bias)


def _group_norm(
    watch: Products, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    if input.dim() < 3 or len(input) != 1 or not watch.covers(weight, bias) or weight is None:
        return NotImplemented
    use = _GroupNorm(weight=weight, bias=bias, groups=num_groups, eps=eps, dimensions=input.dim())
    return watch.call(input, use, weight, bias)


def _pair(value: Any) -> tuple[int, int]:
    numbers = [int(n) for n in value] if isinstance(value, Sequence) else [int(value)]
    return numbers[0], numbers[-1]


def _embedding(watch: Products, input: Any, weight: Any, padding_idx: int | None = None, **settings: Any) -> Any:
    if not watch.covers(weight) or settings.get("max_norm") or settings.get("scale_grad_by_freq") or input.dim() < 1:
        return NotImplemented
    padding = None if padding_idx is None else padding_idx % len(weight)
    return watch.call(input, _Table(weight=weight, padding=padding), weight)


def _cell(gates: Tensor, inner: Tensor, state: Sequence[Tensor], kind: str) -> list[Tensor]:
    """The next state of a recurrent layer, from the products of input and state."""
    if kind == "lstm":
        i, f, g, o = (gates + inner).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
        return [torch.sigmoid(o) * torch.tanh(cell), cell]
    if kind == "gru":
        (r, z, n), (hr, hz, hn) = gates.chunk(3, dim=-1), inner.chunk(3, dim=-1)
        z = torch.sigmoid(z + hz)
        new = torch.tanh(n + torch.sigmoid(r + hr) * hn)
        return [new + z * (state[0] - new)]
    return [getattr(torch, kind)(gates + inner)]


def _recurrent(kind: str) -> Callable[..., Any]:
    """A rule for a recurrent layer of PyTorch, whose equations are those of its documentation."""

    def rule(watch: Products, input: Any, hx: Any, params: Any, *settings: Any) -> Any:
        if not isinstance(params, list) or not all(watch.covers(p) for p in params):  # packed sequences
            return NotImplemented
        biased, layers, dropout, train, both, batch_first = settings
        count, directions, start = (4 if biased else 2), (2 if both else 1), [hx] if isinstance(hx, Tensor) else hx
        if len(params) != count * layers * directions:  # projections
            return NotImplemented
        x, ends = (input.transpose(0, 1) if batch_first else input), []
        for layer in range(layers):
            outputs = []
            for place in range(directions * layer, directions * (layer + 1)):
                w_input, w_state, *biases = params[place * count : (place + 1) * count]
                b_input, b_state = biases or (None, None)
                gates = watch.call(x, _Matrix(weight=w_input, bias=b_input), w_input, b_input)
                inner, zero, state = _Matrix(weight=w_state, bias=b_state), next(watch.zeros), [s[place] for s in start]
                # At once, as the gradient of a single step is as long as all.
                steps, zeros = gates.unbind(), zero.unbind() if zero.dim() else ()
                order, before, after = -1 if place > directions * layer else 1, [], []
                for step in range(len(x))[::order]:
                    before.append(state[0])
                    if zero.dim():
                        product = inner.output(state[0]) + zeros[step]
                    else:  # the first record, for which a gradient inside the model is to be noticed
                        product = _Constant.apply(state[0], zero, inner, watch.phase)  # type: ignore[no-untyped-call]
                    state = _cell(steps[step], product, state, kind)
                    after.append(state[0])
                watch.note(inner, torch.stack(before[::order]), gates, w_state, b_state)
                outputs.append(torch.stack(after[::order]))
                ends.append(state)
            x = torch.cat(outputs, dim=-1)
            if layer + 1 < layers:
                x = functional.dropout(x, dropout, train)
        last = [torch.stack(s) for s in zip(*ends, strict=True)]
        return (x.transpose(0, 1) if batch_first else x), *last

    return rule


_RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.linear: _linear,
    **dict.fromkeys((torch.matmul, Tensor.matmul, torch.mm, Tensor.mm), _matmul),
    torch.conv2d: _conv2d,
    functional.group_norm: _group_norm,
    functional.embedding: _embedding,
    **{getattr(torch, kind): _recurrent(kind) for kind in ("lstm", "gru")},
    **{getattr(torch, f"rnn_{kind}"): _recurrent(kind) for kind in ("tanh", "relu")},
}
_NAMED = {functional.embedding, functional.group_norm}
"""Those whose settings come by name; with a name in another function, it is none of the known products."""
