"""What is sent to both: a table of requests for the Apis that a client depends on most, and for
every Api and version that both serve a request with nothing in it, one that is cut, and one with a
byte too many."""

import dataclasses
import typing
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kio.index import load_payload_module, load_request_schema
from kio.serial._implicit_defaults import get_implicit_default
from kio.static.constants import EntityType

from tests.conformance.oracle.sides import World
from tests.unit.api import api_requests as kafka
from tidemark.records.batch import CRC_COVERS_FROM, HEADER_BYTES, compute_crc
from tidemark.records.builder import Record, build_batch
from tidemark.wire.framing import encode_request

T0 = 1_700_000_000_000
READ, EMPTY, SINK, COMPACT = "oracle-read", "oracle-empty", "oracle-sink", "oracle-compact"
#: Partitions and configuration of each.
TOPICS: Mapping[str, tuple[int, Mapping[str, str]]] = {
    READ: (1, {"retention.ms": "-1"}),
    EMPTY: (2, {}),
    SINK: (1, {"retention.ms": "-1", "max.message.bytes": "5000"}),
    COMPACT: (1, {"cleanup.policy": "compact"}),
}
NOBODY = uuid.UUID(int=0xDEAD)
_CLIENT = "oracle"
_BY_ID = {kafka.PRODUCE: 13, kafka.FETCH: 13}
#: Not sent without sense: they end a connection that is not in SASL, or are between brokers.
_NOT_BLANK = frozenset({17, 27, 36})

Build = Callable[[World, int], Any]


@dataclass(frozen=True, slots=True)
class Case:
    """One request in one version; ``frame`` makes it for a side."""

    name: str
    api_key: int
    version: int
    frame: Callable[[World], bytes]


@dataclass(frozen=True, slots=True)
class Row:
    """A request in several versions: ``build`` gives kio's entity."""

    api: str
    api_key: int
    what: str
    build: Build
    since: int = 0

    def cases(self, versions: range) -> Iterator[Case]:
        """One for each version that both serve."""
        for version in versions:
            if version >= self.since:
                yield Case(
                    f"{self.api} v{version} {self.what}",
                    self.api_key,
                    version,
                    lambda world, v=version: encode_request(self.build(world, v), 7, _CLIENT),
                )


def preload(world: World, version: int) -> Any:
    """A Produce that fills :data:`READ`: three batches would be three requests."""
    return _produce(READ, _batch(b"a", b"b", b"c"))(world, version)


# ---------------------------------------------------------------- produce


def _batch(*values: bytes, **options: Any) -> bytes:
    records = [Record(b"k", value, (), T0 + number) for number, value in enumerate(values)]
    return build_batch(records, **options)


def _sealed(data: bytes | bytearray) -> bytes:
    whole = bytearray(data)
    whole[8:12] = (len(whole) - 12).to_bytes(4, "big")
    whole[17:21] = compute_crc(whole, CRC_COVERS_FROM, len(whole)).to_bytes(4, "big")
    return bytes(whole)


def _with(data: bytes, position: int, new: bytes) -> bytes:
    """Bytes of a batch replaced, and the CRC that goes with them."""
    return _sealed(data[:position] + new + data[position + len(new) :])


def _produce(topic: str, *records: bytes | None, **values: Any) -> Build:
    def build(world: World, version: int) -> Any:
        by_id = version >= _BY_ID[kafka.PRODUCE]
        topic_id = world.topic_ids.get(topic, NOBODY) if by_id else None
        return kafka.produce(version, topic, *records, topic_id=topic_id, **{"acks": 1} | values)

    return build


def _twice(world: World, version: int) -> Any:
    made = _produce(SINK, _batch(b"a"))(world, version)
    (topic,) = made.topic_data
    both = dataclasses.replace(topic, partition_data=topic.partition_data * 2)
    return dataclasses.replace(made, topic_data=(both,))


_GOOD = _batch(b"a", b"b")
_RECORD = _GOOD[HEADER_BYTES : HEADER_BYTES + (len(_GOOD) - HEADER_BYTES) // 2]
_PRODUCED: dict[str, bytes | None] = {
    "good": _GOOD,
    "null records": None,
    "empty": b"",
    "short": _GOOD[:11],
    "shorter than a magic": _GOOD[:16],
    "cut": _GOOD[:-1],
    "zeros": bytes(80),
    "noise": bytes(range(1, 100)),
    "two batches": _GOOD + _GOOD,
    "bytes behind it": _GOOD + b"xyz",
    "zeros behind it": _GOOD + bytes(20),
    "old format": _GOOD[:16] + b"\x01" + _GOOD[17:],
    "future format": _GOOD[:16] + b"\x03" + _GOOD[17:],
    "wrong CRC": _GOOD[:-1] + b"?",
    "too large": _batch(bytes(6000)),
    "unknown codec": _with(_GOOD, 21, b"\x00\x05"),
    "base offset 1": _batch(b"a", base_offset=1),
    "no records": _with(_GOOD, 57, bytes(4)),
    "too many records": _with(_with(_GOOD, 57, b"\x00\x00\x00\x03"), 23, b"\x00\x00\x00\x02"),
    "last offset delta off": _with(_GOOD, 23, b"\x00\x00\x00\x05"),
    "control": _batch(b"a", is_control=True),
    "transactional": _batch(b"a", is_transactional=True),
    "sequence below zero": _batch(b"a", producer_id=7),
    "largest timestamp -1": _with(_GOOD, 35, b"\xff" * 8),
    "largest timestamp lies": _with(_GOOD, 35, bytes(8)),
    "timestamp far ahead": _with(_batch(b"a"), 27, (2**60).to_bytes(8, "big") * 2),
    "timestamp below -1": build_batch([Record(b"k", b"v", (), -5)]),
    "log append time": _with(_GOOD, 21, b"\x00\x08"),
    "offset deltas twice": _sealed(_GOOD[:HEADER_BYTES] + _RECORD * 2),
    "value too long": _with(_GOOD, len(_GOOD) - 3, b"\x7e"),
    "varint without end": _with(_GOOD, HEADER_BYTES, b"\xff" * 6),
    "broken gzip": _with(_batch(b"a" * 100, codec=1), HEADER_BYTES, b"\xaa" * 8),
    "broken lz4": _with(_batch(b"a" * 100, codec=3), HEADER_BYTES, b"\xaa" * 8),
    "zstd": _batch(b"a" * 100, codec=4),
}


def _produce_rows() -> Iterator[Row]:
    for what, records in _PRODUCED.items():
        yield Row("Produce", 0, what, _produce(SINK, records), since=3)
    keyless = build_batch([Record(None, b"v", (), T0)])
    yield Row("Produce", 0, "keyless to a compacted topic", _produce(COMPACT, keyless), since=3)
    yield Row("Produce", 0, "unknown topic", _produce("nope", _GOOD), since=3)
    yield Row("Produce", 0, "unknown partition", _produce(SINK, _GOOD, _GOOD), since=3)
    yield Row("Produce", 0, "acks 2", _produce(SINK, _GOOD, acks=2), since=3)
    yield Row("Produce", 0, "acks all", _produce(SINK, _GOOD, acks=-1), since=3)
    yield Row("Produce", 0, "acks 0", _produce(SINK, _GOOD, acks=0), since=3)
    yield Row("Produce", 0, "acks 0, refused", _produce(SINK, b"", acks=0), since=3)
    yield Row("Produce", 0, "named twice", _twice, since=3)


# ---------------------------------------------------------------- fetch


def _fetch(topic: str, *offsets: int, **values: Any) -> Build:
    def build(world: World, version: int) -> Any:
        by_id = version >= _BY_ID[kafka.FETCH]
        topic_id = world.topic_ids.get(topic, NOBODY) if by_id else None
        return kafka.fetch(version, topic, *offsets, topic_id=topic_id, **values)

    return build


def _fetch_rows() -> Iterator[Row]:
    at_once: dict[str, Build] = {
        "from the start": _fetch(READ, 0),
        "in the middle": _fetch(READ, 1),
        "at the end": _fetch(READ, 3),
        "past the end": _fetch(READ, 4),
        "below zero": _fetch(READ, -1),
        "unknown topic": _fetch("nope", 0),
        "unknown partition": _fetch(READ, 0, 0),
        "empty partitions": _fetch(EMPTY, 0, 0),
        "max bytes 0": _fetch(READ, 0, max_bytes=0),
        "max bytes -1": _fetch(READ, 0, max_bytes=-1),
        "partition max bytes 0": _fetch(READ, 0, partition_max_bytes=0),
        "partition max bytes -1": _fetch(READ, 0, partition_max_bytes=-1),
        "read committed": _fetch(READ, 0, isolation_level=1),
    }
    for what, build in at_once.items():
        yield Row("Fetch", 1, what, build, since=4)
    sessions = {
        "id 0, epoch 0": (0, 0),
        "id 0, epoch -1": (0, -1),
        "id 0, epoch 5": (0, 5),
        "id 0, epoch -2": (0, -2),
        "unknown id, epoch 0": (4711, 0),
        "unknown id, epoch -1": (4711, -1),
        "unknown id, epoch 1": (4711, 1),
    }
    for what, (session_id, epoch) in sessions.items():
        build = _fetch(READ, 0, session_id=session_id, session_epoch=epoch)
        yield Row("Fetch", 1, f"session {what}", build, since=7)
    for epoch in (0, 1, 1000):
        part = {"current_leader_epoch": epoch}
        yield Row("Fetch", 1, f"leader epoch {epoch}", _fetch(READ, 0, part=part), since=9)
        part = {"last_fetched_epoch": epoch}
        for offset in (2, 9):
            what = f"last fetched epoch {epoch} at {offset}"
            yield Row("Fetch", 1, what, _fetch(READ, offset, part=part), since=12)
    yield Row("Fetch", 1, "as a follower", _fetch(READ, 0, replica_id=99), since=4)
    yield Row("Fetch", 1, "to debug", _fetch(READ, 0, replica_id=-2), since=4)


# ---------------------------------------------------------------- the rest


def _other_rows() -> Iterator[Row]:
    for timestamp in (-1, -2, -3, -4, -5, -6, -7, 0, T0, T0 + 1, T0 + 2, T0 + 3):
        for topic in (READ, EMPTY, "nope"):
            yield Row(
                "ListOffsets",
                2,
                f"{timestamp} of {topic}",
                lambda _, v, t=topic, at=timestamp: kafka.list_offsets(
                    v, t, at, current_leader_epoch=-1
                ),
                since=1,
            )
    for epoch in (0, 1000):
        yield Row(
            "ListOffsets",
            2,
            f"in leader epoch {epoch}",
            lambda _, v, e=epoch: kafka.list_offsets(v, READ, -1, current_leader_epoch=e),
            since=4,
        )
        for wanted in (-1, 0, 1000):
            yield Row(
                "OffsetForLeaderEpoch",
                23,
                f"{wanted} in {epoch}",
                lambda _, v, e=epoch, w=wanted: kafka.offset_for_leader_epoch(v, READ, e, w),
                since=2,
            )
    names = {"one": (READ,), "two": (READ, EMPTY), "unknown": ("nope",), "illegal": ("a b", "..")}
    for what, asked in names.items():
        yield Row(
            "Metadata",
            3,
            f"of {what}",
            lambda _, v, n=asked: kafka.metadata(v, tuple((each, None) for each in n)),
        )
    yield Row(
        "Metadata", 3, "by id",
        lambda world, v: kafka.metadata(v, ((None, world.topic_ids[READ]),)), since=12,
    )  # fmt: skip
    yield Row(
        "Metadata", 3, "by an unknown id", lambda _, v: kafka.metadata(v, ((None, NOBODY),)),
        since=12,
    )  # fmt: skip
    for topic, offset in ((READ, 0), (READ, 99), (READ, -2), ("nope", 0)):
        yield Row(
            "DeleteRecords",
            21,
            f"{offset} of {topic}",
            lambda _, v, t=topic, at=offset: kafka.delete_records(v, t, at),
        )
    pages = {
        "all": (2000, None),
        "one partition": (1, None),
        "none": (0, None),
        "from a cursor": (2000, (EMPTY, 1)),
        "from beyond all": (2000, ("zzz", 0)),
    }
    for what, (limit, cursor) in pages.items():
        yield Row(
            "DescribeTopicPartitions",
            75,
            what,
            lambda _, v, n=limit, c=cursor: _partitions(v, n, c),
        )
    yield Row(
        "DescribeLogDirs", 35, f"of {READ}",
        lambda _, v: kafka.request(
            35, v,
            topics=(kafka.nested(35, v, "DescribableLogDirTopic", topic=READ, partitions=(0, 5)),),
        ), since=1,
    )  # fmt: skip


# ---------------------------------------------------------------- what others serve


def _of(api: str, api_key: int, what: str, /, since: int = 0, **fields: Any) -> Row:
    """A request with these fields, and nothing in the others; :class:`Part` stands for a part."""

    def build(_: World, version: int) -> Any:
        return _filled(load_request_schema(api_key, version), api_key, version, fields)

    return Row(api, api_key, what, build, since)


@dataclass(frozen=True, slots=True)
class Part:
    """A nested part of a request, by kio's name of it."""

    name: str
    fields: Mapping[str, Any]


def _part(name: str, /, **fields: Any) -> Part:
    return Part(name, fields)


def _filled(kind: Any, api_key: int, version: int, fields: Mapping[str, Any]) -> Any:
    known = {each.name for each in dataclasses.fields(kind)}
    made = {
        name: _value(value, api_key, version) for name, value in fields.items() if name in known
    }
    return dataclasses.replace(blank(kind), **made)


def _value(value: Any, api_key: int, version: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_value(each, api_key, version) for each in value)
    if isinstance(value, Part):
        module = load_payload_module(api_key, version, EntityType.request)
        return _filled(getattr(module, value.name), api_key, version, value.fields)
    return value


def _group_rows() -> Iterator[Row]:
    """Of groups and transactions that there are not."""
    gone = {"group_id": "gone"}
    yield _of("Heartbeat", 12, "of nobody", **gone, generation_id=1, member_id="m")
    yield _of("LeaveGroup", 13, "of nobody", **gone, member_id="m")
    yield _of("SyncGroup", 14, "of nobody", **gone, generation_id=1, member_id="m")
    yield _of("DescribeGroups", 15, "of one that is gone", groups=("gone", ""))
    yield _of("DeleteGroups", 42, "of one that is gone", groups_names=("gone",))
    yield _of("OffsetFetch", 9, "of one that is gone", group_id="gone", topics=None, since=2)
    yield _of(
        "OffsetFetch", 9, "of several", groups=(_part("OffsetFetchRequestGroup", **gone),), since=8
    )
    commit = _part(
        "OffsetCommitRequestTopic",
        name=READ,
        partitions=(_part("OffsetCommitRequestPartition", committed_offset=1),),
    )
    yield _of("OffsetCommit", 8, "of nobody", **gone, topics=(commit,), since=2)
    yield _of("FindCoordinator", 10, "of a group", key="gone", coordinator_keys=("gone",))
    yield _of("FindCoordinator", 10, "of another kind", since=1, key="gone", key_type=9,
              coordinator_keys=("gone",))  # fmt: skip
    yield _of("InitProducerId", 22, "without an id", transactional_id=None)
    yield _of("InitProducerId", 22, "with an empty id", transactional_id="")
    yield _of("DescribeTransactions", 65, "of one that is gone", transactional_ids=("gone",))
    yield _of("ListTransactions", 66, "in no state", state_filters=("Nowhere",))
    for pattern in ("", "no(ne)?", "(", "(?=a)", r"(a)\1"):
        yield _of("ListTransactions", 66, f"like {pattern}", since=2,
                  transactional_id_pattern=pattern)  # fmt: skip
    yield _of("ConsumerGroupHeartbeat", 68, "of nobody", **gone, member_id="m", member_epoch=5)
    yield _of("ConsumerGroupDescribe", 69, "of one that is gone", group_ids=("gone",))


def _admin_rows() -> Iterator[Row]:
    """Nothing is changed by them."""
    for what, name, partitions, factor in (
        ("one that is there", READ, 1, 1),
        ("an illegal name", "a b", 1, 1),
        ("no partitions", "fresh", 0, 1),
        ("too many replicas", "fresh", 1, 99),
        ("a good one", "fresh", 1, 1),
    ):
        topic = _part(
            "CreatableTopic", name=name, num_partitions=partitions, replication_factor=factor
        )
        yield _of("CreateTopics", 19, f"validates {what}", topics=(topic,), validate_only=True)
    for name, count in ((READ, 1), (READ, 0), ("nope", 3)):
        topic = _part("CreatePartitionsTopic", name=name, count=count)
        yield _of("CreatePartitions", 37, f"{count} of {name}", topics=(topic,), validate_only=True)
    yield _of(
        "DeleteTopics", 20, "unknown", topic_names=("nope",),
        topics=(_part("DeleteTopicState", name="nope"),),
    )  # fmt: skip
    for what, kind, name in (
        ("an unknown topic", 2, "nope"),
        ("a kind that is none", 99, "x"),
        ("a broker that is none", 4, "77"),
    ):
        resource = _part("DescribeConfigsResource", resource_type=kind, resource_name=name)
        yield _of("DescribeConfigs", 32, f"of {what}", resources=(resource,), since=1)
    for what, name, value in (
        ("an unknown key", "no.such.key", "1"),
        ("a bad value", "retention.ms", "x"),
    ):
        entry = _part("AlterableConfig", name=name, config_operation=0, value=value)
        resource = _part(
            "AlterConfigsResource", resource_type=2, resource_name=READ, configs=(entry,)
        )
        yield _of(
            "IncrementalAlterConfigs", 44, f"validates {what}", resources=(resource,),
            validate_only=True,
        )  # fmt: skip
    elected = _part("TopicPartitions", topic=READ, partitions=(0, 9))
    yield _of("ElectLeaders", 43, "of a leader that is there", topic_partitions=(elected,))
    listed = _part("ListPartitionReassignmentsTopics", name="nope", partition_indexes=(0,))
    yield _of("ListPartitionReassignments", 46, "of an unknown topic", topics=(listed,))
    produced = _part("TopicRequest", name=READ, partition_indexes=(0, 9))
    yield _of("DescribeProducers", 61, f"of {READ}", topics=(produced,))
    placed = _part("AlterReplicaLogDirTopic", name=READ, partitions=(0, 9))
    place = _part("AlterReplicaLogDir", path="/nowhere", topics=(placed,))
    yield _of("AlterReplicaLogDirs", 34, "to a directory that is none", dirs=(place,))
    for what, kinds in (("topics", (2,)), ("no such kind", (64,))):
        yield _of("ListConfigResources", 74, f"of {what}", resource_types=kinds)
    yield _of("DescribeCluster", 60, "of controllers", endpoint_type=2, since=1)
    yield _of("ListGroups", 16, "in no state", states_filter=("Nowhere",), since=4)


def _partitions(version: int, limit: int, cursor: tuple[str, int] | None) -> Any:
    names = sorted((READ, EMPTY))
    return kafka.request(
        75,
        version,
        topics=tuple(
            kafka.nested(75, version, "TopicRequest", name=name)
            for name in names
            if cursor is None or name >= cursor[0] or cursor[0] not in names
        ),
        response_partition_limit=limit,
        cursor=None
        if cursor is None
        else kafka.nested(75, version, "Cursor", topic_name=cursor[0], partition_index=cursor[1]),
    )


# ---------------------------------------------------------------- requests with nothing in them


def blank(entity_type: Any) -> Any:
    """A request whose arrays are empty and whose fields are as Kafka's generated classes begin."""
    values = {}
    for each in dataclasses.fields(entity_type):
        if each.default is dataclasses.MISSING:
            values[each.name] = _blank_value(each.type)
    return entity_type(**values)


def _blank_value(kind: Any) -> Any:
    if dataclasses.is_dataclass(kind):
        return blank(kind)
    if typing.get_origin(kind) is tuple:
        return ()
    if type(None) in typing.get_args(kind):
        return None
    return False if kind is bool else get_implicit_default(kind)


def _blanks(api_key: int, versions: range) -> Iterator[Case]:
    name = load_request_schema(api_key, versions[0]).__name__.removesuffix("Request")
    for version in versions:
        frame = encode_request(blank(load_request_schema(api_key, version)), 7, _CLIENT)
        kinds = {
            "blank": frame,
            "blank, cut": _sized(frame[:-1]),
            "blank and a byte": _sized(frame + b"x"),
        }
        for what, made in kinds.items():
            yield Case(f"{name} v{version} {what}", api_key, version, lambda _, f=made: f)


def _sized(frame: bytes) -> bytes:
    return (len(frame) - 4).to_bytes(4, "big") + frame[4:]


def cases(served: Mapping[int, range]) -> list[Case]:
    """All of them; ``served``: the versions of each Api that both sides serve."""
    made: list[Case] = []
    rows = (
        *_produce_rows(), *_fetch_rows(), *_other_rows(), *_group_rows(), *_admin_rows()
    )  # fmt: skip
    for row in rows:
        made += row.cases(served.get(row.api_key, range(0)))
    for api_key, versions in sorted(served.items()):
        if api_key not in _NOT_BLANK and versions:
            made += _blanks(api_key, versions)
    return made
