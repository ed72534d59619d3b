"""Per-user clipping side by side in one run on one core: ours, Opacus, the plain pass.

    python benchmarks/clipping_speed.py [--markdown FILE]

Compared is what a round needs before the noise: the sum of clipped gradients of 6,000 users for the package's
networks and for models of a user's own, of 1,000 users for common models, and of 32 for ResNet-18. Opacus runs in
both its ways, per-sample gradients and fast (ghost) clipping, the plain pass is an ordinary backward pass of the summed
loss, which clips nothing. The plain pass and Opacus get the batch size that suits them best of those tried and that
gives the right sum; shoal takes what comes. Images lie channels last, and for Opacus channels first. Dropout and random
numbers are tiny, so that sums can be compared. CPU time, so that other work on the machine matters less; rounds of all
candidates take turns, and the median counts. Peak memory is that of a process for one round.
"""

import argparse
import datetime
import importlib.metadata
import itertools
import multiprocessing
import pathlib
import platform
import re
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from shoal.training import clipping, networks
from shoal.training.randomness import Source

CLIP = 0.01
BATCHES = (256, 1_000)
Work = Callable[[], Tensor]


class Scaled(nn.Module):
    """A model with a parameter of its own: nothing that takes layers one by one knows it."""

    def __init__(self, inner: nn.Module, *, divided: bool = False) -> None:
        super().__init__()
        self.inner, self.divided, self.scale = inner, divided, nn.Parameter(torch.ones(10))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) / self.scale if self.divided else self.inner(x) * self.scale


class Blended(nn.Module):
    """A function of three tensors, one of them a parameter."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.share = inner, nn.Parameter(torch.rand(10))

    def forward(self, x: Tensor) -> Tensor:
        outputs = self.inner(x)
        return torch.lerp(outputs, torch.tanh(outputs), self.share)


class Shaken(nn.Module):
    """Random numbers of its own: what it gives for a user alone is never what it gives for all."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1e-6 * torch.rand_like(x)


class Product(nn.Module):
    """A linear layer written by hand."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) / inputs**0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def built(name: str) -> nn.Module:
    return networks.build(name, side=28, classes=10, randomness=Source(seed=1).stream("weights"))


def normalised() -> nn.Module:
    """The network `opacus` with group normalisation after its convolutions."""
    layers = list(built("opacus"))
    return nn.Sequential(layers[0], nn.GroupNorm(4, 16), *layers[1:4], nn.GroupNorm(4, 32), *layers[4:])


def leaky(name: str) -> nn.Module:
    return nn.Sequential(*(nn.PReLU() if isinstance(layer, nn.ReLU) else layer for layer in built(name)))


OWN: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "own: perceptron": (
        "layers of 128 and 10 with layer normalisation",
        lambda: nn.Sequential(nn.Flatten(), nn.Linear(784, 128), nn.LayerNorm(128), nn.ReLU(), nn.Linear(128, 10)),
    ),
    "own: normalised": ("`opacus` with group normalisation", normalised),
    "own: opacus scaled": ("`opacus` times a parameter for each output", lambda: Scaled(built("opacus"))),
    "own: small scaled": ("`small` times a parameter for each output", lambda: Scaled(built("small"))),
    "own: histograms scaled": (
        "`histograms` times a parameter for each output",
        lambda: Scaled(built("histograms")),
    ),
    "own: opacus divided": (
        "`opacus` divided by a parameter for each output",
        lambda: Scaled(built("opacus"), divided=True),
    ),
    "own: small divided": (
        "`small` divided by a parameter for each output",
        lambda: Scaled(built("small"), divided=True),
    ),
    "own: opacus leaky": (
        "`opacus` with `PReLU`, whose slope is a parameter: the activations by torch.func",
        lambda: leaky("opacus"),
    ),
    "own: small leaky": (
        "`small` with `PReLU`, whose slope is a parameter: the activation by torch.func",
        lambda: leaky("small"),
    ),
    "own: small blended": (
        "`small` between its outputs and their tanh, by a parameter for each",
        lambda: Blended(built("small")),
    ),
    "own: small dropped": (
        "`small` with dropout before its last layer",
        lambda: nn.Sequential(*(layers := list(built("small")))[:-1], nn.Dropout(1e-9), layers[-1]),
    ),
    "own: small shaken": (
        "`small` on images with random numbers added: all of it by torch.func, each user apart",
        lambda: nn.Sequential(Shaken(), *built("small")),
    ),
    "own: by hand": (
        "one layer of 10 as a bare matrix",
        lambda: nn.Sequential(nn.Flatten(), Product(784, 10)),
    ),
}


class Attentive(nn.Module):
    """Words to classes by a transformer of two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(1_000, 32), nn.Linear(32, 10)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(self.words(x)).mean(dim=1))


class Recurrent(nn.Module):
    """Words to classes by a recurrent layer."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.words, self.inner, self.last = nn.Embedding(1_000, 32), kind(32, 64, batch_first=True), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.inner(self.words(x))[0][:, -1])


class Averaged(nn.Module):
    """Words to classes by the mean of their vectors."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(1_000, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.words(x).mean(dim=1))


class Block(nn.Module):
    """The basic block of ResNet, with group normalisation."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.GroupNorm(32, outputs)
        self.third, self.fourth = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.GroupNorm(32, outputs)
        shortcut = [nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.GroupNorm(32, outputs)]
        self.short = nn.Sequential(*shortcut if stride > 1 else [])

    def forward(self, x: Tensor) -> Tensor:
        inner = self.third(torch.relu(self.second(self.first(x))))
        return torch.relu(self.fourth(inner) + self.short(x))


def resnet() -> nn.Module:
    """ResNet-18 for images of 32 x 32 pixels, as generally trained on CIFAR-10."""
    widths = (64, 64, 64, 128, 128, 256, 256, 512, 512)
    blocks = [Block(a, b, 1 if a == b else 2) for a, b in itertools.pairwise(widths)]
    first = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.GroupNorm(32, 64), nn.ReLU()]
    return nn.Sequential(*first, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


COMMON: dict[str, tuple[str, Callable[[], nn.Module]]] = {
    "common: embedding": ("the mean of 32 of 1,000 vectors, 1,000 records", Averaged),
    "common: transformer": ("two layers of width 32 on 32 words, 1,000 records", Attentive),
    "common: LSTM": ("64 cells on 32 words, 1,000 records", lambda: Recurrent(nn.LSTM)),
    "common: GRU": ("64 cells on 32 words, 1,000 records", lambda: Recurrent(nn.GRU)),
    "common: ResNet-18": ("with group normalisation on images of 32 x 32 pixels, 32 records", resnet),
}
MADE = OWN | COMMON


def network(name: str, layout: torch.memory_format = torch.channels_last) -> nn.Module:
    torch.manual_seed(1)
    net = MADE[name][1]() if name in MADE else built(name)
    return net.to(memory_format=layout)


def records(name: str, layout: torch.memory_format = torch.channels_last) -> tuple[Tensor, Tensor]:
    generator, users = torch.Generator().manual_seed(1), 1_000 if name in COMMON else 6_000
    users = 32 if "ResNet" in name else users
    labels = torch.randint(0, 10, (users,), generator=generator)
    if "histograms" in name:
        return nn.functional.normalize(torch.randn(users, 392, generator=generator), dim=1), labels
    if "ResNet" in name:
        return torch.randn(users, 3, 32, 32, generator=generator).contiguous(memory_format=layout), labels
    if name in COMMON:
        return torch.randint(0, 1_000, (users, 32), generator=generator), labels
    return torch.randn(users, 1, 28, 28, generator=generator).contiguous(memory_format=layout), labels


def gradient(net: nn.Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in net.parameters()])


def ours(name: str, batch: int | None, layout: torch.memory_format) -> Work:
    net, (x, y) = network(name, layout), records(name, layout)
    return lambda: clipping.clipped_sum(net, x, y, clip=CLIP, microbatch=batch).total


def plain(name: str, batch: int, layout: torch.memory_format) -> Work:
    net, (x, y) = network(name, layout), records(name, layout)

    def work() -> Tensor:
        net.zero_grad()
        for a, b in zip(x.split(batch), y.split(batch), strict=True):
            clipping.user_losses(net(a), b).sum().backward()
        return gradient(net)

    return work


def opacus_usual(name: str, batch: int, layout: torch.memory_format) -> Work:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    net, (x, y) = network(name, layout), records(name, layout)
    wrapped = GradSampleModule(net, loss_reduction="sum")
    settings = {"noise_multiplier": 0.0, "max_grad_norm": CLIP, "expected_batch_size": None, "loss_reduction": "sum"}
    optimiser = DPOptimizer(torch.optim.SGD(net.parameters(), lr=0.0), **settings)
    loss = nn.CrossEntropyLoss(reduction="sum")

    def work() -> Tensor:
        optimiser.zero_grad()
        parts = list(zip(x.split(batch), y.split(batch), strict=True))
        for i, (a, b) in enumerate(parts):
            optimiser.signal_skip_step(do_skip=i + 1 < len(parts))
            loss(wrapped(a), b).backward()
            optimiser.step()
            if i + 1 < len(parts):
                optimiser.zero_grad()
        return gradient(net)

    return work


def opacus_fast(name: str, batch: int, layout: torch.memory_format) -> Work:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    net, (x, y) = network(name, layout), records(name, layout)
    wrapped = GradSampleModuleFastGradientClipping(
        net, loss_reduction="sum", max_grad_norm=CLIP, use_ghost_clipping=True
    )
    settings = {"noise_multiplier": 0.0, "max_grad_norm": CLIP, "expected_batch_size": None, "loss_reduction": "sum"}
    optimiser = DPOptimizerFastGradientClipping(torch.optim.SGD(net.parameters(), lr=0.0), **settings)
    loss = DPLossFastGradientClipping(wrapped, optimiser, nn.CrossEntropyLoss(reduction="sum"), loss_reduction="sum")

    def work() -> Tensor:
        optimiser.zero_grad()
        parts = list(zip(x.split(batch), y.split(batch), strict=True))
        for i, (a, b) in enumerate(parts):
            optimiser.signal_skip_step(do_skip=i + 1 < len(parts))
            loss(wrapped(a), b).backward()
            optimiser.step()
            if i + 1 < len(parts):
                optimiser.zero_grad()
        return gradient(net)

    return work


CANDIDATES = {
    "plain pass, no clipping": plain,
    "shoal": ours,
    "Opacus, per-sample gradients": opacus_usual,
    "Opacus, fast (ghost) clipping": opacus_fast,
}


def cpu(work: Work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def best(make: Callable[..., Work], name: str, reference: Tensor) -> tuple[Work, str] | None:
    """The batch that suits a candidate best, among those with the right sum, after a warm-up each."""
    layout = torch.channels_last if make in (ours, plain) else torch.contiguous_format
    tried = []
    for batch in (None,) if make is ours else sorted({min(b, len(records(name)[0])) for b in BATCHES}):
        try:
            work = make(name, batch, layout)
            total = work()
        except (NotImplementedError, AttributeError, ValueError, RuntimeError, TypeError):
            continue  # Opacus does not know the model
        if make is plain or float((total - reference).abs().max() / reference.abs().max()) < 1e-3:
            tried.append((cpu(work), str(batch or ""), work))
    if not tried:
        return None
    _, words, work = min(tried, key=lambda t: t[0])
    return work, words


def in_a_child(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own, which is forked from one that has computed nothing."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(function, arguments)


def memory(label: str, name: str, batch: str) -> float:
    """Peak memory of a process that does one round, in MiB."""
    layout = torch.contiguous_format if "Opacus" in label else torch.channels_last
    CANDIDATES[label](name, int(batch) if batch else None, layout)()
    return float(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024


def times(name: str, rounds: int, peers: bool) -> tuple[dict[str, float], dict[str, str]]:
    """CPU seconds and batches of the candidates that know a model."""
    reference = ours(name, None, torch.channels_last)()
    candidates = {k: make for k, make in CANDIDATES.items() if peers or make in (plain, ours)}
    tried = {label: best(make, name, reference) for label, make in candidates.items()}
    chosen = {label: work for label, work in tried.items() if work is not None}
    taken: dict[str, list[float]] = {label: [] for label in chosen}
    for _ in range(rounds):
        for label, (work, _) in chosen.items():
            taken[label].append(cpu(work))
    return {k: statistics.median(t) for k, t in taken.items()}, {k: batch for k, (_, batch) in chosen.items()}


def compare(name: str, rounds: int, peers: bool) -> list[str]:
    seconds, batches = in_a_child(times, name, rounds, peers)
    base = seconds["plain pass, no clipping"]
    count = sum(p.numel() for p in network(name).parameters())
    words = f"{name} ({MADE[name][0]})" if name in MADE else f"`{name}`"
    lines = [
        f"### {words}, {count:,} parameters",
        "| what | times the plain pass | CPU seconds | batch | peak memory, MiB |",
        "|---|---|---|---|---|",
    ]
    for label, batch in batches.items():
        peak = in_a_child(memory, label, name, batch)
        lines.append(f"| {label} | {seconds[label] / base:.2f} | {seconds[label]:.2g} | {batch} | {peak:,.0f} |")
    return lines + [f"| {label} | does not know it | | | |" for label in CANDIDATES if peers and label not in batches]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the tables to this file")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="run Opacus as well")
    options.add_argument("--networks", nargs="+", choices=(*networks.NETWORKS, *MADE), metavar="NAME")
    settings = options.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("torch", "opacus"))
    text = [
        f"Measured on {datetime.date.today()} by `benchmarks/clipping_speed.py` with Python "
        f"{platform.python_version()}, {versions}, one thread: the sum of clipped gradients.",
    ]
    for name in settings.networks or (*networks.NETWORKS, *MADE):
        text += compare(name, settings.rounds, settings.peers)
        joined = "\n".join(f"\n{line}\n" if line.startswith("#") else line for line in text) + "\n"
        if settings.markdown:  # after each model, as the whole takes long
            settings.markdown.write_text(joined)
    print(joined)


if __name__ == "__main__":
    main()
