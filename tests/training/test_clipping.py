"""Per-user clipping against gradients taken one user at a time."""

import concurrent.futures

import pytest
import torch
from torch import nn
from torch.nn import functional

from shoal.training import clipping, gradients, networks
from shoal.training.randomness import Source


def images(users=37, side=28, channels=1, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(users, channels, side, side, generator=generator, dtype=torch.float64)
    return x, torch.randint(0, 10, (users,), generator=generator)


def one_by_one(net, x, y, clip):
    """The definition: each user's own backward pass, clipped, summed."""
    rows = []
    for i in range(len(x)):
        net.zero_grad()
        functional.cross_entropy(net(x[i : i + 1]), y[i : i + 1]).backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in net.parameters() if p.requires_grad]
        rows.append(torch.cat([g.reshape(-1) for g in parts]))
    gradients = torch.stack(rows)
    norms = gradients.norm(dim=1)
    return gradients * (clip / norms).clamp(max=1.0)[:, None], norms


def one_alone(net, x, y, loss=clipping.user_losses):
    """A record's gradient by an ordinary backward pass."""
    parameters = [p for p in net.parameters() if p.requires_grad]
    found = torch.autograd.grad(loss(net(x), y).sum(), parameters, allow_unused=True)
    return torch.cat(
        [torch.zeros_like(p).flatten() if g is None else g.flatten() for p, g in zip(parameters, found, strict=True)]
    )


class Twice(nn.Module):
    """A layer used twice: its gradient is not one product."""

    def __init__(self):
        super().__init__()
        self.layer, self.last = nn.Linear(16, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.last(torch.tanh(self.layer(torch.tanh(self.layer(x.flatten(1)[:, :16])))))


class Own(nn.Module):
    """Parameters of the user's own making around layers that are known, a convolution in groups, and a frozen one."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 4, 5, stride=3), nn.Conv2d(4, 4, 3, groups=2)
        self.last, self.shift, self.scale = nn.Linear(144, 10), nn.Linear(10, 10), nn.Parameter(torch.rand(10))
        self.shift.bias.requires_grad_(False)
        self.unused = nn.Linear(3, 3)

    def forward(self, x):
        last = self.last(self.second(torch.relu_(self.first(x))).flatten(1))
        return self.shift(last * self.scale) + self.scale


class Bare(nn.Module):
    """Parameters without layers: bare matrices on one row and on several, a transpose, tied and broadcast ones."""

    def __init__(self):
        super().__init__()
        self.there, self.frozen = nn.Parameter(torch.randn(28, 14) / 5), nn.Parameter(torch.randn(10), False)
        self.out, self.place = nn.Parameter(torch.randn(28, 10) / 5), nn.Parameter(torch.randn(1, 28, 1))
        self.scale, self.shift, self.one = (nn.Parameter(torch.rand(s)) for s in ((28,), (10,), ()))
        self.bias, self.unused = nn.Parameter(torch.rand(14)), nn.Parameter(torch.rand(3))

    def forward(self, x):
        rows = x[:, 0] + self.place  # users x 28 x 28
        inside = torch.tanh(functional.linear(rows, self.there.T, self.bias))
        back = torch.tanh(inside @ self.there.t()) * self.scale
        both = torch.add(torch.matmul(back.mean(dim=1) - self.scale, self.out), self.shift) * self.frozen
        return (self.shift - both) * self.one + self.shift


class Hidden(torch.autograd.Function):
    """A product that PyTorch shows to nobody."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x, w):
        return x @ w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g @ w.mT, x.mT @ g


class Other(nn.Module):
    """One way of use that is not known, beside known ones of the same and of another parameter."""

    def __init__(self, use):
        super().__init__()
        self.use, self.w, self.last = use, nn.Parameter(torch.randn(28, 28) / 5), nn.Linear(28, 10)

    def forward(self, x):
        return self.last(self.use(torch.tanh(x[:, 0, 0] @ self.w), self.w))


class Derived(nn.Module):
    """What is made of parameters and buffers alone, used in several ways, together with the parameter itself."""

    def __init__(self):
        super().__init__()
        self.w, self.last = nn.Parameter(torch.randn(28, 28) / 5), nn.Linear(28, 10)
        self.register_buffer("mask", torch.rand(28, 28))
        self.frozen = nn.Parameter(torch.rand(28), requires_grad=False)

    def forward(self, x):
        masked = self.w * self.mask
        first, second = masked.chunk(2)
        x = functional.linear(torch.tanh(functional.linear(x[:, 0, 0], masked)) + masked.exp().sum(), self.w)
        return self.last(torch.tanh(x) * first[0] / (second.T.square().mean(dim=1) + self.frozen) + masked.sum().item())


class Apart(nn.Module):
    """Uses that run for each user: of several parameters and tensors, of integers, without gradients, with a buffer of
    16 rows, as many as there are users at once; and a use whose output does not reach the loss."""

    def __init__(self):
        super().__init__()
        self.both, self.words = nn.Parameter(torch.randn(10, 28, 12) / 9), nn.Parameter(torch.randn(7, 28))
        self.ends, self.shift = nn.Parameter(torch.rand(28)), nn.Parameter(torch.rand(12))
        self.register_buffer("share", torch.rand(16, 28))

    def forward(self, x):
        which = (3 * x[:, 0, 3, :5]).long().clamp(-3, 3) + 3
        words = functional.embedding(which, self.words)
        mixed = torch.lerp(x[:, 0, :16], self.ends, self.share).mean(dim=1)
        with torch.no_grad():
            scale = torch.atan2(x[:, 0, 0], self.ends)
        torch.atan2(x[:, 0, 1, :12], self.shift)
        last = torch.atan2(x[:, 0, 2, :12], self.shift)
        return torch.einsum("ui,uj,oij->uo", words.mean(dim=1) + mixed * scale, last, self.both)


class Numbers(nn.Module):
    """Functions of single numbers, a parameter in either place and in several shapes, also one as long as the users."""

    def __init__(self):
        super().__init__()
        self.each, self.one = nn.Parameter(0.5 + torch.rand(28)), nn.Parameter(torch.rand(()) + 0.5)
        self.wide, self.rows = nn.Parameter(torch.rand(1, 28, 1) + 0.5), nn.Parameter(torch.rand(16, 28) + 0.5)
        self.last, self.beside = nn.Linear(28, 10), nn.Parameter(torch.rand(10) + 0.5)

    def forward(self, x):
        x = x[:, 0].abs() + 0.1
        x = torch.maximum(x / self.each, self.wide) + self.each / x - (self.one - x)
        x = torch.atan2(self.wide, x.pow(self.one)) + torch.logaddexp(x, self.each) * torch.hypot(self.one, x)
        x = torch.minimum(x[:, :16], self.rows * 3.0).sub(self.rows, alpha=2.0)
        x = (
            torch.lerp(x, x.tanh(), self.each)
            + torch.where(x > 1.0, self.one, x)
            + torch.addcmul(self.rows, x, self.one)
        )
        x = (x / 9.0).clamp(self.one - 1.0, self.each) + torch.addcdiv(x, self.each, self.each, value=0.5)
        return torch.fmin(self.last(x.mean(dim=1)), self.beside).div(self.beside) + torch.xlogy(self.beside, self.one)


class Single(nn.Module):
    """A parameter that is a single number, in a model that runs as a whole for each user apart."""

    def __init__(self):
        super().__init__()
        self.one, self.last = nn.Parameter(torch.rand(())), Flat()

    def forward(self, x):
        return self.last(x * self.one.exp()) / self.one


class Constant(nn.Module):
    """A tensor that the model does not name as its own, with as many rows as users: it must not be cut."""

    def __init__(self, rows):
        super().__init__()
        self.ends, self.last, self.share = (
            nn.Parameter(torch.rand(28)),
            nn.Linear(28, 10),
            torch.rand(rows, 28).double(),
        )

    def forward(self, x):
        return self.last(torch.lerp(x[:, 0, : len(self.share)], self.ends, self.share).mean(dim=1))


def added_in_place(x, w):
    twice = 2 * w
    first = x + twice[0]
    twice += 1.0
    return first @ twice


class Flipped(nn.Module):
    """Row i of its first layer is another user."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(28, 28), nn.Linear(28, 10)

    def forward(self, x):
        return self.last(torch.tanh(self.first(x[:, 0, 0].flip(0))).flip(0))


class Flat(nn.Module):
    """Its layer gets the rows of all users in one long column: none is a user."""

    def __init__(self, transposed=False):
        super().__init__()
        self.transposed, self.rows = transposed, nn.Linear(28, 10)

    def forward(self, x):
        if self.transposed:  # and here row i of all users
            return self.rows(x[:, 0].transpose(0, 1)).mean(dim=0)
        return self.rows(x.reshape(-1, 28)).view(len(x), 28, 10).mean(dim=1)


class Tied(nn.Module):
    """One weight in two layers, one of which is never called."""

    def __init__(self):
        super().__init__()
        self.there, self.back, self.last = nn.Linear(28, 28), nn.Linear(28, 28), nn.Linear(28, 10)
        self.back.weight = self.there.weight

    def forward(self, x):
        return self.last(torch.tanh(functional.linear(torch.tanh(self.there(x[:, 0, 0])), self.back.weight)))


class ConvTwice(nn.Module):
    """A convolution used with two strides, and its weight as a plain factor: gradients of all uses are added."""

    def __init__(self):
        super().__init__()
        self.conv, self.last = nn.Conv2d(1, 1, 3, padding=1), nn.Linear(16, 10)

    def forward(self, x):
        x = functional.conv2d(torch.tanh(self.conv(x)), self.conv.weight, stride=2)
        return self.last((x[:, :, :12, :12].reshape(-1, 16, 3, 3) * self.conv.weight).sum(dim=(2, 3)))


class Sequence(nn.Module):
    """A linear layer over many positions, and one whose parameter is shared by name."""

    def __init__(self):
        super().__init__()
        self.rows, self.last = nn.Linear(28, 12), nn.Linear(12, 10, bias=False)

    def forward(self, x):
        return self.last(torch.tanh(self.rows(x[:, 0])).mean(dim=1))


def network(name):
    torch.manual_seed(3)
    if name in networks.NETWORKS:
        return networks.build(name, side=28, classes=10, randomness=Source(seed=3).stream("weights"))
    return {
        "dilated": lambda: nn.Sequential(
            nn.Conv2d(1, 4, (5, 3), stride=(2, 3), padding=(1, 2), dilation=(2, 1), bias=False),
            nn.Tanh(),
            nn.Conv2d(4, 6, 3, padding=1),
            nn.Tanh(),
            nn.AdaptiveAvgPool2d(3),
            nn.Flatten(),
            nn.Linear(54, 10),
        ),
        "deep": lambda: nn.Sequential(  # few positions, many weights: the norms of the second come from Gram matrices
            nn.Conv2d(1, 8, 8, stride=8), nn.ReLU(), nn.Conv2d(8, 64, 2), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10)
        ),
        "sequence": Sequence,
        "twice": Twice,
        "normed": lambda: nn.Sequential(
            nn.Conv2d(1, 4, 5, stride=3),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.LayerNorm([8, 8], bias=False),
            nn.Flatten(),
            nn.Linear(256, 12),
            nn.LayerNorm(12),
            nn.GroupNorm(3, 12),
            nn.Linear(12, 10),
        ),
        "own": Own,
        "bare": Bare,
        "mixed uses": lambda: Other(lambda x, w: x * w[0].detach() + functional.linear(x, w)),
        "conv twice": ConvTwice,
        "sliced": lambda: Other(lambda x, w: x + w[0]),
        "divided": lambda: Other(lambda x, w: (x @ w) / w.exp().sum()),
        "hidden": lambda: Other(Hidden.apply),
        "transpose, unknown": lambda: Other(lambda x, w: x + w.T.sum(dim=0)),
        "derived": Derived,
        "run apart": Apart,
        "numbers": Numbers,
        "single": Single,
        "constant of 16": lambda: Constant(16),
        "constant of 2": lambda: Constant(2),
        "changed in place": lambda: Other(added_in_place),
        "derived, hidden": lambda: Other(lambda x, w: Hidden.apply(x, 2 * w)),
        "many": lambda: Other(lambda x, w: torch.stack([x.sin(), x.cos()]).mul(w[0]).sum(dim=0)),
        "flipped": Flipped,
        "flat": Flat,
        "transposed": lambda: Flat(transposed=True),
        "tied": Tied,
        "in place": lambda: nn.Sequential(
            nn.Conv2d(1, 3, 7, stride=7),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(48, 12),
            nn.ReLU(inplace=True),
            nn.Linear(12, 10),
        ),
        "weight normalised": lambda: nn.Sequential(
            nn.Flatten(), nn.utils.weight_norm(nn.Linear(784, 12)), nn.Tanh(), nn.Linear(12, 10)
        ),
        "grouped": lambda: nn.Sequential(
            nn.Conv2d(1, 4, 5, stride=3),
            nn.Conv2d(4, 4, 3, groups=2),
            nn.GroupNorm(2, 4),
            nn.Flatten(),
            nn.Linear(144, 10),
        ),
    }[name]()


MODELS = (
    "small",
    "opacus",
    "dilated",
    "deep",
    "sequence",
    "twice",
    "normed",
    "tied",
    "in place",
    "bare",
    "conv twice",
    "grouped",
    "own",
    "weight normalised",
    "sliced",
    "divided",
    "transpose, unknown",
    "mixed uses",
    "derived",
    "run apart",
    "numbers",
    "flat",
    "transposed",
    "flipped",
    "constant of 16",
    "constant of 2",
    "single",
    "hidden",
    "derived, hidden",
    "changed in place",
    "many",
)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # weight_norm of old
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("clip", [1e-2, 2.0, 1e6])
def test_clipped_sum_is_that_of_one_user_at_a_time(name, clip):
    net = network(name).double()
    x, y = images(users=28)  # as many as an image has rows: rows could be taken for users
    rows, norms = one_by_one(net, x, y, clip)
    found = clipping.clipped_sum(net, x, y, clip=clip, microbatch=16)
    assert torch.allclose(found.norms, norms, rtol=1e-10)
    # Clipped gradients are made a hundred-thousandth shorter, so that rounding cannot make one too long.
    assert torch.allclose(found.total, rows.sum(dim=0) * (1 - 1e-5), rtol=1e-9, atol=1e-12)
    each = clipping.clipped_each(net, x, y, clip=clip, microbatch=10)
    assert torch.allclose(each, rows * (1 - 1e-5), rtol=1e-9, atol=1e-12)
    assert torch.allclose(found.losses, clipping.user_losses(net(x), y))


def plans(net, x, y):
    task = clipping._Task(net, x, y, None, clipping.user_losses, None, clipping.MEMORY)
    return clipping._plans(task, x[:1], y[:1])


def products(net, x, y):
    """The names of the parameters whose gradients `torch.func` does not form."""
    names = [name for name, p in net.named_parameters() if p.requires_grad]
    return {names[i] for i in plans(net, x, y)[0].products}


@pytest.mark.parametrize(
    ("name", "formed"),
    [
        ("opacus", set()),
        ("flat", set()),
        ("flipped", set()),
        ("twice", set()),
        ("in place", set()),
        ("normed", {"3.weight", "6.weight", "6.bias", "7.weight", "7.bias"}),
        ("own", {"second.weight", "second.bias", "scale", "unused.weight", "unused.bias"}),
        ("hidden", {"w"}),
        ("sliced", {"w"}),
        ("changed in place", {"w"}),
        ("conv twice", {"conv.weight", "conv.bias"}),
    ],
)
def test_only_parameters_with_other_uses_have_their_gradients_formed(name, formed):
    net, (x, y) = network(name).double(), images(users=2)
    assert {n for n, p in net.named_parameters() if p.requires_grad} - products(net, x, y) == formed


def test_inputs_changed_in_place_are_refused():
    """As by an ordinary backward pass: the gradient needs what the layer got."""

    class Changing(Twice):
        def forward(self, x):
            x = torch.tanh(x.flatten(1)[:, :16])
            y = self.layer(x)
            x.mul_(2.0)
            return self.last(x + y)

    x, y = images(users=4)
    with pytest.raises(RuntimeError, match="inplace"):
        clipping.clipped_sum(Changing().double(), x, y, clip=1.0)


class Ordered(nn.Module):
    """Rows in another order inside, which is the old one for two records: users would be mixed."""

    def __init__(self, how):
        super().__init__()
        self.how, self.first, self.last = how, nn.Linear(28, 16), nn.Linear(16, 10)

    def forward(self, x):
        x = x[:, 0, 0]
        if self.how == "sorted":
            order = (x > 0).sum(dim=1).argsort(descending=True, stable=True)
        elif self.how == "rolled":
            order = torch.arange(len(x)).roll(2)
        elif self.how == "but for the first two":
            order = torch.cat([torch.arange(len(x))[:2], torch.arange(len(x))[2:].flip(0)])
        else:
            order = torch.cat([torch.arange(len(x))[0::2], torch.arange(len(x))[1::2]])
        return self.last(torch.tanh(self.first(x[order])))[order.argsort()]


class Scripted(nn.Module):
    """What `torch.func` cannot run: a number read from each record, and a layer of which it has no rule."""

    def __init__(self):
        super().__init__()
        self.inner, self.last = nn.GRU(28, 6, batch_first=True), nn.Linear(6, 10)

    def forward(self, x):
        x = x[:, 0] if float(x.sum()) > 0 else x[:, 0].flip(1)
        return self.last(self.inner(x)[0][:, -1])


class Listed(nn.Module):
    """A parameter that the model also holds in a list, where `torch.func` does not replace it."""

    def __init__(self):
        super().__init__()
        self.rows = nn.Linear(28, 10)
        self.plain = [self.rows.bias]

    def forward(self, x):
        rows = functional.linear(x.reshape(-1, 28), self.rows.weight).view(len(x), 28, 10) + self.plain[0]
        return torch.tanh(rows).mean(dim=1)


class Rare(nn.Module):
    """Does something with a tensor of its own for some records only, which the trial does not meet."""

    def __init__(self):
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(28, 16), nn.Parameter(torch.rand(16)), nn.Linear(16, 10)
        self.plain = torch.rand(16, 16).double()

    def forward(self, x):
        rare = x[:, 0, 0, :1] > 5.0
        x = self.first(x[:, 0, 0])
        if rare.any():
            x = torch.where(rare, torch.lerp(x[:, None], self.scale, self.plain).mean(dim=1), x)
        return self.last(torch.tanh(x))


class Rectified(nn.Module):
    """What was made of a parameter is changed in place, as an argument asks."""

    def __init__(self):
        super().__init__()
        self.w, self.last = nn.Parameter(torch.randn(28, 28) / 5), nn.Linear(28, 10)

    def forward(self, x):
        twice = 2 * self.w
        first = x[:, 0, 0] @ twice
        functional.relu(twice, True)
        return self.last(torch.tanh(first) @ twice)


@pytest.mark.parametrize(
    "make",
    [
        *(lambda how=how: Ordered(how) for how in ("sorted", "rolled", "dealt", "but for the first two")),
        Scripted,
        Listed,
        Rare,
        Rectified,
    ],
)
@pytest.mark.parametrize(("owned", "microbatch"), [(False, 16), (True, 16), (False, 2)])
def test_what_is_no_row_for_each_user_or_no_task_for_torch_func(make, owned, microbatch):
    torch.manual_seed(2)
    net, (x, y) = make().double(), images(users=48)
    x[:2], y[1] = x[:2].sign() * 0.0, (y[0] + 1) % 10  # blank ones show nothing
    x[5, 0, 0, 0] = 6.0
    owners = torch.arange(48) // 2 if owned else None
    expected = torch.stack([one_alone(net, x[i : i + 1], y[i : i + 1]) for i in range(48)])
    expected = expected.view(24, 2, -1).mean(dim=1) if owned else expected
    norms = expected.norm(dim=1)
    found = clipping.clipped_sum(net, x, y, clip=0.1, microbatch=microbatch, owners=owners)
    assert torch.allclose(found.norms, norms, rtol=1e-9, atol=1e-12)
    clipped = expected * (0.1 / norms.clamp(min=1e-12)).clamp(max=1.0)[:, None] * (1 - 1e-5)
    assert torch.allclose(found.total, clipped.sum(dim=0), rtol=1e-8, atol=1e-11)


def test_a_loss_may_use_parameters():
    net, (x, y) = Flat().double(), images(users=9)

    def loss(outputs, labels):
        return clipping.user_losses(outputs, labels) + 0.1 * net.rows.weight.square().sum()

    expected = torch.stack([one_alone(net, x[i : i + 1], y[i : i + 1], loss).norm() for i in range(9)])
    assert torch.allclose(clipping.clipped_sum(net, x, y, clip=0.1, loss=loss).norms, expected)


def test_whole_numbers_as_inputs():
    """The sum is of the parameters' type, not of the inputs'."""
    net, words = nn.Sequential(nn.Embedding(11, 4), nn.Flatten()), torch.randint(0, 11, (6, 1))
    labels = torch.arange(6) % 4
    found = clipping.clipped_sum(net, words, labels, clip=0.05)
    each = clipping.clipped_each(net, words, labels, clip=0.05)
    assert found.total.dtype == each.dtype == torch.float32
    assert torch.allclose(each.norm(dim=1), torch.full((6,), 0.05), rtol=1e-4)
    assert torch.allclose(found.total, each.sum(dim=0), atol=1e-6)


@pytest.mark.parametrize("fill", [torch.ones, torch.randn])
def test_long_gradients_are_not_taken_for_shorter(fill):
    """Of four million numbers, whose squares must not be added one after the other."""
    torch.manual_seed(4)
    rows = fill(2, 4_000_001)
    found = gradients.Direct(rows).norms()[0].double()
    assert (found >= rows.double().norm(dim=1) * (1 - 5e-6)).all()


@pytest.mark.parametrize("count", [1_024, 4_096, 8_192])
def test_rows_that_do_not_lie_side_by_side_have_no_shorter_norm(count):
    """Constants are the worst: each rounding goes the same way."""
    values = torch.linspace(1.0, 2.0, 3_000)
    rows = values[:, None].expand(-1, count)
    for given in (rows, rows.contiguous(), rows.repeat_interleave(2, dim=1)[:, ::2]):
        found = gradients.Direct(given).norms()[0].double()
        assert (found >= values.double() * count**0.5 * (1 - 5e-6)).all()


class Mixing(nn.Module):
    """What one user sends depends on the others."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(784, 10)

    def forward(self, x):
        return self.last(x.flatten(1) - x.flatten(1).mean(dim=0))


@pytest.mark.parametrize("make", [Mixing, Flat, lambda: Flat(transposed=True)])
def test_a_user_never_weighs_more_than_the_norm(make):
    """The sum with a user and without differ by at most C, even if the model would have users mixed."""
    torch.manual_seed(1)
    net, (x, y) = make().double(), images(users=29)
    with_user, without = (clipping.clipped_sum(net, x[:n], y[:n], clip=0.01).total for n in (29, 28))
    assert float((with_user - without).norm()) <= 0.01


@pytest.mark.parametrize("name", ["small", "opacus"])
def test_no_clipped_gradient_is_longer_than_the_norm(name):
    """In single precision, with norms taken in double."""
    net, (x, y) = network(name), images(users=300)
    each = clipping.clipped_each(net, x.float(), y, clip=0.01)
    assert float(each.double().norm(dim=1).max()) <= 0.01
    assert float(each.double().norm(dim=1).min()) > 0.00999  # all were clipped here
    total = clipping.clipped_sum(net, x.float(), y, clip=0.01).total
    assert torch.allclose(total, each.sum(dim=0), atol=3e-7)


def test_microbatches_do_not_matter_and_the_model_is_left_as_it_was():
    net, (x, y) = network("opacus").double(), images()
    net[0].weight.grad = torch.ones_like(net[0].weight)
    before = {k: v.clone() for k, v in net.state_dict().items()}
    found = [clipping.clipped_sum(net, x, y, clip=0.1, microbatch=m).total for m in (1, 7, 100)]
    assert torch.allclose(found[0], found[1], rtol=1e-9)
    assert torch.allclose(found[0], found[2], rtol=1e-9)
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert all(p.requires_grad for p in net.parameters())
    assert torch.equal(net[0].weight.grad, torch.ones_like(net[0].weight))
    assert "forward" not in net[0].__dict__


def test_dropout_drops_for_each_user():
    """The gradient of a linear layer shows what was dropped of its input."""
    torch.manual_seed(5)
    net, (x, y) = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(784, 10, bias=False)), images(users=6)
    net.double()
    each = clipping.clipped_each(net, x, y, clip=1e6).view(6, 10, 784)
    kept = each[:, 0] != 0
    assert ((kept.double().mean(dim=1) - 0.5).abs() < 0.1).all()
    assert len(torch.unique(kept, dim=0)) == 6
    shown = each[:, 0] / x.flatten(1)  # the same number where nothing was dropped
    for row, mask in zip(shown, kept, strict=True):
        assert torch.allclose(row[mask], row[mask][0].expand(int(mask.sum())))
    assert torch.equal(kept, (each != 0).all(dim=1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("channels", "side", "kernel", "stride", "padding"),
    [
        (1, 28, 8, 4, 2),
        (1, 28, 4, 4, 0),
        (2, 16, 4, 4, 0),
        (1, 24, 12, 8, 2),
        (1, 26, 6, 2, 1),
        (1, 27, 8, 4, 2),
        (1, 28, 8, 2, 3),
        (3, 13, 5, 2, 1),
        (16, 13, 4, 2, 0),
        (1, 9, 3, 1, 1),
    ],
)
def test_convolutions_of_any_geometry(dtype, channels, side, kernel, stride, padding):
    """Also of several images for a user."""
    torch.manual_seed(3)
    x, y = images(users=3, side=side, channels=2 * channels)
    inner = nn.Conv2d(channels, 6, kernel, stride, padding)
    after = (side + 2 * padding - kernel) // stride + 1
    split = nn.Unflatten(1, (2, channels))
    layers = [split, nn.Flatten(0, 1), inner, nn.Tanh(), nn.Unflatten(0, (-1, 2)), nn.Flatten()]
    net = nn.Sequential(*layers, nn.Linear(12 * after**2, 10))
    rows, _ = one_by_one(net.double(), x, y, 1.0)
    each = clipping.clipped_each(net.to(dtype), x.to(dtype), y, clip=1.0)
    assert torch.allclose(each.double(), rows * (1 - 1e-5), atol=1e3 * torch.finfo(dtype).eps)


class Named(nn.Parameter):
    """A parameter of the user's own class."""


@pytest.mark.parametrize("own", [False, True])
def test_parameters_of_a_class_of_their_own(own):
    """Also after a model that fails."""
    net, (x, y) = network("bare").double(), images()
    if own:
        net.out = Named(net.out.data)
    classes = [type(p) for p in net.parameters()]
    rows, _ = one_by_one(net, x, y, 0.1)
    found = clipping.clipped_sum(net, x, y, clip=0.1)
    assert torch.allclose(found.total, rows.sum(dim=0) * (1 - 1e-5), rtol=1e-9, atol=1e-12)
    with pytest.raises(IndexError):
        clipping.clipped_sum(net, x[:, :0], y, clip=0.1)
    assert [type(p) for p in net.parameters()] == classes
    assert type(net.there + 1.0) is torch.Tensor


@pytest.mark.parametrize("name", ["bare", "flat"])
def test_threads_may_share_a_model(name):
    """Each sees its own pass, and an ordinary pass beside them is an ordinary one."""
    net, (x, y) = network(name).double(), images(users=64)
    expected = clipping.clipped_sum(net, x, y, clip=0.1, microbatch=4).total
    outputs = net(x)

    def clipped(_):
        return clipping.clipped_sum(net, x, y, clip=0.1, microbatch=4).total

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        several = pool.map(clipped, range(6))
        ordinary = pool.map(lambda _: net(x), range(6))
        assert all(torch.equal(found, expected) for found in several)
        assert all(torch.equal(found, outputs) for found in ordinary)
    assert all(type(p) is nn.Parameter for p in net.parameters())


@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_group_normalisation_of_what_is_far_from_zero(mean):
    """In single precision its gradients lose digits there, as PyTorch's own do, but stay as long as they may be."""
    torch.manual_seed(3)
    net = nn.Sequential(nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(4 * 49, 10))
    x, y = images(users=20, side=7, channels=4)
    each = clipping.clipped_each(net, x.float() + mean, y, clip=0.05)
    assert (each.double().norm(dim=1) <= 0.05).all()
    rows, _ = one_by_one(net.double(), x.float().double() + mean, y, 0.05)
    assert torch.allclose(each.double(), rows, atol=1e-4 * (1.0 + mean / 100.0))


class Renewing(nn.Module):
    """Puts another tensor in the place of its buffer each time it runs."""

    def __init__(self):
        super().__init__()
        self.first, self.scale, self.last = nn.Linear(784, 16), nn.Parameter(torch.ones(16)), nn.Linear(16, 10)
        self.register_buffer("divisor", torch.linspace(1.0, 2.0, 256).view(16, 16))

    def forward(self, x):
        weight = self.scale / self.divisor
        self.divisor = self.divisor.clone()
        return self.last(self.first(x.flatten(1)) @ weight.T)


def test_a_new_buffer_is_no_row_of_users():
    """Also where it is as long as a microbatch."""
    net, (x, y) = Renewing().double(), images(users=48)
    expected, _ = one_by_one(net, x, y, 0.5)
    found = clipping.clipped_sum(net, x, y, clip=0.5, microbatch=16)
    assert torch.allclose(found.total, expected.sum(dim=0), rtol=1e-4, atol=1e-9)


def test_norms_from_gram_matrices_are_never_too_small():
    """Where a user's products cancel each other, in single precision."""
    generator = torch.Generator().manual_seed(2)
    left, right = (torch.randn(500, 1, n, generator=generator) for n in (64, 80))
    near = left + 1e-4 * torch.randn(left.shape, generator=generator)
    part = gradients.Product(torch.cat([left, -near], dim=1), torch.cat([right, right], dim=1))
    assert part.grams
    exact = torch.bmm(part.left.double().mT, part.right.double()).flatten(1).norm(dim=1)
    assert (part.norms()[0].double() >= exact * (1 - 1e-6)).all()


def test_frozen_layers_do_not_count():
    net, (x, y) = network("opacus").double(), images()
    for p in net[0].parameters():
        p.requires_grad_(False)
    rows, norms = one_by_one(net, x, y, 0.1)
    found = clipping.clipped_sum(net, x, y, clip=0.1)
    assert torch.allclose(found.norms, norms)
    assert torch.allclose(found.total, rows.sum(dim=0) * (1 - 1e-5), rtol=1e-9, atol=1e-12)


def test_nobody_took_part():
    found = clipping.clipped_sum(
        network("small"), torch.zeros(0, 1, 28, 28), torch.zeros(0, dtype=torch.int64), clip=1.0
    )
    assert found.total.shape == (8890,)
    assert not found.total.any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clip": 0.0}, "clip must be positive, got 0.0"),
        ({"clip": float("nan")}, "clip must be finite, got nan"),
        ({"microbatch": 0}, "microbatch must be at least 1, got 0"),
        ({"model": network("small").half()}, "of one type, float32 or float64, got float16"),
        ({"model": nn.Sequential(nn.Flatten(), nn.Linear(784, 4), nn.Linear(4, 10).double())}, "got float32, float64"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "inputs and labels must have the same length, got 37 and 3"),
    ],
)
def test_bad_input(change, message):
    x, y = images()
    given = {"model": network("small"), "inputs": x.float(), "labels": y, "clip": 1.0, **change}
    with pytest.raises(ValueError, match=message):
        clipping.clipped_sum(**given)


def test_models_that_mix_users_or_diverged_are_refused():
    x, y = images()
    mixing = nn.Sequential(nn.Conv2d(1, 2, 8, stride=8), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(18, 10))
    with pytest.raises(ValueError, match="must not mix users, but 1 is a BatchNorm2d"):
        clipping.clipped_sum(mixing, x.float(), y, clip=1.0)
    net = network("small")
    with torch.no_grad():
        net[0].weight.fill_(float("nan"))
    with pytest.raises(FloatingPointError, match="diverged"):
        clipping.clipped_sum(net, x.float(), y, clip=1.0)
