"""The life of a producer: of one that is idempotent, of a transaction."""

from collections.abc import Iterator, Mapping
from functools import partial

from tests.conformance.oracle.case import READ, STORY, T0
from tests.conformance.oracle.entities import Fields, Here, Told, in_partition, numbered
from tests.conformance.oracle.steps import PATIENCE, PRODUCER, StoryStep, step
from tidemark.records.builder import Record, build_batch


def _records(sequence: int, *, epoch: int = 0, transactional: bool = False) -> Told:
    def told(here: Here) -> bytes:
        heard = here.world.heard
        return build_batch(
            [Record(b"k", b"v", (), T0)] * 2,
            producer_id=heard.get("producer_id", 1),
            producer_epoch=max(heard.get("producer_epoch", 0) + epoch, 0),
            base_sequence=sequence,
            is_transactional=transactional,
        )

    return told


def _producing(what: str, records: Told, transactional_id: str | None = None) -> StoryStep:
    return step("Produce", 0, what, acks=-1, transactional_id=transactional_id,
                 topic_data=(in_partition(STORY, records=records),), **PATIENCE)  # fmt: skip


def _initialised(what: str, **fields: object) -> StoryStep:
    made = {"transactional_id": None, "transaction_timeout": 60_000, "producer_id": -1,
            "producer_epoch": -1, **fields}  # fmt: skip
    return step("InitProducerId", 22, what, hears="producer_id producer_epoch", **made)


def idempotent_story(_: str) -> Iterator[StoryStep]:
    # Two records in each batch: sequences 0, 2, 4 continue, and others are gaps or duplicates.
    yield _initialised("of a producer")
    yield _producing("that does not begin with 0", _records(5))
    yield _producing("the first", _records(0))
    yield _producing("the first again", _records(0))
    yield _producing("a gap", _records(9))
    yield _producing("the second", _records(2))
    yield _producing("half of the second", _records(3))
    yield _producing("the first once more", _records(0))
    # A new epoch has to start with sequence 0.
    yield _producing("of the next epoch, in the middle", _records(7, epoch=1))
    yield _producing("of the next epoch", _records(0, epoch=1))
    yield _producing("of the epoch before", _records(2))
    yield _producing("a transaction's without its id", _records(2, transactional=True))
    yield step("DescribeProducers", 61, "of one", topics=(numbered(STORY, 0),))


def transaction_story(name: str) -> Iterator[StoryStep]:
    # `old` is the producer's epoch before InitProducerId raised it.
    who = {"transactional_id": name, **PRODUCER}
    old = {**who, "producer_epoch": lambda here: max(PRODUCER["producer_epoch"](here) - 1, 0)}
    # The coordinator checks the timeout against transaction.max.timeout.ms.
    yield _initialised("with too long a timeout", transactional_id=name,
                       transaction_timeout=2**31 - 1)  # fmt: skip
    yield _initialised("with no timeout", transactional_id=name, transaction_timeout=0)
    yield _initialised("of a transaction", transactional_id=name)
    yield _initialised("of a transaction again", transactional_id=name)
    yield step("DescribeTransactions", 65, "that is empty", transactional_ids=(name,))
    yield step("EndTxn", 26, "that has not begun", **who, committed=True)
    # Partitions join the transaction, then records of the current and an old epoch.
    yield from _adding(who, old)
    yield _producing("in a transaction", _records(0, transactional=True), name)
    yield _producing("in a transaction, of an old epoch",
                     _records(0, epoch=-1, transactional=True), name)  # fmt: skip
    # A reader of committed records sees nothing of the open transaction.
    yield step("Fetch", 1, "of what is committed", replica_id=-1, max_wait=0, min_bytes=1,
                max_bytes=1 << 26, isolation_level=1, session_epoch=-1,
                topics=(in_partition(STORY, fetch_offset=0, current_leader_epoch=-1,
                              last_fetched_epoch=-1, partition_max_bytes=1 << 20),))  # fmt: skip
    yield step("DescribeTransactions", 65, "that is ongoing", transactional_ids=(name,))
    yield from _offsets_in(who, name + "-group")
    # KIP-890: ending a transaction raises the epoch, which later steps have to use.
    yield step("EndTxn", 26, "of an old epoch", **old, committed=True)
    yield step("EndTxn", 26, "that aborts", **who, committed=False,
                hears="producer_id producer_epoch")  # fmt: skip
    yield step("DescribeTransactions", 65, "that was aborted", transactional_ids=(name,))
    who_then = {"transactional_id": name, **PRODUCER}
    yield step("EndTxn", 26, "that commits what was aborted", **who_then, committed=True)
    yield _initialised("of a transaction at its end", transactional_id=name)
    yield step("ListTransactions", 66, "of one producer", state_filters=(),
                producer_id_filters=(PRODUCER["producer_id"],), duration_filter=-1)  # fmt: skip


def late_transaction_story(name: str) -> Iterator[StoryStep]:
    """Send the second batch of a producer before the first. In a transaction of version 2 (KIP-890)
    it is refused, in one of version 1 (KIP-360) it is appended."""
    who = {"transactional_id": name, **PRODUCER}
    # Only the version of the transaction decides whether the coordinator's partition checks the
    # sequence.
    yield _initialised("of a late transaction", transactional_id=name)
    yield _adds("of a late one", who, numbered(STORY, 0))
    yield _producing("in a transaction that does not begin with 0",
                     _records(2, transactional=True), name)  # fmt: skip
    yield _producing("in a transaction, the first after the second",
                     _records(0, transactional=True), name)  # fmt: skip
    yield _producing("in a transaction, the second again", _records(2, transactional=True), name)
    yield step("EndTxn", 26, "of a late one", **who, committed=False)


def _adds(
    what: str, whose: Fields, *topics: Mapping[str, object], verify: bool = False
) -> StoryStep:
    # Versions up to 3 have one transaction in the request itself, later ones a list (KIP-890).
    below = {f"v3_and_below_{name}": value for name, value in whose.items()}
    one = {**whose, "verify_only": verify, "topics": topics}
    return step("AddPartitionsToTxn", 24, what, **below, v3_and_below_topics=topics,
                 transactions=(one,))  # fmt: skip


def _adding(who: Fields, old: Fields) -> Iterator[StoryStep]:
    yield _adds("of an old epoch", old, numbered(STORY, 0))
    yield _adds("of another producer", {**who, "producer_id": 4711}, numbered(STORY, 0))
    yield _adds("with an unknown one", who, numbered(STORY, 0), numbered("nope", 0))
    yield _adds("only verified", who, numbered(STORY, 0), verify=True)
    yield _adds("of one", who, numbered(STORY, 0))
    yield _adds("verified then", who, numbered(STORY, 0), verify=True)


def _offsets_in(who: Fields, group: str) -> Iterator[StoryStep]:
    one = {"committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": "m"}
    commits = partial(step, "TxnOffsetCommit", 28, group_id=group, generation_id=-1, **who)
    yield step("AddOffsetsToTxn", 25, "of a group", **who, group_id=group)
    yield commits(
        "of a group", member_id="", topics=(in_partition(READ, **one), in_partition("nope", **one))
    )
    yield commits("of a member that is none", member_id="m", topics=(in_partition(READ, **one),))
    # KIP-447: require_stable answers UNSTABLE_OFFSET_COMMIT while the commit is pending.
    yield step("OffsetFetch", 9, "that waits for a transaction", group_id=group,
                require_stable=True, topics=(numbered(READ, 0),),
                groups=({"group_id": group, "member_epoch": -1,
                         "topics": (numbered(READ, 0),)},))  # fmt: skip
