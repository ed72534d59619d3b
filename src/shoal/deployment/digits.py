"""A Flower app on the embedded digits: softmax regression, a node's images, one sealed report a round.

The protocol is the point, not the model. Noise grows with the number of parameters, so images are averaged
over 4 x 4 pixels and 500 numbers are trained, with numpy. An app of your own differs in `train_node` and in
`digits_arrays` only.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from shoal.bounds.numeric import FloatArray
from shoal.deployment.client import ARRAYS, sealed_reports
from shoal.deployment.shuffler import Shuffler
from shoal.training.data import Dataset, embedded

PIXEL_BLOCK = 4
"""Pixels are averaged in blocks of 4 x 4: the fewer numbers a report has, the less noise it has in total."""

EPOCHS, RATE = 10, 2.0
"""A node's own training: enough for its images."""

client_app = ClientApp(mods=[sealed_reports])
server_app = ServerApp()


@functools.cache
def data() -> Dataset:
    """The embedded digits."""
    return embedded()


def pixels(images: Any) -> FloatArray:
    """Images as rows of the means of 4 x 4 pixels, between 0 and 1."""
    count, rows, columns = images.shape
    blocks = np.asarray(images, dtype=np.float64).reshape(
        count, rows // PIXEL_BLOCK, PIXEL_BLOCK, columns // PIXEL_BLOCK, PIXEL_BLOCK
    )
    return blocks.mean(axis=(2, 4)).reshape(count, -1) / 255.0


def digits_arrays() -> dict[str, FloatArray]:
    """Weights and bias, all zero."""
    features, classes = pixels(data().test_images[:1]).size, data().classes
    return {"weights": np.zeros((features, classes)), "bias": np.zeros(classes)}


def dimension() -> int:
    """The number of numbers in the model."""
    return sum(a.size for a in digits_arrays().values())


def probabilities(weights: FloatArray, bias: FloatArray, x: FloatArray) -> FloatArray:
    """The model's probabilities of the classes.

    Args:
        weights: features times classes.
        bias: a number for each class.
        x: images as rows.

    Returns:
        A row for each image.
    """
    scores = x @ weights + bias
    # Less the largest score: shares do not change, and nothing overflows.
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def digits_accuracy(vector: FloatArray) -> float:
    """The accuracy of a model, as one vector, on the test images."""
    classes = data().classes
    weights, bias = vector[:-classes].reshape(-1, classes), vector[-classes:]
    guesses = probabilities(weights, bias, pixels(data().test_images)).argmax(axis=1)
    return float((guesses == data().test_labels).mean())


def share(node_config: Any) -> slice:
    """The images that belong to a node: every `num-partitions`-th, from `partition-id` on."""
    return slice(int(node_config["partition-id"]), None, int(node_config["num-partitions"]))


def descend(arrays: Sequence[FloatArray], x: FloatArray, labels: Any) -> list[FloatArray]:
    """Some steps of gradient descent on a node's images.

    Args:
        arrays: weights and bias.
        x: the images as rows.
        labels: their classes.

    Returns:
        Weights and bias after it.
    """
    weights, bias = (a.astype(np.float64) for a in arrays)
    targets = np.eye(len(bias))[labels]
    for _ in range(EPOCHS):
        error = (probabilities(weights, bias, x) - targets) / len(x)
        weights, bias = weights - RATE * (x.T @ error), bias - RATE * error.sum(axis=0)
    return [weights, bias]


@client_app.train()
def train_node(message: Message, context: Context) -> Message:
    """The arrays after training on the node's images.

    Args:
        message: the arrays to start from.
        context: names the node's share.

    Returns:
        The reply.
    """
    images = share(context.node_config)
    x, labels = pixels(data().train_images[images]), data().train_labels[images]
    sent = message.content.array_records[ARRAYS]
    trained = descend([a.numpy() for a in sent.values()], x, labels)
    arrays = {name: Array(a.astype(np.float32)) for name, a in zip(sent, trained, strict=True)}
    return Message(RecordDict({ARRAYS: ArrayRecord(arrays)}), reply_to=message)


@server_app.main()
def run_server(grid: Grid, context: Context) -> None:
    """Collect and deliver rounds.

    Args:
        grid: Flower's, by which nodes are reached.
        context: names the shuffler's settings.
    """
    shuffler = Shuffler.from_file(str(context.run_config["shuffler"]))
    initial = ArrayRecord({name: Array(a.astype(np.float32)) for name, a in digits_arrays().items()})
    shuffler.start(grid, initial, num_rounds=int(context.run_config["rounds"]))
