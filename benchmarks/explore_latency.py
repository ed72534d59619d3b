"""How long the page of `shoal explore` keeps one waiting, in a real browser, at the paper's parameters.

    python benchmarks/explore_latency.py [--markdown FILE] [--moves N] [--nice N]

Needs Chromium and `playwright`. The server and its computing processes are bound to one core; the browser is not. Times
are taken in the page: from the start of the navigation, or from the slider's last event, until the number stands in the
table. They are wall time and depend on what else the machine does, so the processor's seconds of the same answers
(in a process of its own, bound to one core) and the load are given beside them. `--nice -15` (as root, started with
`setsid -w`) goes before the other work of a shared machine. Takes one or two minutes.
"""

import argparse
import datetime
import json
import os
import pathlib
import platform
import re
import shutil
import signal
import statistics
import subprocess
import sys

from playwright.sync_api import sync_playwright

PAPER = {
    "check-in": {"users": "60000", "rate": "0.1", "sigma": "5", "rounds": "5540", "delta": "1e-5"},
    "subsampled": {"users": "60000", "sample": "6000", "sigma": "5", "rounds": "5540", "delta": "1e-5"},
    "shuffle": {"users": "60000", "sigma": "9.48", "rounds": "7", "delta": "1/60000"},
}
MOVED = ("sigma", "users", "rounds", "delta")

WATCH = """
window.times = {};
window.since = 0;
addEventListener("input", () => { window.since = performance.now(); window.times = {}; }, true);
const look = () => {
  for (const crowd of ["identical", "any"]) {
    const cell = document.querySelector(`tr[data-crowd=${crowd}]:not(.stale) .upper`);
    if (cell && /[0-9]/.test(cell.textContent) && !(crowd in window.times)) {
      window.times[crowd] = performance.now() - window.since;
    }
  }
};
new MutationObserver(look).observe(document, { subtree: true, childList: true, attributes: true, characterData: true });
"""

ALONE = """
import json, sys, time
import numpy as np
from shoal.web import tasks, warm
unit = []
for _ in range(5):
    start = time.process_time()
    np.fft.fft(np.ones(1 << 20))
    unit.append(time.process_time() - start)
found = {"unit": min(unit), "identical": [], "any": []}
state = json.loads(sys.argv[1])
for i in range(5):
    state["sigma"] = repr(float(state["sigma"]) * 1.01)
    for task, crowd in (("first", "identical"), ("any", "any")):
        start = time.process_time()
        for piece in tasks.answer(task, {"state": state}):
            if piece["piece"] == ("bound" if crowd == "any" else "epsilon") and piece["crowd"] == crowd:
                found[crowd].append(time.process_time() - start)
print(json.dumps(found))
"""


def bound() -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def alone(kind: str) -> dict[str, float]:
    """Processor seconds of an answer: the median of five, none of which was asked before."""
    words = [sys.executable, "-c", ALONE, json.dumps({"mechanism": kind, **PAPER[kind]})]
    run = subprocess.run(words, capture_output=True, text=True, check=True, env=environment(), preexec_fn=bound)
    found = json.loads(run.stdout)
    return {name: statistics.median(value) if isinstance(value, list) else value for name, value in found.items()}


def processor(root: int) -> float:
    """Seconds of the processor that a process and its descendants have used, those that have ended too."""
    table = {}
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        table[int(entry.name)] = (int(words[1]), sum(map(int, words[11:15])))
    family, total = {root}, table[root][1]
    while more := {pid for pid, (parent, _) in table.items() if parent in family} - family:
        family |= more
        total += sum(table[pid][1] for pid in more)
    return total / os.sysconf("SC_CLK_TCK")


def waited(page, names: tuple[str, ...]) -> dict[str, float]:
    """The times of a page, once it has all of them."""
    while True:
        times = page.evaluate("window.times")
        if set(names) <= set(times):
            return times
        page.wait_for_timeout(25)


def measure(browser, server: int, address: str, kind: str, moves: int) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {"opened": [], "opened_any": [], "identical": [], "any": [], "whole": []}
    link = "&".join(f"{name}={text}" for name, text in {"mechanism": kind, **PAPER[kind]}.items())
    for i in range(moves):
        context = browser.new_context()
        page = context.new_page()
        page.add_init_script(WATCH)
        page.goto(f"{address}#{link}")
        times = waited(page, ("identical", "any"))
        found["opened"].append(times["identical"])
        found["opened_any"].append(times["any"])
        page.wait_for_timeout(300)  # into the middle of the pictures, which the move then cancels
        slider = page.locator(f"#slider-{MOVED[i % len(MOVED)]}")
        slider.focus()
        used = processor(server)
        page.keyboard.press("ArrowRight")
        times = waited(page, ("identical", "any"))
        found["identical"].append(times["identical"])
        found["any"].append(times["any"])
        found["whole"].append(1e3 * (processor(server) - used))
        context.close()
    return found


def shown(values: list[float]) -> str:
    return f"{statistics.median(values):.0f} ({min(values):.0f} to {max(values):.0f})"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    options.add_argument("--moves", type=int, default=8, help="how often each page is opened and a slider moved")
    options.add_argument("--nice", type=int, default=0, help="priority of everything here; below 0 needs root")
    given = options.parse_args()
    os.nice(given.nice)
    group = pathlib.Path("/proc/self/autogroup")  # Linux shares out by sessions first, and each has a priority as well
    if given.nice and group.exists():
        group.write_text(str(given.nice))
    before = os.getloadavg()[0]
    command = [sys.executable, "-m", "shoal.cli", "explore", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(), preexec_fn=bound)  # noqa: PLW1509
    rows = []
    try:
        address = re.search(r"http://\S+", server.stdout.readline())[0]
        with sync_playwright() as driver:
            chromium = shutil.which("chromium") or shutil.which("google-chrome")
            browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            for kind in PAPER:
                page, own = measure(browser, server.pid, address, kind, given.moves), alone(kind)
                rows.append(
                    f"| {kind} | {shown(page['opened'])} | {shown(page['opened_any'])} | {shown(page['identical'])} "
                    f"| {shown(page['any'])} | {1e3 * own['identical']:.0f} | {1e3 * own['any']:.0f} "
                    f"| {shown(page['whole'])} "
                    f"| {own['identical'] / own['unit']:.1f}, {own['any'] / own['unit']:.1f} |"
                )
                print(rows[-1], flush=True)
            version = browser.version
            browser.close()
    finally:
        server.send_signal(signal.SIGINT)
        server.wait()
    lines = [
        f"Measured on {datetime.date.today()} by `benchmarks/explore_latency.py` with Python "
        f"{platform.python_version()} and Chromium {version}; the server and its processes on one core, "
        f"{os.cpu_count()} cores in all, load {before:.1f} before and {os.getloadavg()[0]:.1f} after, priority (nice) "
        f"{os.nice(0)}. A load above the number of cores means that everything waits for the processor, unless it has "
        "priority. Milliseconds, median (least to largest); “opened”: from the start of the navigation; “moved”: from "
        "the slider's stop, in turn for σ, users, rounds and δ, while the pictures were still being computed. "
        "Processor: milliseconds of the computation alone, on one core; “server, all of it”: of the server and all its "
        "processes from the slider's stop until any crowd's number stood there (what is known from below and the whole "
        "sentence follow it). The last column gives the computation in FFTs of 2^20 numbers.",
        "",
        "| mechanism | opened: identical | opened: any | moved: identical | moved: any | processor: identical "
        "| processor: any | server, all of it | in FFTs |",
        "|---|---|---|---|---|---|---|---|---|",
        *rows,
    ]
    if given.markdown:
        given.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
