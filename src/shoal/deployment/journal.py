"""The shuffler's journal: batches on its disk, permuted, until the analyst has confirmed them."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from pathlib import Path

from shoal.deployment import files
from shoal.deployment.log import LOG
from shoal.errors import DataError


class Journal:
    """The batches of a shuffler: at most one spool, and one file for each undelivered round."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._lock = files.lock_folder(self.folder, party="shuffler")
        self._spool = self.folder / "arrivals.spool"
        # What a crash left behind: arrivals in the order in which they came must not stay.
        for path in (self._spool, *self.folder.glob("*.draft")):
            path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give up the folder."""
        self._lock.close()

    def batch(self, round_number: int) -> Path:
        """The file of a round's batch."""
        return self.folder / f"round-{round_number:010d}.batch"

    def pending(self) -> list[int]:
        """The rounds whose batch is written down and not confirmed; a damaged batch is set aside."""
        rounds = []
        for path in sorted(self.folder.glob("round-*.batch")):
            if files.is_whole(path):
                rounds.append(int(path.stem.removeprefix("round-")))
            else:
                LOG.error("%s is damaged: it is set aside, and the nodes are asked again if its round is open", path)
                path.replace(path.with_suffix(".damaged"))
        return rounds

    def collect(self, round_number: int, reports: Iterable[bytes], *, length: int, minimum: int) -> Path | None:
        """Spool reports as they arrive, and write them down in a random order.

        Args:
            round_number: the round.
            reports: the sealed reports.
            length: the number of bytes of each; others are dropped.
            minimum: the smallest batch that is passed on.

        Returns:
            The batch; None if there are fewer than `minimum` reports.
        """
        count = 0
        try:
            with files.private(self._spool) as spool:
                for report in reports:
                    if len(report) != length:
                        LOG.warning("a reply was dropped: a sealed report has %d bytes, not %d", length, len(report))
                        continue
                    spool.write(report)
                    count += 1
            if count < minimum:
                LOG.warning("round %d: %d reports, at least %d are needed", round_number, count, minimum)
                return None
            # The whole guarantee rests on this permutation: from the system's generator, uniform over all orders.
            order = list(range(count))
            random.SystemRandom().shuffle(order)
            with open(self._spool, "rb") as arrivals:

                def permuted() -> Iterator[bytes]:
                    for place in order:
                        arrivals.seek(place * length)
                        yield arrivals.read(length)

                files.replace_summed(self.batch(round_number), permuted())
        finally:
            # Also on the way out: the order of arrival is what the shuffler must not keep.
            self._spool.unlink(missing_ok=True)
            files.sync_folder(self.folder)
        return self.batch(round_number)

    @property
    def confirmed(self) -> int:
        """The last round that the analyst has closed with a batch of this journal; 0 if there is none.

        By it an analyst that was put back to an earlier state is known.
        """
        path = self.folder / "confirmed"
        try:
            return int(path.read_text()) if path.exists() else 0
        except ValueError:
            raise DataError(f"{path} must hold the last round that was confirmed: write its number into it") from None

    def done(self, round_number: int) -> None:
        """Forget a round that the analyst has confirmed."""
        # First the mark, then the batch: after a crash in between the batch is delivered again, which changes nothing.
        if round_number > self.confirmed:
            files.replace(self.folder / "confirmed", [f"{round_number}\n".encode()])
        self.drop(round_number)

    def drop(self, round_number: int) -> None:
        """Forget the batch of a round."""
        for path in (self.batch(round_number), self.batch(round_number).with_suffix(".damaged")):
            path.unlink(missing_ok=True)
        files.sync_folder(self.folder)
