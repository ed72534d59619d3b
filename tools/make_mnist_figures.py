"""Makes the pictures and the table of docs/explanation/mnist.md from the run that comes with the package.

    python tools/make_mnist_figures.py

Writes docs/images/mnist/*.png and privacy.jsonl beside the run, and prints the table.
"""

import pathlib

from shoal.formatting import rounded
from shoal.reproduction import PACKAGED_RUN
from shoal.training import figures

ROOT = pathlib.Path(__file__).parents[1]
RUN, PICTURES = PACKAGED_RUN, ROOT / "docs" / "images" / "mnist"
SHOWN = (20, 100, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 5_540)


def main() -> None:
    found = figures.report(RUN)
    figures.write_privacy(found, RUN)
    for path in figures.draw_all(found, PICTURES):
        print(path.relative_to(ROOT))
    print("| rounds | accuracy |", " | ".join(found.epsilons), "|")
    print("|---" * (2 + len(found.epsilons)) + "|")
    for i, row in enumerate(found.rows):
        if row.round in SHOWN:
            cells = " | ".join(rounded(values[i], digits=3) for values in found.epsilons.values())
            print(f"| {row.round:,} | {100 * row.accuracy:.1f}% | {cells} |")


if __name__ == "__main__":
    main()
