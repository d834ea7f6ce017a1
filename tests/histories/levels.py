"""Anomalies that each level of guarantee allows, in one table; any other finding is a bug.

A write of unknown outcome may exist or not, at every level, and that is no anomaly.
"""

from dataclasses import dataclass

PLAIN = "plain"
IDEMPOTENT = "idempotent"
SENT_ANEW = "idempotent, sent again"
TRANSACTIONAL = "transactional"
READ_COMMITTED = "read_committed"
READ_UNCOMMITTED = "read_uncommitted"
GROUP = "group"

#: Each anomaly with what it means; the first ten as Jepsen's analyses of Kafka and of those who
#: speak its protocol name them.
MEANING = {
    "G0": "transactions that wrote over one another in a circle",
    "G1a": "a read of what was aborted, or has failed for certain",
    "G1b": "a transaction that is there in part",
    "G1c": "transactions that each read what the next one wrote, in a circle",
    "lost write": "acknowledged, or read once, and not there for readers that went past it",
    "duplicate": "one record at two offsets",
    "unseen": "acknowledged, and beyond the end of all that could be read at last",
    "inconsistent offsets": "two records at one offset",
    "poll skip": "a reader went past a record that it should have been given",
    "nonmonotonic poll": "a reader was given a record before which it had been already",
    "nonmonotonic send": "records of one producer in another order than it sent them",
    "precommitted read": "a read of a transaction before its commit was requested",
    "phantom": "a record, or a committed offset, that no client ever wrote",
    "lost commit": "a group's offset was committed, and there is none",
    "rewound commit": "a group's offset is an older one again",
    "double processing": "one record of the input has two results in committed transactions",
    "lost input": "a group's offset is past a record that none of its members has processed",
    "hanging transaction": "the last stable offset never reached the high watermark",
}

#: By level. Transactions in Kafka do not isolate their writes from each other (G0), and a circle
#: that uses such an order is no G1c here. A producer that is not idempotent retries writes of
#: unknown outcome, so its records may occur twice, and behind later ones. librdkafka's idempotent
#: producer does so too, with requests in flight, if a retried request is processed after its
#: successor: it is then out of order, and the library continues in another epoch, which leaves the
#: outcome of the previous epoch unknown. Readers of uncommitted records may see any of them.
ALLOWED: dict[str, frozenset[str]] = {
    PLAIN: frozenset({"duplicate", "nonmonotonic send"}),
    IDEMPOTENT: frozenset(),
    SENT_ANEW: frozenset({"duplicate"}),
    TRANSACTIONAL: frozenset({"G0"}),
    READ_COMMITTED: frozenset(),
    READ_UNCOMMITTED: frozenset({"G1a", "precommitted read"}),
    GROUP: frozenset(),
}


@dataclass(frozen=True, slots=True)
class Anomaly:
    """Something that was found; ``operations``: the ids of the few that prove it."""

    name: str
    level: str
    text: str
    operations: tuple[int, ...]

    @property
    def is_allowed(self) -> bool:
        """Return whether the level permits the anomaly."""
        return self.name in ALLOWED[self.level]
