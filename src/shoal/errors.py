"""The exceptions of this package.

    ShoalError
      InvalidInput       an argument has a value that is not allowed (also a ValueError)
      InvalidType        an argument has a type that is not allowed (also a TypeError)
      Unreachable        no value within the limits meets a target (also a ValueError)
      DataError          a file or a data set cannot be used (also a ValueError)
      MissingExtra       an optional package is not installed (also an ImportError)
      DeploymentError    a node, the shuffler or the analyst refuses, or cannot go on
        ...              one class for each case, in `shoal.deployment`

`except ShoalError` catches all of them and nothing else. The command prints their message as one sentence; any other
exception is a bug, and keeps its traceback. The classes below also derive from Python's own, so that code which
catches `ValueError` goes on working.

A wide interval is no error: `shoal.AccuracyWarning` warns of it.
"""

from __future__ import annotations


class ShoalError(Exception):
    """An error whose message tells users what is wrong."""


class InvalidInput(ShoalError, ValueError):
    """An argument has a value that is not allowed."""


class InvalidType(ShoalError, TypeError):
    """An argument has a type that is not allowed."""


class Unreachable(ShoalError, ValueError):
    """No value within the limits meets the target."""


class DataError(ShoalError, ValueError):
    """A file or a data set is missing, damaged, or not what it should be."""


class MissingExtra(ShoalError, ModuleNotFoundError):
    """A package is missing that one of this package's extras installs."""


class DeploymentError(ShoalError):
    """A party of a deployment refuses, or cannot go on."""
