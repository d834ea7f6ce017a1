"""What each level of guarantee allows, in one table: everything else that is found is a bug.

A write of unknown outcome may be there or not, at every level, and that is no anomaly.
"""

from dataclasses import dataclass

PLAIN = "plain"
IDEMPOTENT = "idempotent"
SENT_ANEW = "idempotent, sent anew"
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
    "precommitted read": "a read of a transaction before its commit was asked for",
    "phantom": "a record, or a committed offset, that nobody ever wrote",
    "lost commit": "a group's offset was committed, and there is none",
    "rewound commit": "a group's offset is an older one again",
    "double processing": "one record of the input has two results in committed transactions",
    "lost input": "a group's offset is past a record that none of its members has processed",
    "hanging transaction": "the last stable offset never reached the high watermark",
}

#: By level. Transactions do not keep one another's writes apart in Kafka (G0), and a circle that
#: uses such an order is no G1c here. A producer that is not idempotent sends again what may have
#: been written, so its records may come twice, and behind later ones. So does librdkafka's
#: idempotent one, with what is under way, where a request that was to be sent again comes behind
#: its successor: that one is out of order then, and the library goes on in another epoch, in which
#: nobody can know what was written in the one before. Whoever reads uncommitted gets what they
#: asked for.
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
        """Does the level permit it?"""
        return self.name in ALLOWED[self.level]
