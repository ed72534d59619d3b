"""Makes src/shoal/training/digits.npz, the embedded digits: every 12th training and 10th test image of MNIST."""

import argparse
import hashlib
import pathlib

import numpy as np

from shoal.training import data

TARGET = pathlib.Path(data.__file__).with_name("digits.npz")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--data-dir", type=pathlib.Path, help="where the four files of MNIST are")
    mnist = data.load("mnist", data_dir=options.parse_args().data_dir)
    np.savez_compressed(
        TARGET,
        train_images=mnist.train_images[::12],
        train_labels=mnist.train_labels[::12],
        test_images=mnist.test_images[::10],
        test_labels=mnist.test_labels[::10],
    )
    print(TARGET, TARGET.stat().st_size, hashlib.sha256(TARGET.read_bytes()).hexdigest())


if __name__ == "__main__":
    main()
