"""Per-user clipping at 6,000 users a round, side by side in one run on one core: ours, Opacus, the plain pass.

    python benchmarks/clipping_speed.py [--markdown FILE]

Compared is what a round needs before the noise: the sum of clipped gradients of 6,000 users. Opacus runs in both
its ways, per-sample gradients and fast (ghost) clipping, the plain pass is an ordinary backward pass of the summed
loss, which clips nothing. Each gets the memory layout and the batch size that suit it best of those tried and that
give the right sum (Opacus 1.6 does not with channels last after the first layer). CPU time, so that other work on the
machine matters less; rounds of all candidates take turns, and the median counts.
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

from shoal.learning import clipping, model
from shoal.learning.randomness import Source

USERS, CLIP = 6_000, 0.01
BATCHES = (64, 256, 1_000)
Work = Callable[[], Tensor]


def network(name: str, layout: torch.memory_format = torch.channels_last) -> nn.Module:
    net = model.build(name, side=28, classes=10, randomness=Source(seed=1).stream("weights"))
    return net.to(memory_format=layout)


def images(layout: torch.memory_format = torch.channels_last) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(USERS, 1, 28, 28, generator=generator)
    return x.contiguous(memory_format=layout), torch.randint(0, 10, (USERS,), generator=generator)


def gradient(net: nn.Module) -> Tensor:
    return torch.cat([p.grad.reshape(-1) for p in net.parameters()])


def ours(name: str, batch: int, layout: torch.memory_format) -> Work:
    net, (x, y) = network(name, layout), images(layout)
    return lambda: clipping.clipped_sum(net, x, y, clip=CLIP, microbatch=batch).total


def plain(name: str, batch: int, layout: torch.memory_format) -> Work:
    net, (x, y) = network(name, layout), images(layout)

    def work() -> Tensor:
        net.zero_grad()
        for a, b in zip(x.split(batch), y.split(batch), strict=True):
            clipping.user_losses(net(a), b).sum().backward()
        return gradient(net)

    return work


def opacus_usual(name: str, batch: int, layout: torch.memory_format) -> Work:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    net, (x, y) = network(name, layout), images(layout)
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

    net, (x, y) = network(name, layout), images(layout)
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


def best(make: Callable[..., Work], name: str, reference: Tensor | None) -> tuple[Work, str]:
    """The layout and batch that suit a candidate best, among those with the right sum, after a warm-up each."""
    tried = []
    for layout_name, layout in LAYOUTS.items():
        for batch in BATCHES:
            work = make(name, batch, layout)
            found = work()
            if reference is None or float((found - reference).abs().max() / reference.abs().max()) < 1e-3:
                tried.append((cpu(work), f"{layout_name}, {batch}", work))
    _, words, work = min(tried, key=lambda t: t[0])
    return work, words


def memory(candidate: str, name: str) -> float:
    """Peak memory of a fresh process that does one round, in MiB."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory-of", candidate, name], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def compare(name: str, rounds: int) -> list[str]:
    reference = ours(name, 100, torch.channels_last)()
    chosen = {label: best(make, name, None if make is plain else reference) for label, make in CANDIDATES.items()}
    times: dict[str, list[float]] = {label: [] for label in chosen}
    for _ in range(rounds):
        for label, (work, _) in chosen.items():
            times[label].append(cpu(work))
    base = statistics.median(times["plain pass, no clipping"])
    count = sum(p.numel() for p in network(name).parameters())
    lines = [
        f"### `{name}`, {count:,} parameters",
        "| what | times the plain pass | CPU seconds | layout and batch | peak memory, MiB |",
        "|---|---|---|---|---|",
    ]
    for label, (_, words) in chosen.items():
        median = statistics.median(times[label])
        lines.append(f"| {label} | {median / base:.2f} | {median:.2f} | {words} | {memory(label, name):,.0f} |")
    return lines


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the tables to this file")
    options.add_argument("--rounds", type=int, default=7)
    options.add_argument("--memory-of", nargs=2, metavar=("CANDIDATE", "NETWORK"), help=argparse.SUPPRESS)
    asked = options.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if asked.memory_of:
        candidate, name = asked.memory_of
        CANDIDATES[candidate](name, 256, torch.contiguous_format if "Opacus" in candidate else torch.channels_last)()
        print(int(re.search(r"VmHWM:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024)
        return
    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ("torch", "opacus"))
    text = [
        f"Measured on {datetime.date.today()} by `benchmarks/clipping_speed.py` with Python "
        f"{platform.python_version()}, {versions}, one thread: the sum of clipped gradients of {USERS:,} users.",
        *(line for name in model.NETWORKS for line in compare(name, asked.rounds)),
    ]
    joined = "\n".join(f"\n{line}\n" if line.startswith("#") else line for line in text) + "\n"
    print(joined)
    if asked.markdown:
        asked.markdown.write_text(joined)


if __name__ == "__main__":
    main()
