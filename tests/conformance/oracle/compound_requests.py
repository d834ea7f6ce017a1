"""Requests that :mod:`valid_requests` and its variations do not come to: several things in one, and
what depends on the kind of a thing."""

from collections.abc import Iterator

from tests.conformance.oracle.case import COMPACT, EMPTY, READ, Row, row
from tests.conformance.oracle.entities import id_of

_WAIT = {"timeout": 5000}


def group_rows() -> Iterator[Row]:
    """Requests for groups and transactions that do not exist."""
    # A name twice and an empty name: does the answer have an entry for each?
    yield row("DescribeGroups", 15, "of several", {"groups": ("gone", "", "gone")})
    yield row("DeleteGroups", 42, "of several", {"groups_names": ("gone", "", "gone")})
    yield row("OffsetFetch", 9, "of all of a deleted one", {
        "group_id": "gone", "topics": None,
        "groups": ({"group_id": "gone", "topics": None, "member_epoch": -1},) * 2,
    }, since=2)  # fmt: skip
    # Types 1 and 2 are transactions and share groups. Share groups are not supported.
    yield row("FindCoordinator", 10, "of a transaction", {
        "key": "gone", "key_type": 1, "coordinator_keys": ("gone", "", "gone"),
    }, since=1)  # fmt: skip
    yield row("FindCoordinator", 10, "of a share group", {
        "key": "gone", "key_type": 2, "coordinator_keys": ("gone",),
    }, since=1)  # fmt: skip
    yield row("InitProducerId", 22, "with an empty id", {"transactional_id": ""})
    for states in (("Nowhere",), ("Empty", "Nowhere")):
        yield row("ListTransactions", 66, f"in {len(states)} states", {"state_filters": states})
    # Kafka compiles the pattern with RE2/J, which has no lookahead and no back reference.
    for pattern in ("", "no(ne)?", "(", "(?=a)", r"(a)\1"):
        fields = {"transactional_id_pattern": pattern, "duration_filter": -1}
        yield row("ListTransactions", 66, f"like {pattern}", fields, since=2)
    yield row("ListGroups", 16, "in no state", {"states_filter": ("Nowhere",)}, since=4)
    yield row("ListGroups", 16, "of no type", {"types_filter": ("Nothing",)}, since=5)


def admin_rows() -> Iterator[Row]:
    """Nothing is changed by them."""
    yield from _topic_rows()
    yield from _config_rows()
    yield from _feature_rows()
    # READ has a leader, so there is nothing to elect. Partition 9 does not exist.
    elected = {"topic": READ, "partitions": (0, 9)}
    yield row("ElectLeaders", 43, "of a leader that is there", {
        "topic_partitions": (elected, {"topic": "nope", "partitions": (0,)}), **_WAIT,
    })  # fmt: skip
    yield row("ListPartitionReassignments", 46, "of all", {"topics": None, **_WAIT})
    # Cancel, unknown broker, broker twice, negative id, and no list at all.
    for replicas in ((), (77,), (1, 1), (-1,), None):
        part = {"partition_index": 0, "replicas": replicas}
        yield row("AlterPartitionReassignments", 45, f"to {replicas}", {
            "topics": ({"name": READ, "partitions": (part,)},), **_WAIT,
        })  # fmt: skip
    yield row("DescribeProducers", 61, f"of {READ}", {
        "topics": ({"name": READ, "partition_indexes": (0, 9)},
                   {"name": "nope", "partition_indexes": (0,)}),
    })  # fmt: skip
    yield row("AlterReplicaLogDirs", 34, "to a directory that is none", {
        "dirs": ({"path": "/nowhere", "topics": ({"name": READ, "partitions": (0, 9)},)},),
    })  # fmt: skip
    yield row("ListConfigResources", 74, "of no such kind", {"resource_types": (64,)})
    yield row("DescribeUserScramCredentials", 50, "of all", {"users": None})
    # Match types: 0 exact, 1 default, 2 any specified (KIP-546).
    for kind, match, name in (
        ("client-id", 0, "x"), ("ip", 0, "x"), ("ip", 1, None), ("planet", 0, "x"),
        ("user", 2, None), ("user", 0, None),
    ):  # fmt: skip
        component = {"entity_type": kind, "match_type": match, "match": name}
        yield row("DescribeClientQuotas", 48, f"of {kind} {match} {name}", {
            "components": (component,), "strict": True,
        })  # fmt: skip
    yield row("DescribeClientQuotas", 48, "of one twice", {
        "components": ({"entity_type": "user", "match_type": 1, "match": None},) * 2,
    })  # fmt: skip


def _feature_rows() -> Iterator[Row]:
    for what, feature, level, upgrade_type in (
        ("the level that holds", "transaction.version", 2, 1),
        ("a level below 0", "transaction.version", -1, 1),
        ("a level above all", "transaction.version", 99, 1),
        ("an unknown feature", "nope", 1, 1),
        ("a lower level as an upgrade", "transaction.version", 1, 1),
        ("of no type", "transaction.version", 2, 9),
    ):
        update = {"feature": feature, "max_version_level": level, "upgrade_type": upgrade_type}
        yield row("UpdateFeatures", 57, what, {
            "feature_updates": (update,), "validate_only": True, **_WAIT,
        }, since=1)  # fmt: skip


def _topic_rows() -> Iterator[Row]:
    # Only validated, so no topic is created and later cases find the same topics.
    for what, name, partitions, factor in (
        ("one that is there", READ, 1, 1),
        ("one that differs by a dot", READ.replace("-", "."), 1, 1),
        ("no partitions", "fresh", 0, 1),
        ("too many partitions", "fresh", 2**31 - 1, 1),
        ("the defaults", "fresh", -1, -1),
        ("no replicas", "fresh", 1, 0),
        ("too many replicas", "fresh", 1, 99),
        ("the internal topic", "__consumer_offsets", 1, 1),
    ):
        topic = {"name": name, "num_partitions": partitions, "replication_factor": factor}
        yield row("CreateTopics", 19, f"validates {what}", {
            "topics": (topic,), "validate_only": True, **_WAIT,
        })  # fmt: skip
    # Manual assignments: each is invalid for another reason.
    for what, broker_ids, index in (
        ("no broker", (), 0), ("a broker that is none", (77,), 0), ("a gap", (1,), 1),
        ("one broker twice", (1, 1), 0),
    ):  # fmt: skip
        given = {"partition_index": index, "broker_ids": broker_ids}
        topic = {"name": "fresh", "num_partitions": -1, "replication_factor": -1}
        yield row("CreateTopics", 19, f"assigns {what}", {
            "topics": ({**topic, "assignments": (given,)},), "validate_only": True, **_WAIT,
        })  # fmt: skip
    # Configurations that creation has to refuse before a topic exists.
    for what, entries in {
        "an unknown key": (("no.such.key", "1"),),
        "a bad value": (("retention.ms", "x"),),
        "a value below all": (("retention.ms", "-2"),),
        "null": (("retention.ms", None),),
        "one key twice": (("retention.ms", "1"), ("retention.ms", "2")),
        "a bad list": (("cleanup.policy", "delete,nothing"),),
        "an empty list": (("cleanup.policy", ""),),
    }.items():
        configs = tuple({"name": name, "value": value} for name, value in entries)
        topic = {"name": "fresh", "num_partitions": 1, "replication_factor": 1}
        yield row("CreateTopics", 19, f"configured by {what}", {
            "topics": ({**topic, "configs": configs},), "validate_only": True, **_WAIT,
        })  # fmt: skip
    # No more than that: Apache Kafka does not come back from 2^31 - 1 of them.
    for name, count in (
        (READ, 1),
        (READ, 0),
        (READ, -1),
        (READ, 20_000),
        ("nope", 3),
        ("__consumer_offsets", 51),
    ):
        yield row("CreatePartitions", 37, f"{count} of {name}", {
            "topics": ({"name": name, "count": count, "assignments": None},),
            "validate_only": True, **_WAIT,
        })  # fmt: skip
    yield row("DeleteTopics", 20, "by a name and an id", {
        "topics": ({"name": "nope", "topic_id": id_of("nope")},), **_WAIT,
    }, since=6)  # fmt: skip
    yield row("DeleteTopics", 20, "one twice", {
        "topic_names": ("nope", "nope"), "topics": ({"name": "nope", "topic_id": None},) * 2,
        **_WAIT,
    })  # fmt: skip


def _config_rows() -> Iterator[Row]:
    # Resource types: 2 topic, 4 broker, 8 broker logger, 32 group.
    for what, kind, name in (
        ("an unknown topic", 2, "nope"),
        ("an illegal topic", 2, "a b"),
        ("no topic", 2, ""),
        ("a kind that is none", 99, "x"),
        ("a broker that is none", 4, "77"),
        ("a broker that is no number", 4, "x"),
        ("a logger", 8, "x"),
        ("loggers of no broker", 8, ""),
        ("loggers of a broker that is none", 8, "77"),
        ("all brokers", 4, ""),
        ("an unknown group", 32, "gone"),
    ):
        resource = {"resource_type": kind, "resource_name": name}
        yield row("DescribeConfigs", 32, f"of {what}", {
            "resources": ({**resource, "configuration_keys": ("retention.ms",)},),
        })  # fmt: skip
        entry = {"name": "retention.ms", "config_operation": 0, "value": "1"}
        for api, key in (("AlterConfigs", 33), ("IncrementalAlterConfigs", 44)):
            yield row(api, key, f"validates that of {what}", {
                "resources": ({**resource, "configs": (entry,)},), "validate_only": True,
            })  # fmt: skip
    # Operations: 0 set, 2 append, 3 subtract (KIP-339).
    for what, topic, name, operation, value in (
        ("an unknown key", READ, "no.such.key", 0, "1"),
        ("a bad value", READ, "retention.ms", 0, "x"),
        ("a value below all", READ, "retention.ms", 0, "-2"),
        ("compaction", EMPTY, "cleanup.policy", 2, "compact"),
        ("no policy", COMPACT, "cleanup.policy", 3, "compact"),
        ("a policy that is none", READ, "cleanup.policy", 2, "nothing"),
    ):
        entry = {"name": name, "config_operation": operation, "value": value}
        resource = {"resource_type": 2, "resource_name": topic, "configs": (entry,)}
        for api, key in (("AlterConfigs", 33), ("IncrementalAlterConfigs", 44)):
            yield row(api, key, f"validates {what}", {
                "resources": (resource,), "validate_only": True,
            })  # fmt: skip
    # Dynamic broker configuration: for all brokers, and for one that does not exist.
    for what, kind, broker, name, value in (
        ("a static key of all brokers", 4, "", "node.id", "1"),
        ("a bad value of all brokers", 4, "", "log.retention.ms", "x"),
        ("a good value of all brokers", 4, "", "log.retention.ms", "60000"),
        ("a key of a broker that is none", 4, "77", "log.retention.ms", "60000"),
        ("a logger of a broker that is none", 8, "77", "root", "INFO"),
    ):
        entry = {"name": name, "config_operation": 0, "value": value}
        resource = {"resource_type": kind, "resource_name": broker, "configs": (entry,)}
        yield row("IncrementalAlterConfigs", 44, f"validates {what}", {
            "resources": (resource,), "validate_only": True,
        })  # fmt: skip
    # The same key twice in one resource is ambiguous, and must not depend on the order.
    twice = {"resource_type": 2, "resource_name": READ, "configs": (
        {"name": "retention.ms", "value": "1", "config_operation": 0},) * 2}  # fmt: skip
    for api, key in (("AlterConfigs", 33), ("IncrementalAlterConfigs", 44)):
        yield row(api, key, "validates one key twice", {
            "resources": (twice,), "validate_only": True,
        })  # fmt: skip
