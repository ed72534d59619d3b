"""Flower's own log: a node's stays on the node, the shuffler's with the shuffler."""

import logging

LOG = logging.getLogger("flwr")
