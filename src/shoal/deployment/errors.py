"""The exceptions of a deployment.

    DeploymentError                  (shoal.errors)
      RefusedReportError             a sealed report that cannot be counted
      NodeError                      why a node does not report
      AnalystError                   the shuffler's: the analyst refused, or could not be reached for too long
        RefusedBatchError            the analyst does not close the round with this batch
      RunError                       a process of a trial did not come up, or a run did not end well
      ConflictError                  the analyst's: a batch for a round that is not open, or is closed with another one
      ExhaustedError                 no further round can be opened
      BusyError                      another batch is being received
      BatchError                     a batch that cannot close a round
      TooLargeError                  a batch with too many reports
      DamagedError                   a file is not as it was written; the message says what to do

Refusals of content, batches, rounds and files also derive from `ValueError`, as they always have.
"""

from __future__ import annotations

from shoal.errors import DeploymentError

RESTORE_ADVICE = "restore the folder from a backup, and enter what was spent since then: shoal analyst skip"
"""What to do about a damaged ledger. A backup alone would spend the same budget twice."""


class RefusedReportError(DeploymentError, ValueError):
    """A sealed report that cannot be counted; `reason` is one of `report.REFUSAL_REASONS`."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class NodeError(DeploymentError, ValueError):
    """Why a node does not report: a code of `node.REFUSALS` for the server, and a sentence for the node's own log."""

    def __init__(self, code: int, sentence: str) -> None:
        super().__init__(sentence)
        self.code = code


class AnalystError(DeploymentError):
    """The analyst refused, or could not be reached for too long."""


class RefusedBatchError(AnalystError):
    """The analyst does not close the round with this batch."""


class RunError(DeploymentError):
    """A process did not come up, or a run did not end well; the message names its log."""


class ConflictError(DeploymentError, ValueError):
    """A batch for a round that is not open, or another batch for a round that is closed."""


class ExhaustedError(DeploymentError, ValueError):
    """No further round can be opened: the budget, the keys or the roster does not allow it."""


class BusyError(DeploymentError):
    """Another batch is being received."""


class BatchError(DeploymentError, ValueError):
    """A batch that cannot close a round: its length is wrong, or its crowd is too small."""


class TooLargeError(DeploymentError, ValueError):
    """A batch with more reports than the analyst was set up for."""


class DamagedError(DeploymentError, ValueError):
    """A file of the analyst's is not as it was written; the message says what to do."""
