"""Per-user clipping at 6,000 users a round, side by side in one run on one core: ours, Opacus, the plain pass.

    python benchmarks/clipping_speed.py [--markdown FILE]

Compared is what a round needs before the noise: the sum of clipped gradients of 6,000 users, for the package's
networks and for models of a user's own. Opacus runs in both its ways, per-sample gradients and fast (ghost) clipping,
the plain pass is an ordinary backward pass of the summed loss, which clips nothing. The plain pass and Opacus get the
memory layout and the batch size that suit them best of those tried and that give the right sum (Opacus 1.6 does not
with channels last after the first layer); shoal takes what comes, in the better layout. Dropout and random
numbers are tiny, so that sums can be compared. CPU time, so that other work
on the machine matters less; rounds of all candidates take turns, and the median counts.
"""

import argparse
import datetime
import importlib.metadata
import pathlib
import platform
import re
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

from shoal.training import clipping, networks
from shoal.training.randomness import Source

USERS, CLIP = 6_000, 0.01
BATCHES = (256, 1_000, 4_096)
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


def network(name: str, layout: torch.memory_format = torch.channels_last) -> nn.Module:
    torch.manual_seed(1)
    net = OWN[name][1]() if name in OWN else built(name)
    return net.to(memory_format=layout)


def records(name: str, layout: torch.memory_format = torch.channels_last) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 10, (USERS,), generator=generator)
    if "histograms" in name:
        return nn.functional.normalize(torch.randn(USERS, 392, generator=generator), dim=1), labels
    return torch.randn(USERS, 1, 28, 28, generator=generator).contiguous(memory_format=layout), labels


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
LAYOUTS = {"channels last": torch.channels_last, "channels first": torch.contiguous_format}


def cpu(work: Work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def best(make: Callable[..., Work], name: str, reference: Tensor | None) -> tuple[Work, str] | None:
    """The layout and batch that suit a candidate best, among those with the right sum, after a warm-up each."""
    tried = []
    for layout_name, layout in LAYOUTS.items():
        for batch in (None,) if make is ours else BATCHES:
            try:
                work = make(name, batch, layout)
                found = work()
            except (NotImplementedError, AttributeError, ValueError, RuntimeError):
                continue  # Opacus does not know the model
            if reference is None or float((found - reference).abs().max() / reference.abs().max()) < 1e-3:
                tried.append((cpu(work), layout_name + (f", {batch}" if batch else ""), work))
    if not tried:
        return None
    _, words, work = min(tried, key=lambda t: t[0])
    return work, words


def memory(candidate: str, name: str) -> float:
    """Peak memory of a fresh process that does one round, in MiB."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory-of", candidate, name], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def compare(name: str, rounds: int, peers: bool) -> list[str]:
    reference = ours(name, 100, torch.channels_last)()
    candidates = {k: make for k, make in CANDIDATES.items() if peers or make in (plain, ours)}
    found = {label: best(make, name, None if make is plain else reference) for label, make in candidates.items()}
    chosen = {label: work for label, work in found.items() if work is not None}
    times: dict[str, list[float]] = {label: [] for label in chosen}
    for _ in range(rounds):
        for label, (work, _) in chosen.items():
            times[label].append(cpu(work))
    base = statistics.median(times["plain pass, no clipping"])
    count = sum(p.numel() for p in network(name).parameters())
    told = f"{name} ({OWN[name][0]})" if name in OWN else f"`{name}`"
    lines = [
        f"### {told}, {count:,} parameters",
        "| what | times the plain pass | CPU seconds | layout and batch | peak memory, MiB |",
        "|---|---|---|---|---|",
    ]
    for label, (_, words) in chosen.items():
        median = statistics.median(times[label])
        lines.append(f"| {label} | {median / base:.2f} | {median:.2g} | {words} | {memory(label, name):,.0f} |")
    return lines + [f"| {label} | does not know it | | | |" for label in found if label not in chosen]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the tables to this file")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--peers", action=argparse.BooleanOptionalAction, default=True, help="run Opacus as well")
    options.add_argument("--networks", nargs="+", choices=(*networks.NETWORKS, *OWN), metavar="NAME")
    options.add_argument("--memory-of", nargs=2, metavar=("CANDIDATE", "NETWORK"), help=argparse.SUPPRESS)
    asked = options.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if asked.memory_of:
        candidate, name = asked.memory_of
        batch, layout = (256, torch.contiguous_format) if "Opacus" in candidate else (256, torch.channels_last)
        CANDIDATES[candidate](name, None if candidate == "shoal" else batch, layout)()
        print(int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024)
        return
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("torch", "opacus"))
    text = [
        f"Measured on {datetime.date.today()} by `benchmarks/clipping_speed.py` with Python "
        f"{platform.python_version()}, {versions}, one thread: the sum of clipped gradients of {USERS:,} users.",
        *(
            line
            for name in asked.networks or (*networks.NETWORKS, *OWN)
            for line in compare(name, asked.rounds, asked.peers)
        ),
    ]
    joined = "\n".join(f"\n{line}\n" if line.startswith("#") else line for line in text) + "\n"
    print(joined)
    if asked.markdown:
        asked.markdown.write_text(joined)


if __name__ == "__main__":
    main()
