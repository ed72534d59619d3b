"""How a model uses its parameters: seen while it runs, whatever the model's code looks like.

Every function of PyTorch that gets a trainable parameter is seen. If it is one of these, then user i's gradient
follows from what user i put in and from the gradient of what came out:

- a matrix product with the parameter (`Linear`, `functional.linear`, `x @ W`, `x @ W.T`);
- a convolution of images in one group (`Conv2d`, `functional.conv2d`);
- layer and group normalisation, whose weights multiply what is normalised.

The function is computed with the parameter as a constant, and its use is kept. Three other uses can be kept where all
users run together:

- `x * p`, `p / x` and other functions of two or three single numbers, with a copy of the parameter for each user;
- a function of parameters and constants of the model alone: what it gives is *derived*, and used like a parameter;
- any other function of parameters and of tensors with a row for each user: `torch.func.vmap` runs it for each user
  apart, with a copy of the parameter for each, so that an ordinary backward pass gives the gradient of each copy.

Everything else is unknown.
"""

from __future__ import annotations

import contextvars
import functools
import inspect
import math
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from shoal.errors import ShoalError
from shoal.training.gradients import Columns, Convolution, Direct, Geometry, OfParameter, Outer, Product

version_of: Callable[[Tensor], int] = operator.attrgetter("_version")
"""How often a tensor was changed in place: the count by which PyTorch's backward pass notices it too."""


class UnknownUseError(ShoalError):
    """A parameter was used in a way that is not known."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """One use of a parameter: its gradients from the inputs and the output gradients, both with a row for each user."""

    target: Tensor
    """The parameter, or what was derived from parameters."""
    matrix: bool
    """Whether it is a product, for which gradients need not be formed user by user."""
    part: Callable[[Tensor, Tensor], OfParameter]


@dataclass(kw_only=True)
class Call:
    """One function that got parameters: its inputs, what it used, and the gradients of that once they are known."""

    inputs: Tensor
    uses: Sequence[Use]
    version: int
    """Of the inputs, by which a change in place shows."""
    gradient: Tensor | None = None
    """That of the output, once it is known; none if the output does not reach the loss."""

    def check_unchanged(self) -> None:
        """An ordinary backward pass notices this by itself."""
        if version_of(self.inputs) != self.version:
            raise RuntimeError("model must not change in place what a layer has got, which its gradient needs")

    def receive(self, gradient: Tensor) -> None:
        self.check_unchanged()
        self.gradient = gradient

    def parts(self) -> list[tuple[Tensor, OfParameter]]:
        """Each target with its gradients: once, after the backward pass, which has let go of most tensors by then."""
        gradient, uses, self.gradient, self.uses = self.gradient, self.uses, None, ()
        return [] if gradient is None else [(use.target, use.part(self.inputs, gradient)) for use in uses]


@dataclass(frozen=True, kw_only=True)
class _Source:
    """What stands for a parameter, or for what was derived from parameters: itself, or its transpose."""

    target: Tensor
    transposed: bool = False

    @property
    def live(self) -> Tensor:
        """As autograd knows it."""
        return self.target.mT if self.transposed else self.target


_watching: contextvars.ContextVar[Watcher] = contextvars.ContextVar("watching")
_ONE_AT_A_TIME = threading.RLock()


class _Seen(Tensor):
    """A tensor of which the watcher is told before any function gets it."""

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        watch, given = _watching.get(None), kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **given) if watch is None or func in _HARMLESS else watch.run(func, args, given)


class _SeenParameter(_Seen, nn.Parameter):
    """A parameter, while it is watched."""

    def __deepcopy__(self, memo: dict[int, Any]) -> nn.Parameter:
        """A copy is not watched, and stays so."""
        with torch._C.DisableTorchFunctionSubclass():
            memo[id(self)] = copied = nn.Parameter(self.detach().clone(), self.requires_grad)
        return copied


class Watcher:
    """Keeps the calls with parameters of what runs inside it. `tap` takes each output, and gives what goes on.

    While it is entered, parameters are of a class that PyTorch asks before it calls a function with one of them, as it
    does for any subclass of tensors; all other functions run as ever. Threads wait for each other, as they may have
    parameters in common. A parameter that is of a class of its own is left alone: its gradient will tell.

    `inputs` have a row for each user; `together` says that there may be several. Then an unknown use is an error, and
    `constants` gives what the model has besides parameters.
    """

    def __init__(
        self,
        parameters: Sequence[Tensor],
        *,
        inputs: Tensor,
        tap: Callable[[Tensor, Call], Tensor],
        together: bool = False,
        constants: Callable[[], Iterable[Tensor]] = tuple,
    ) -> None:
        self.inputs, self.users, self.tap, self.together = inputs, inputs.shape[0], tap, together
        self.calls: list[Call] = []
        self.leaves: list[tuple[Tensor, Call]] = []
        """Copies of parameters: whoever differentiates has to ask for the gradient of each, for its call."""
        self.unknown: set[int] = set()
        """The ids of parameters that were used in unknown ways."""
        self._parameters = parameters
        self._sources = {id(p): _Source(target=p) for p in parameters}
        self._constants, self._made = constants, set[int]()
        self._kept: list[Tensor] = []  # so that no other tensor gets their id

    def __enter__(self) -> Watcher:
        _ONE_AT_A_TIME.acquire()
        self._before = _watching.set(self)
        self._changed = [p for p in self._parameters if type(p) is nn.Parameter]
        for p in self._changed:
            p.__class__ = _SeenParameter
        return self

    def __exit__(self, *error: object) -> None:
        for p in self._changed:
            p.__class__ = nn.Parameter
        _watching.reset(self._before)
        _ONE_AT_A_TIME.release()

    def run(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function gives that got something seen."""
        output = self._known(func, args, kwargs)
        if output is not NotImplemented:
            return output
        if self.together:
            return self._derived(func, args, kwargs) if self._alone(args, kwargs) else self._apart(func, args, kwargs)
        self.unknown.update(id(s.target) for s in self._found((args, kwargs)))
        return func(*args, **kwargs)

    def _found(self, given: Iterable[Any]) -> Iterator[_Source]:
        for item in given:
            source = self._sources.get(id(item))
            if source is not None:
                yield source
            elif isinstance(item, (tuple, list)):
                yield from self._found(item)
            elif isinstance(item, dict):
                yield from self._found(item.values())

    def _known(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = _RULES.get(func)
        if rule is None:
            return NotImplemented
        names = _NAMES[func]
        # An argument that the rule does not know.
        if len(args) > len(names) or (kwargs and not kwargs.keys() <= set(names[len(args) :])):
            return NotImplemented
        return rule(self, *args, **kwargs)

    def _alone(self, args: Any, kwargs: Any) -> bool:
        """Whether there are only parameters, what was derived from them, and constants of the model."""
        return all(map(self._is_known, _tensors((args, kwargs))))

    def _is_known(self, t: Tensor) -> bool:
        """Whether it is a parameter, or a constant of the model: what was computed with a gradient is none."""
        if id(t) in self._sources or id(t) in self._made:
            return True
        # Asked for each time: a model may put another tensor in the place of a buffer while it runs.
        return t is not self.inputs and t.grad_fn is None and any(t is other for other in self._constants())

    def _derived(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a function makes of parameters alone, which is used like one."""
        if _changes(func, args, kwargs):
            raise UnknownUseError(f"{func} changes a parameter")

        def live(t: Tensor) -> Tensor:
            source = self._sources.get(id(t))
            return t if source is None else source.live

        args, kwargs = _mapped((args, kwargs), live)
        output = func(*args, **kwargs)
        for t in _tensors(output):
            if not t.requires_grad:
                self._made.add(id(t))
                self._kept.append(t)
            elif id(t) not in self._sources:
                self._see(t, _Source(target=t))
        return output

    def _apart(self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Each user on its own, with a copy of what stands for parameters.

        A tensor that is neither known nor has a row for each user is refused: were it taken as it is, then it would be
        cut into rows as soon as there happen to be as many users.
        """
        given = list(_tensors((args, kwargs)))
        rows = [self.by_rows(t) for t in given]
        if _changes(func, args, kwargs) or not all(
            row or self._is_known(t) for t, row in zip(given, rows, strict=True)
        ):
            raise UnknownUseError(f"{func} of a parameter")
        copies: dict[int, Tensor] = {}
        for t, row in zip(given, rows, strict=True):
            if row:
                copies[id(t)] = t.unsqueeze(1)
            elif (source := self.source(t)) is not None and id(t) not in copies:
                copies[id(t)] = self.copies(source, tuple(t.shape))
        keys = list(copies)

        def one(*values: Tensor) -> Any:
            mine = dict(zip(keys, values, strict=True))
            own_args, own_kwargs = _mapped((args, kwargs), lambda t: mine.get(id(t), t))
            return func(*own_args, **own_kwargs)

        try:
            output = torch.func.vmap(one, randomness="different")(*copies.values())
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise UnknownUseError(f"{func} cannot be run for each user: {error}") from None
        return _mapped(output, self._joined)

    def copies(self, source: _Source, shape: tuple[int, ...]) -> Tensor:
        """A copy for each user, of that shape."""
        value = source.live.detach()
        copies = value.view(shape).expand(self.users, *shape)

        def part(a: Tensor, g: Tensor) -> OfParameter:
            return Direct(gradients=g.mT if source.transposed else g)

        call = self._call(copies, [Use(target=source.target, matrix=False, part=part)])
        self.leaves.append((copies.requires_grad_(), call))
        return copies

    def _joined(self, output: Tensor) -> Tensor:
        """The rows of users that ran each on its own."""
        if output.dim() < 2 or output.shape[1] != 1:
            raise UnknownUseError("a function of a parameter that gives no row for each user")
        return output.flatten(0, 1)

    def source(self, t: Any) -> _Source | None:
        return self._sources.get(id(t))

    def constant(self, t: Any) -> Any:
        return t if self.source(t) is None else t.detach()

    def by_rows(self, x: Any, least: int = 1) -> bool:
        """Whether it is no parameter or constant, and has a row for each user and enough dimensions."""
        return isinstance(x, Tensor) and not self._is_known(x) and x.dim() >= least and x.shape[0] == self.users

    def transpose(self, t: Tensor, source: _Source) -> Tensor:
        return self._see(t.detach().T, _Source(target=source.target, transposed=not source.transposed))

    def _see(self, t: Tensor, source: _Source) -> Tensor:
        t.__class__ = _Seen
        self._sources[id(t)] = source
        self._kept.append(t)
        return t

    def call(self, output: Tensor, inputs: Tensor, uses: Sequence[Use]) -> Tensor:
        return self.tap(output, self._call(inputs, uses))

    def _call(self, inputs: Tensor, uses: Sequence[Use]) -> Call:
        self.calls.append(call := Call(inputs=inputs.detach(), uses=uses, version=version_of(inputs)))
        return call


class WithoutDropout(TorchFunctionMode):
    """What runs inside it drops nothing."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if func in _DROPOUTS:
            return args[0] if args else given["input"]
        return func(*args, **given)


_DROPOUTS = {
    functional.dropout, functional.dropout1d, functional.dropout2d, functional.dropout3d, functional.alpha_dropout,
}  # fmt: skip


def _changes(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
    """Whether a function changes something in place: its name ends in one line, or begins like that of `x += y`."""
    name = str(getattr(func, "__name__", ""))
    in_place = name.endswith("_") and not name.endswith("__")
    asked = kwargs.get("inplace") or any(args[_place_of_inplace(func) :][:1])
    return bool(
        in_place
        or asked
        or name in ("__set__", "__setitem__")
        or name.startswith("__i")
        or kwargs.get("out") is not None
    )


@functools.lru_cache
def _place_of_inplace(func: Callable[..., Any]) -> int:
    """Where a function takes the argument `inplace`, or a place that no argument has."""
    try:
        names = list(inspect.signature(func).parameters)
    except (ValueError, TypeError):
        names = []
    return names.index("inplace") if "inplace" in names else sys.maxsize


def _tensors(given: Any) -> Iterator[Tensor]:
    if isinstance(given, Tensor):
        yield given
    elif isinstance(given, (tuple, list)):
        for inner in given:
            yield from _tensors(inner)
    elif isinstance(given, dict):
        yield from _tensors(tuple(given.values()))


def _mapped(given: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """The same with other tensors."""
    if isinstance(given, Tensor):
        return change(given)
    if isinstance(given, dict):
        return {k: _mapped(v, change) for k, v in given.items()}
    if isinstance(given, (tuple, list)) and any(True for _ in _tensors(given)):
        inner = [_mapped(v, change) for v in given]
        return inner if isinstance(given, list) else tuple(inner)
    return given


# --- the rules: each gives the tapped output, or NotImplemented --------------------------------


def _linear(watch: Watcher, input: Any, weight: Any, bias: Any = None) -> Any:
    if not watch.by_rows(input, 2) or weight.dim() != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        return NotImplemented
    uses = []
    if (source := watch.source(weight)) is not None:
        uses.append(_matrix(source, flipped=False))
    if (source := watch.source(bias)) is not None:
        uses.append(Use(target=source.target, matrix=False, part=_summed(tuple(bias.shape))))
    return watch.call(functional.linear(input, watch.constant(weight), watch.constant(bias)), input, uses)


def _matmul(watch: Watcher, input: Any, other: Any) -> Any:
    source = watch.source(other)
    if not watch.by_rows(input, 2) or source is None or other.dim() != 2:
        return NotImplemented
    return watch.call(input @ other.detach(), input, [_matrix(source, flipped=True)])


def _matrix(source: _Source, *, flipped: bool) -> Use:
    """The outputs' side of a linear layer's weight comes first, that of `x @ W` last; a transpose changes them."""

    def part(a: Tensor, g: Tensor) -> OfParameter:
        left, right = (a, g) if flipped != source.transposed else (g, a)
        if a.dim() == 2:
            return Outer(left=left, right=right)
        return Product(*(t.reshape(t.shape[0], -1, t.shape[-1]) for t in (left, right)))

    return Use(target=source.target, matrix=True, part=part)


def _conv2d(
    watch: Watcher, input: Any, weight: Any, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
    groups: int = 1,
) -> Any:  # fmt: skip
    if not watch.by_rows(input, 4) or groups != 1 or isinstance(padding, str):
        return NotImplemented
    geometry = _geometry(
        weight.shape[2:], *(tuple(n) if isinstance(n, list) else n for n in (stride, padding, dilation))
    )
    # What is written out for the gradient can give the outputs too, unless these must be differentiated by the input.
    ahead = watch.together and watch.source(weight) is not None and not input.requires_grad and geometry.dense
    columns = Columns(input, geometry) if ahead else None
    uses = []
    if (source := watch.source(weight)) is not None:
        uses.append(
            Use(target=source.target, matrix=True, part=lambda a, g: Convolution(columns or Columns(a, geometry), g))
        )
    if (source := watch.source(bias)) is not None:
        uses.append(Use(target=source.target, matrix=False, part=_summed((len(bias), 1, 1))))
    if columns is None:
        output = functional.conv2d(input, watch.constant(weight), watch.constant(bias), stride, padding, dilation)
    else:
        output = columns.convolved(watch.constant(weight), watch.constant(bias))
    return watch.call(output, input, uses)


@functools.lru_cache
def _geometry(kernel: Any, stride: Any, padding: Any, dilation: Any) -> Geometry:
    def two(given: Any) -> tuple[int, int]:
        numbers = [int(n) for n in given] if isinstance(given, Sequence) else [int(given)]
        return numbers[0], numbers[-1]

    return Geometry(kernel=two(kernel), stride=two(stride), padding=two(padding), dilation=two(dilation))


def _layer_norm(
    watch: Watcher, input: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    if not watch.by_rows(input, 1 + len(normalized_shape)):
        return NotImplemented
    uses, shape = [], tuple(normalized_shape)
    for given, times in ((weight, True), (bias, False)):
        if (source := watch.source(given)) is not None:
            uses.append(Use(target=source.target, matrix=False, part=_summed(shape, times=times)))
    w, b = watch.constant(weight), watch.constant(bias)
    normal = functional.layer_norm(input, normalized_shape, eps=eps)
    if w is None:
        output = normal if b is None else normal + b
    else:
        output = normal * w if b is None else torch.addcmul(b, normal, w)
    return watch.call(output, normal, uses)


def _group_norm(
    watch: Watcher, input: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Gradients are `sum (x - mean) g / deviation` and `sum g` over a channel, the former as PyTorch computes it too:
    from `sum x g` and `sum g`, which are many numbers less than what is normalised."""
    if not watch.by_rows(input, 2):
        return NotImplemented
    if not input.is_contiguous(memory_format=torch.channels_last):
        input = input.contiguous()
    users, channels, *inner = input.shape
    output, mean, scale = torch.native_group_norm(
        input, watch.constant(weight), watch.constant(bias), users, channels, math.prod(inner), num_groups, eps
    )
    mean, scale = mean.detach()[:, :, None], scale.detach()[:, :, None]

    def summed(values: Tensor) -> Tensor:
        return values.sum_to_size(users, channels, *[1] * len(inner)).view(users, num_groups, -1)

    total = functools.lru_cache(maxsize=1)(summed)  # both gradients need it
    uses = []
    if (source := watch.source(weight)) is not None:
        part = lambda a, g: Direct(gradients=(summed(g * a) - mean * total(g)) * scale)  # noqa: E731
        uses.append(Use(target=source.target, matrix=False, part=part))
    if (source := watch.source(bias)) is not None:
        uses.append(Use(target=source.target, matrix=False, part=lambda a, g: Direct(gradients=total(g))))
    return watch.call(output, input, uses)


def _elementwise(function: Callable[..., Tensor]) -> Callable[..., Any]:
    """A rule for `x * p`, `p / x` and so on: each user has a copy of the parameter beside its row."""

    def rule(watch: Watcher, input: Any, other: Any, third: Any = None) -> Any:
        given = [input, other] if third is None else [input, other, third]
        sources = [watch.source(t) for t in given]
        rows = [t for t, source in zip(given, sources, strict=True) if source is None and isinstance(t, Tensor)]
        dimensions = rows[0].dim() if rows else 0
        if not watch.together or not rows or not all(watch.by_rows(t, 1) and t.dim() == dimensions for t in rows):
            return NotImplemented
        for t, source in zip(given, sources, strict=True):
            # A parameter that reaches the users' dimension there would be another one for each user.
            if source is not None and (
                source.transposed or t.dim() > dimensions or (t.dim() == dimensions and t.shape[0] != 1)
            ):
                return NotImplemented
        own = [
            t if source is None else watch.copies(source, _beside(tuple(t.shape), dimensions))
            for t, source in zip(given, sources, strict=True)
        ]
        return function(*own)

    return rule


def _beside(shape: tuple[int, ...], dimensions: int) -> tuple[int, ...]:
    """That shape, for one user, beside something with so many dimensions of which the first is the users'."""
    return (*[1] * (dimensions - 1 - len(shape)), *shape[max(0, len(shape) - dimensions + 1) :])


def _summed(shape: tuple[int, ...], *, times: bool = False) -> Callable[[Tensor, Tensor], OfParameter]:
    """Output gradients, or these times the inputs, summed over all that has the same element of that shape."""

    def part(a: Tensor, g: Tensor) -> OfParameter:
        values = g * a if times else g
        if values.shape[1:] == shape:
            return Direct(gradients=values)
        return Direct(gradients=values.sum_to_size(values.shape[0], *_beside(shape, values.dim())))

    return part


def _transposed(watch: Watcher, input: Any) -> Any:
    source = watch.source(input)
    return watch.transpose(input, source) if source is not None and input.dim() == 2 else NotImplemented


def _getter(name: str) -> Callable[..., Any]:
    """What runs when a tensor's attribute is read."""
    found: Callable[..., Any] = getattr(Tensor, name).__get__
    return found


_ELEMENTWISE = (
    "mul", "add", "sub", "div", "pow", "maximum", "minimum", "fmax", "fmin", "atan2", "hypot", "logaddexp", "xlogy",
    "lerp", "where", "clamp", "addcmul", "addcdiv",
)  # fmt: skip
_RULES: dict[Callable[..., Any], Callable[..., Any]] = {
    functional.linear: _linear,
    torch.conv2d: _conv2d,
    functional.layer_norm: _layer_norm,
    functional.group_norm: _group_norm,
    **dict.fromkeys((torch.matmul, Tensor.matmul, torch.mm, Tensor.mm), _matmul),
    **{getattr(place, name): _elementwise(getattr(place, name)) for name in _ELEMENTWISE for place in (torch, Tensor)},
    **dict.fromkeys((torch.t, Tensor.t, _getter("T"), _getter("mT")), _transposed),
}
_NAMES = {func: tuple(inspect.signature(rule).parameters)[1:] for func, rule in _RULES.items()}
_HARMLESS = {
    Tensor.dim, Tensor.size, Tensor.numel, Tensor.__len__, Tensor.is_floating_point,
    _getter("shape"), _getter("ndim"), _getter("dtype"), _getter("device"),
    _getter("requires_grad"),
}  # fmt: skip
"""What tells of a parameter only how large it is and where."""
