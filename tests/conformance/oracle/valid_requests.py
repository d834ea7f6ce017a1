"""A valid request of every Api, from which :mod:`variations` makes the invalid ones.

No request changes what another case depends on. Requests that could are only validated, or are
about objects of their own.
"""

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tests.conformance.oracle import entities
from tests.conformance.oracle.case import (
    EMPTY,
    MARKED,
    READ,
    SHORT,
    SINK,
    TOPICS,
    OracleCase,
    case,
    frame_of,
    sized,
)
from tests.conformance.oracle.entities import Fields, Here, in_partition, node, numbered, own
from tests.conformance.oracle.produce_cases import GOOD_BATCH
from tests.conformance.oracle.sides import SideWorld
from tests.conformance.oracle.variations import Variation, variations

_GROUP, _GONE = "oracle-offsets", "oracle-gone"
_PRODUCER = {"transactional_id": "oracle-gone", "producer_id": 4711, "producer_epoch": 0}
_OTHER_NAMES = {
    "v3_and_below_transactional_id": _PRODUCER["transactional_id"],
    "v3_and_below_producer_id": _PRODUCER["producer_id"],
    "v3_and_below_producer_epoch": _PRODUCER["producer_epoch"],
}


@dataclass(frozen=True, slots=True)
class Good:
    """``fixed``: fields that are always as they are."""

    api: str
    api_key: int
    fields: Fields
    fixed: frozenset[str] = field(default_factory=frozenset)

    def __str__(self) -> str:
        return self.api

    def cases(self, versions: range, what: str) -> Iterator[OracleCase]:
        """The good one, cut, with a byte behind it, and with each field as it should not be."""
        for version in versions:
            name = f"{self.api} v{version} {what}"

            def build(world: SideWorld, version: int, name: str = name) -> object:
                return entities.request(self.api_key, version, self.fields, Here(world, name))

            # The good request, then damaged bytes, then damaged fields.
            yield case(name, self.api_key, version, build)
            yield self._bytes(name + ", cut", version, cut=1)
            yield self._bytes(name + " and a byte", version, more=b"x")
            # The sample has the same fields on both sides. Only values that differ between sides
            # are filled in when the request is built.
            sample = build(_SAMPLE, version)
            for variation in variations(sample, self.fixed):
                yield self._varied(
                    f"{self.api} v{version} {what}: {variation.name}", version, variation
                )

    def _varied(self, name: str, version: int, variation: Variation) -> OracleCase:
        def build(world: SideWorld, version: int) -> object:
            here = Here(world, name)
            return variation.of(entities.request(self.api_key, version, self.fields, here))

        return case(name, self.api_key, version, build)

    def _bytes(self, name: str, version: int, *, cut: int = 0, more: bytes = b"") -> OracleCase:
        def frame(world: SideWorld) -> bytes:
            made = entities.request(self.api_key, version, self.fields, Here(world, name))
            whole = frame_of(made)
            return sized(whole[: len(whole) - cut] + more)

        return OracleCase(name, self.api_key, version, frame)


def _good(api: str, api_key: int, /, fixed: str = "", **fields: object) -> Good:
    return Good(api, api_key, fields, frozenset(fixed.split()))


_ACL = {
    "resource_type": 2, "resource_name": READ, "resource_pattern_type": 3, "principal": "User:x",
    "host": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
_ACL_FILTER = {
    "resource_type_filter": 2, "resource_name_filter": READ, "pattern_type_filter": 3,
    "principal_filter": "User:x", "host_filter": "*", "operation": 3, "permission_type": 3,
}  # fmt: skip
_WAIT = {"timeout": 5000}
_CONFIG = {"name": "retention.ms", "value": "1000", "config_operation": 0}
_ALTERED = {"resource_type": 2, "resource_name": READ, "configs": (_CONFIG,)}
_FRESH = {
    "name": "oracle-fresh", "num_partitions": 1, "replication_factor": 1, "assignments": (),
    "configs": (_CONFIG,),
}  # fmt: skip
_ASSIGNED = {
    "name": "oracle-fresh", "num_partitions": -1, "replication_factor": -1, "configs": (),
    "assignments": ({"partition_index": 0, "broker_ids": (node,)},),
}  # fmt: skip
_MEMBER = {"group_id": _GONE, "member_id": "m", "generation_id": 1}

#: Fields that are sent only if they exist.
_SAMPLE = SideWorld(topic_ids={topic: uuid.UUID(int=1) for topic in TOPICS})
#: Kind of case -> its requests. Groups remain, so requests that list them come first.
GOOD: Mapping[str, tuple[Good, ...]] = {
    "plain": (
        _good("Produce", 0, acks=1, **_WAIT,
              topic_data=(in_partition(SINK, records=GOOD_BATCH),)),
        _good("Fetch", 1, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=1 << 26,
              session_epoch=-1,
              topics=(in_partition(
                  READ, fetch_offset=0, current_leader_epoch=-1, last_fetched_epoch=-1,
                  log_start_offset=-1, partition_max_bytes=1 << 20),)),
        _good("ListOffsets", 2, replica_id=-1, **_WAIT,
              topics=(in_partition(READ, timestamp=-1, current_leader_epoch=-1),)),
        _good("Metadata", 3, topics=({"name": READ, "topic_id": None},)),
        _good("DeleteRecords", 21, **_WAIT, topics=(in_partition(SHORT, offset=1),)),
        _good("OffsetForLeaderEpoch", 23, replica_id=-1,
              topics=(in_partition(READ, current_leader_epoch=-1, leader_epoch=0),)),
        _good("ApiVersions", 18, client_software_name="oracle", client_software_version="1"),
        _good("SaslHandshake", 17, mechanism="PLAIN"),
        _good("SaslAuthenticate", 36, auth_bytes=b"\0a\0b"),
        _good("DescribeGroups", 15, groups=(_GONE,), include_authorized_operations=True),
        _good("ListGroups", 16, states_filter=("Dead",), types_filter=("classic",)),
        _good("DeleteGroups", 42, groups_names=(_GONE,)),
        _good("OffsetCommit", 8, group_id=_GROUP, generation_id_or_member_epoch=-1, member_id="",
              retention_time=-1,
              topics=(in_partition(READ, committed_offset=1, committed_leader_epoch=-1,
                                    committed_metadata="m"),)),
        _good("OffsetFetch", 9, group_id=_GROUP, topics=(numbered(READ, 0),),
              groups=({"group_id": _GROUP, "member_epoch": -1, "topics": (numbered(READ, 0),)},)),
        _good("OffsetDelete", 47, group_id=_GROUP, topics=(in_partition(READ),)),
        _good("FindCoordinator", 10, key=_GROUP, coordinator_keys=(_GROUP,)),
        _good("Heartbeat", 12, **_MEMBER),
        _good("LeaveGroup", 13, group_id=_GONE, member_id="m",
              members=({"member_id": "m", "group_instance_id": None, "reason": "r"},)),
        _good("SyncGroup", 14, **_MEMBER, protocol_type="consumer", protocol_name="range",
              assignments=({"member_id": "m", "assignment": b"a"},)),
        _good("InitProducerId", 22, transactional_id=None, transaction_timeout=60_000,
              producer_id=-1, producer_epoch=-1),
        _good("AddPartitionsToTxn", 24, **_OTHER_NAMES,
              v3_and_below_topics=(numbered(READ, 0),),
              transactions=({**_PRODUCER, "verify_only": False, "topics": (numbered(READ, 0),)},)),
        _good("AddOffsetsToTxn", 25, **_PRODUCER, group_id=_GROUP),
        _good("EndTxn", 26, **_PRODUCER, committed=True),
        _good("TxnOffsetCommit", 28, **_PRODUCER, group_id=_GROUP, generation_id=-1, member_id="",
              topics=(in_partition(READ, committed_offset=1, committed_leader_epoch=-1,
                                    committed_metadata="m"),)),
        _good("WriteTxnMarkers", 27,
              markers=({"producer_id": 4711, "producer_epoch": 0, "transaction_result": False,
                        "coordinator_epoch": 0, "topics": (numbered(MARKED, 0),)},)),
        _good("DescribeTransactions", 65, transactional_ids=("oracle-gone",)),
        _good("ListTransactions", 66, state_filters=("Empty",), producer_id_filters=(4711,)),
        _good("DescribeProducers", 61, topics=(numbered(READ, 0),)),
        _good("DescribeAcls", 29, **_ACL_FILTER),
        _good("CreateAcls", 30, creations=(_ACL,)),
        _good("DeleteAcls", 31, filters=(_ACL_FILTER,)),
        _good("CreateTopics", 19, "validate_only", **_WAIT, validate_only=True, topics=(_FRESH,)),
        _good("CreatePartitions", 37, "validate_only count", **_WAIT, validate_only=True,
              topics=({"name": READ, "count": 2, "assignments": None},)),
        _good("DeleteTopics", 20, **_WAIT, topic_names=("nope",),
              topics=({"name": "nope", "topic_id": None},)),
        _good("DescribeConfigs", 32,
              resources=({"resource_type": 2, "resource_name": READ,
                          "configuration_keys": ("retention.ms", "no.such.key")},)),
        _good("AlterConfigs", 33, "validate_only", validate_only=True, resources=(_ALTERED,)),
        _good("IncrementalAlterConfigs", 44, "validate_only", validate_only=True,
              resources=(_ALTERED,)),
        _good("DescribeLogDirs", 35, topics=(numbered(READ, 0),)),
        _good("AlterReplicaLogDirs", 34,
              dirs=({"path": "/nowhere", "topics": (numbered(READ, 0),)},)),
        _good("ListConfigResources", 74, resource_types=(2,)),
        _good("UpdateFeatures", 57, "validate_only", **_WAIT, validate_only=True,
              feature_updates=({"feature": "nope", "max_version_level": 1, "upgrade_type": 1},)),
        _good("ElectLeaders", 43, **_WAIT, election_type=0, topic_partitions=(numbered(READ, 0),)),
        _good("AlterPartitionReassignments", 45, **_WAIT,
              topics=(in_partition(READ, replicas=(node,)),)),
        _good("ListPartitionReassignments", 46, **_WAIT, topics=(numbered(READ, 0),)),
        _good("DescribeClientQuotas", 48,
              components=({"entity_type": "user", "match_type": 0, "match": "nobody"},)),
        _good("DescribeUserScramCredentials", 50, users=({"name": "nobody"},)),
        _good("DescribeCluster", 60, endpoint_type=1),
        _good("DescribeTopicPartitions", 75, topics=({"name": EMPTY}, {"name": READ}),
              response_partition_limit=2000, cursor=None),
        _good("ConsumerGroupDescribe", 69, group_ids=(_GONE,)),
        _good("ConsumerGroupHeartbeat", 68, "group_id", group_id=own, member_epoch=0,
              member_id="AAAAAAAAAAAAAAAAAAAAAA", rebalance_timeout=5000,
              subscribed_topic_names=(READ,), server_assignor="uniform",
              topic_partitions=()),
        _good("JoinGroup", 11, "group_id", group_id=own, session_timeout=10_000,
              rebalance_timeout=1000, member_id="", protocol_type="consumer",
              protocols=({"name": "range", "metadata": b"m"},)),
    ),
    "assigned": (
        _good("CreateTopics", 19, "validate_only", **_WAIT, validate_only=True,
              topics=(_ASSIGNED,)),
        _good("CreatePartitions", 37, "validate_only count", **_WAIT, validate_only=True,
              topics=({"name": READ, "count": 2, "assignments": ({"broker_ids": (node,)},)},)),
        _good("DescribeConfigs", 32,
              resources=({"resource_type": 4, "resource_name": lambda here: str(node(here)),
                          "configuration_keys": ("log.retention.ms", "no.such.key")},)),
    ),
}  # fmt: skip


def good_cases(served: Mapping[int, range]) -> Iterator[OracleCase]:
    """Return the cases of all Apis and versions that both sides serve."""
    for what, table in GOOD.items():
        for item in table:
            yield from item.cases(served.get(item.api_key, range(0)), what)
