"""Clipping of random models, and of models made to mix users: each gradient is that of its user alone."""

import copy
import math
import random
import threading
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional

from shoal.errors import InvalidInput
from shoal.training import clipped_each, clipped_sum

SHRUNK = 1 - 1e-5
RANDOM_MODELS, SEED = 60, 0
"""More models and other seeds were run by hand."""


def alone(net, x, y):
    """Each record's gradient by an ordinary backward pass through a model that has met nobody else."""
    rows = []
    for i in range(len(x)):
        fresh = copy.deepcopy(net)
        functional.cross_entropy(fresh(x[i : i + 1]), y[i : i + 1]).backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in fresh.parameters() if p.requires_grad]
        rows.append(torch.cat([g.flatten() for g in parts]))
    return torch.stack(rows)


def assert_alone(net, x, y, **settings):
    """No warning, the right gradients, and a model that is as it was."""
    before = {k: v.clone() for k, v in net.state_dict().items()}
    expected, records = alone(net, x.clone(), y), x.clone()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = clipped_sum(net, x, y, clip=1e9, **settings)
        each = clipped_each(net, x, y, clip=1e9, **settings)
    scale = expected.norm(dim=1).clamp(min=1e-12)
    assert ((each / SHRUNK - expected).norm(dim=1) <= 1e-5 * scale).all()
    assert torch.allclose(found.norms, expected.norm(dim=1), rtol=1e-5, atol=1e-12)
    assert torch.allclose(found.total / SHRUNK, expected.sum(dim=0), rtol=1e-5, atol=1e-5 * float(scale.max()))
    assert all(torch.equal(v, before[k]) for k, v in net.state_dict().items())
    assert torch.equal(x, records)


class Lambda(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Residual(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return x + self.inner(x)


class Attention(nn.Module):
    """Over the first dimension, which is the users' in an ordinary batch, or over the second."""

    def __init__(self, width, over_users):
        super().__init__()
        self.inner = nn.MultiheadAttention(width, 2, batch_first=not over_users)

    def forward(self, x):
        return x + self.inner(x, x, x, need_weights=False)[0]


class Weighed(nn.Module):
    """A parameter used by hand in several shapes."""

    def __init__(self, width, use):
        super().__init__()
        self.use, self.w = use, nn.Parameter(torch.randn(width, width) / math.sqrt(width))

    def forward(self, x):
        return self.use(x, self.w)


USES = [
    lambda x, w: x @ w,
    lambda x, w: x @ w.T,
    lambda x, w: torch.tanh(x @ w) @ w,
    lambda x, w: functional.linear(x, w) * w[0] + w.mean(),
    lambda x, w: x * w.diagonal(),
    lambda x, w: x / (1.0 + w.square().sum()),
    lambda x, w: torch.einsum("...i,ij->...j", x, w),
    lambda x, w: functional.linear(functional.normalize(x, dim=-1), functional.normalize(w, dim=0)),
    lambda x, w: x.sort(dim=0).values @ w,
    lambda x, w: x[x.sum(dim=tuple(range(1, x.dim()))).argsort()] @ w,
    lambda x, w: x.flip(0) @ w,
    lambda x, w: x - (x @ w).mean(dim=0),
    lambda x, w: torch.cat([x, x @ w])[: len(x)] + x.cumsum(dim=0),
    lambda x, w: torch.softmax(x.flatten(1) @ x.flatten(1).T, dim=0).sum() * (x @ w),
]


def random_layers(draw, width, steps):
    """Layers that keep the shape users x steps x width."""
    layers = []
    for _ in range(draw.randint(1, 4)):
        kind = draw.randrange(10)
        if kind == 0:
            layers.append(nn.Linear(width, width, bias=draw.random() < 0.5))
        elif kind == 1:
            layers.append(Residual(nn.Sequential(nn.Linear(width, 3), nn.GELU(), nn.Linear(3, width))))
        elif kind == 2:
            layers.append(nn.LayerNorm(width))
        elif kind == 3:
            layers.append(Attention(width, over_users=draw.random() < 0.5))
        elif kind == 4:
            recurrent = draw.choice((nn.LSTM, nn.GRU, nn.RNN))
            layers += [recurrent(width, width, batch_first=draw.random() < 0.5), Lambda(lambda found: found[0])]
        elif kind == 5:
            layers.append(nn.Sequential(Lambda(lambda x: x.mT), nn.Conv1d(width, width, 1), Lambda(lambda x: x.mT)))
        elif kind == 6:
            image = nn.Conv2d(1, 1, 3, padding=1, stride=1)
            layers += [Lambda(lambda x: x[:, None]), image, Lambda(lambda x: x[:, 0])]
        elif kind == 7:
            layers += [Lambda(lambda x: x.mT), nn.GroupNorm(1, width), Lambda(lambda x: x.mT)]
        else:
            layers.append(Weighed(width, draw.choice(USES)))
        layers.append(draw.choice((nn.ReLU(), nn.Tanh(), nn.PReLU(), nn.ReLU(inplace=True), nn.Identity())))
    return layers


def random_model(seed):
    """A model, its records and their labels."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    width, steps, users = 2 * draw.randint(1, 3), draw.randint(1, 5), draw.randint(2, 6)
    y = torch.randint(0, 3, (users,))
    last = [nn.Flatten(), nn.Linear(width * steps, 3)]
    if draw.random() < 0.3:
        x, first = torch.randint(0, 7, (users, steps)), [nn.Embedding(7, width, padding_idx=draw.choice((None, 0)))]
    else:
        x, first = torch.randn(users, steps, width, dtype=torch.float64), []
    net = nn.Sequential(*first, *random_layers(draw, width, steps), *last).double()
    if draw.random() < 0.3:
        for p in list(net.parameters())[: draw.randint(0, 2)]:
            p.requires_grad_(False)
    return net, x, y


@pytest.mark.parametrize("seed", range(SEED, SEED + RANDOM_MODELS))
def test_random_models(seed):
    net, x, y = random_model(seed)
    assert_alone(net, x, y, microbatch=1 + seed % 4)


class Adversary(nn.Module):
    """Two layers around something that would mix users, were the model to meet several."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("seen", torch.zeros(5))
        self.memory, self.calls = [], 0

    def forward(self, x):
        return self.last(self.mixed(torch.tanh(self.first(x))))


class Sorting(Adversary):
    def mixed(self, x):
        order = x.sum(dim=1).argsort(descending=True)
        return x[order]


class PermutingRarely(Adversary):
    def mixed(self, x):
        order = torch.where((x > 0.9).any(), torch.arange(len(x)).flip(0), torch.arange(len(x)))
        return x[order]


class BatchAttention(Adversary):
    def mixed(self, x):
        return torch.softmax(x @ x.T, dim=1) @ x


class Centring(Adversary):
    def mixed(self, x):
        return x - x.mean(dim=0) / 2


class Remembering(Adversary):
    """A buffer that changes with each record."""

    def mixed(self, x):
        self.seen += x.detach().mean(dim=0)
        return x + self.seen


class Renewing(Adversary):
    def mixed(self, x):
        x = x + self.seen
        self.seen = self.seen + x.detach().sum(dim=0)
        return x


class Listing(Adversary):
    """What it has met stays in a list, from which the next record's outputs come."""

    def mixed(self, x):
        self.memory.append(x.detach().sum())
        return x * sum(self.memory) / len(self.memory)


class Counting(Adversary):
    """Other outputs at each call, by no data at all."""

    def mixed(self, x):
        self.calls += 1
        return x * self.calls


class Scaling(Adversary):
    """Changes its own weights in place."""

    def mixed(self, x):
        with torch.no_grad():
            self.last.weight.mul_(0.5)
        return x


class Clamping(Adversary):
    """Changes its weights in place, by what the record is."""

    def mixed(self, x):
        with torch.no_grad():
            self.last.weight.mul_(1.0 + x.abs().max())
        return x


class InPlace(Adversary):
    """Changes the caller's records in place."""

    def forward(self, x):
        return self.last(self.first(x.mul_(2.0)))


class Branching(Adversary):
    def mixed(self, x):
        return self.last.weight[:, :].sum() * x if float(x.detach().sum()) > 0 else x.flip(1)


class InnerGradient(Adversary):
    """Depends on parameters by a gradient inside."""

    def mixed(self, x):
        return x + torch.func.grad(lambda v: torch.tanh(self.last(v)).square().sum())(x)


class OldInnerGradient(Adversary):
    def mixed(self, x):
        (inner,) = torch.autograd.grad(torch.tanh(self.last(x)).square().sum(), x, create_graph=True)
        return x + inner


class InnerMap(Adversary):
    def mixed(self, x):
        return x + torch.func.vmap(lambda row: torch.tanh(self.last(row[None])[0]).sum() * row)(x)


class MapOfConstants(Adversary):
    def mixed(self, x):
        return x + torch.func.vmap(lambda row: self.last(row[None])[0])(torch.ones(4, 5).double()).sum()


class Detached(Adversary):
    def mixed(self, x):
        return x * self.last.weight.detach().sum() + self.last.weight.data.sum()


class Shared(Adversary):
    """One weight by several names, and from a list of its own."""

    def __init__(self):
        super().__init__()
        self.again = nn.Linear(6, 5)
        self.again.weight = self.first.weight
        self.listed = [self.again.bias]

    def mixed(self, x):
        return x + self.again(torch.ones(1, 6, dtype=x.dtype)) + self.listed[0].exp()


class Changing(Adversary):
    """Uses its weights in another way at the second call."""

    def mixed(self, x):
        self.calls += 1
        return x if self.calls == 1 else x * self.last.weight.sum()


class Wide(Adversary):
    """Each record becomes several rows, which the layers get as if they were users."""

    def forward(self, x):
        rows = torch.cat([x, x.flip(1), x**2])
        return self.last(torch.tanh(self.first(rows))).sum(dim=0, keepdim=True)


class Unused(Adversary):
    """Its loss does not depend on the parameters at all."""

    def forward(self, x):
        return (x[:, :3] * 2.0).detach().requires_grad_()


ADVERSARIES = [
    Sorting,
    PermutingRarely,
    BatchAttention,
    Centring,
    Remembering,
    Renewing,
    Listing,
    Counting,
    Scaling,
    Clamping,
    Branching,
    InnerGradient,
    OldInnerGradient,
    InnerMap,
    MapOfConstants,
    Detached,
    Shared,
    Changing,
    Wide,
    InPlace,
    Unused,
]


@pytest.mark.parametrize("make", ADVERSARIES)
@pytest.mark.parametrize("microbatch", [1, 3])
def test_models_made_to_mix_users(make, microbatch):
    torch.manual_seed(5)
    net, x, y = make().double(), torch.randn(7, 6, dtype=torch.float64), torch.arange(7) % 3
    assert_alone(net, x, y, microbatch=microbatch)
    assert net.memory == []
    assert net.calls == 0


def test_a_model_that_cannot_be_copied_is_refused():
    """What a record changed in it could not be undone."""

    class Locked(Adversary):
        def __init__(self):
            super().__init__()
            self.lock = threading.Lock()

        mixed = nn.Identity()

    with pytest.raises(InvalidInput, match=r"copy\.deepcopy can copy it, got .*lock"):
        clipped_sum(Locked(), torch.randn(2, 6), torch.arange(2), clip=1.0)


class Encoder(nn.Module):
    """Words to classes by a transformer."""

    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(50, 16, padding_idx=0), nn.Parameter(torch.randn(8, 16) / 4)
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0, norm_first=True)
        self.layers, self.last = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 3)

    def forward(self, x):
        return self.last(self.layers(self.words(x) + self.places).mean(dim=1))


class Recurrent(nn.Module):
    """Words to classes by a recurrent layer."""

    def __init__(self, kind, **settings):
        super().__init__()
        self.words, self.inner = nn.Embedding(50, 6), kind(6, 5, batch_first=True, **settings)
        self.last = nn.Linear(10 if settings.get("bidirectional") else 5, 3)

    def forward(self, x):
        outputs, ends = self.inner(self.words(x))
        return self.last(outputs[:, -1]) + (ends[-1] if isinstance(ends, tuple) else ends)[0, :, :3]


class Block(nn.Module):
    """Two convolutions beside a shorter path, as in ResNet."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first, self.norm = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(2, outputs)
        self.second, self.again = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(2, outputs)
        self.short = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.again(self.second(torch.relu(self.norm(self.first(x))))) + self.short(x))


def words():
    return torch.randint(0, 50, (5, 8))


def pictures():
    return torch.randn(5, 3, 13, 13, dtype=torch.float64)


COMMON = {
    "transformer": (Encoder, words),
    "lstm": (lambda: Recurrent(nn.LSTM, num_layers=2, bidirectional=True), words),
    "gru": (lambda: Recurrent(nn.GRU, num_layers=2), words),
    "rnn": (lambda: Recurrent(nn.RNN, nonlinearity="relu", bias=False), words),
    "residual": (
        lambda: nn.Sequential(Block(3, 4, 1), Block(4, 6, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 3)),
        pictures,
    ),
    "convolutions": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding="same"),
            nn.GroupNorm(2, 4),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 4, 3, groups=2, dilation=2),
            nn.InstanceNorm2d(4, affine=True),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(16, 3),
        ),
        pictures,
    ),
}


@pytest.mark.parametrize("name", COMMON)
@pytest.mark.parametrize("training", [True, False])
def test_common_models_run_without_warnings_and_not_singly(name, training, monkeypatch):
    torch.manual_seed(7)
    make, records = COMMON[name]
    net, x = make().double().train(training), records()
    monkeypatch.delattr("shoal.training.clipping._singly")
    assert_alone(net, x, torch.arange(5) % 3)


@pytest.mark.parametrize(("memory", "batches"), [(2**29, 1), (20_000, 2), (1, 20)])
def test_microbatches_follow_the_memory(memory, batches):
    """The loss is computed at once for a microbatch, and once before."""
    net, x, y, calls = nn.Linear(500, 3), torch.randn(20, 500), torch.arange(20) % 3, []

    def loss(outputs, labels):
        calls.append(outputs.shape)
        return functional.cross_entropy(outputs, labels, reduction="none")

    found = clipped_sum(net, x, y, clip=1.0, loss=loss, memory=memory)
    assert batches <= len(calls) - 1 <= min(4 * batches, 20)
    assert torch.allclose(found.total, clipped_sum(net, x, y, clip=1.0).total, atol=1e-5)


def test_memory_must_be_positive():
    with pytest.raises(InvalidInput, match="memory must be at least 1, got 0"):
        clipped_sum(nn.Linear(2, 2), torch.randn(2, 2), torch.arange(2), clip=1.0, memory=0)
