"""The analyst: opens, adds up, applies, accounts. Its whole state is one folder, which one process may change.

`analyst.db` (SQLite, write-ahead log) holds the settings, the last models and one line for each closed round;
`head` where its last line was; `keys/` a private key for each epoch of rounds; `sign.key` the key by which rounds
are opened; `password` the secret by which the shuffler is known; `rosters/` the marks of those who are enrolled.

**What is counted.** A round's number of users is the number of *distinct valid tokens* (`tokens`) in reports
that opened, and so were of this round and these terms; dummies count, since their senders tossed the coin as
well. Numbers that are not plausible are left out of the sum, which is done to the shuffled reports and so costs
nothing; their sender counts, so that neither the number of users nor a refusal depends on what is in a report.
A token that was seen before is looked at no further, and dummies take the steps of reports: the time that a batch
takes, which the shuffler can measure, does not tell who checked in, however often one report is in it. Whatever
else is in a batch does not count, and a batch with fewer users than the smallest crowd is refused: it publishes
nothing and changes nothing. By the monotonicity theorem (fewer users are never more private) the entry with the
smaller number is the honest one; the ledger also rounds the number down by up to 3% (`counted_users`): rounds with
nearly the same number of users are then one mechanism, and epsilon takes seconds whatever the number of rounds.
Dropping out must not depend on a node's data.

**What is added.** model + step * sum(reports) / (rate * users): the expected number of reports, so that
neither the model nor its scale tells how many checked in.

**What is stored.** Counts, the last few models, and a hash of each batch by which a repetition is known.
No report, no token, no time, no address. A round, its new model and its ledger entry are committed in one
transaction, in which the ledger is read again and checked: its lines form a chain of keyed hashes, so that a
changed digit is an error at the next start, and `head` names the chain's last link, so that lines which are missing
at the end are an error too. A folder that is put back as a whole looks like what it was: see `Analyst.skip`. After
a crash either all of a round has happened or none.

**What is forgotten.** The private key of an epoch is removed when the epoch's last round has closed: sealed
reports that somebody kept cannot be opened afterwards, not even by the analyst.

The files: `settings`; `database` (SQLite); `ledger` (closed rounds, chained); `models`; `rosters`; `keystore`;
`delivery` (a batch while it comes in); `analyst`, which puts them together; `service` (HTTPS); `backup`.
"""

from shoal.deployment.analyst.analyst import Analyst
from shoal.deployment.analyst.settings import Settings

__all__ = ["Analyst", "Settings"]
