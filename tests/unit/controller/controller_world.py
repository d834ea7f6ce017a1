"""A small world for the controller's tests: a state, brokers, topics, and commits that succeed."""

import dataclasses
import json
import uuid
from collections.abc import Iterable, Mapping

from tests.control_messages import topic_state
from tidemark.ids import parse_id
from tidemark.tiering import Tiering, TieringState
from tidemark.wire.control import (
    AlterPartitionRequest,
    BrokerHeartbeatRequest,
    BrokerRegistrationRequest,
    DisableRemoteTopicRequest,
    DisableRemoteTopicResponse,
    DisableRemoteTopicResult,
    Endpoint,
    IsrChange,
    PartitionError,
    PartitionStatesResponse,
    PartitionStatus,
    ReplicaLog,
    ReplicaLogInfoResponse,
)
from tidemark_operator.controller import elections, registration, snapshot, topics
from tidemark_operator.controller import isr as isr_rules
from tidemark_operator.controller.replica_logs import ReplicaLogs
from tidemark_operator.controller.state import commit
from tidemark_operator.controller.state.commit import Draft, GroupCommit
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event
from tidemark_operator.controller.state.model import (
    BrokerInfo,
    ClusterInfo,
    PartitionRow,
    PersistedTiering,
    RowKey,
    TieringSpec,
    TopicInfo,
)
from tidemark_operator.controller.status import StatusResult, topic_status
from tidemark_operator.controller.tiering_disablement import DisablementProgress
from tidemark_operator.controller.topic_deletion import Deletions
from tidemark_operator.controller.topics import TopicDecision

CLUSTER_ID = "tide-1"
SESSION_MS = 9_000
T0 = 1_800_000_000_000
KIP_409 = {"enable.under.replicated.topic.creation": "true"}
TIERED = {"remote.log.storage.system.enable": "true"}


def numbered_uuid(number: int) -> uuid.UUID:
    # Bits of a valid UUID, and readable in a failing assertion.
    return uuid.UUID(int=0x5EED_0000_0000_4000_8000_0000_0000_0000 + number)


def cluster(config: Mapping[str, str] | None = None, **fields: object) -> ClusterInfo:
    view = ClusterInfo(key="ns/main", cluster_id=CLUSTER_ID, config=dict(config or {}))
    return dataclasses.replace(view, **fields)  # type: ignore[arg-type]


def broker(
    node_id: int, *, rack: str | None = None, fenced: bool = False, epoch: int | None = None
) -> BrokerInfo:
    return BrokerInfo(
        node_id=node_id,
        key=f"ns/broker-{node_id}",
        spec_rack=rack,
        broker_epoch=node_id + 100 if epoch is None else epoch,
        incarnation_id=numbered_uuid(1000 + node_id),
        directory_id=numbered_uuid(2000 + node_id),
        listeners=(Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9092 + node_id),),
        fenced=fenced,
    )


def topic(
    number: int = 1, *, partitions: int = 1, replication_factor: int = 3, **fields: object
) -> TopicInfo:
    view = TopicInfo(
        key=f"ns/topic-{number}",
        uid=numbered_uuid(number),
        name=f"topic-{number}",
        generation=1,
        partitions=partitions,
        replication_factor=replication_factor,
        created_ms=number,
    )
    return dataclasses.replace(view, **fields)  # type: ignore[arg-type]


def row(
    replicas: Iterable[int],
    *,
    isr: Iterable[int] | None = None,
    leader: int | None = None,
    number: int = 1,
    partition: int = 0,
    **fields: object,
) -> PartitionRow:
    # By default every live replica is in sync and the first one leads, as after a placement.
    hosts = tuple(replica for replica in replicas if replica >= 0)
    members = hosts if isr is None else tuple(isr)
    made = PartitionRow(
        topic_id=numbered_uuid(number),
        partition=partition,
        replicas=tuple(replicas),
        isr=members,
        leader=(members[0] if members else -1) if leader is None else leader,
        name=f"topic-{number}" if partition == 0 else "",
    )
    return dataclasses.replace(made, **fields)  # type: ignore[arg-type]


def local_bytes(key: RowKey, size: int) -> PartitionStatus:
    """Return the report of a partition's leader about its log."""
    offsets = ("log_start_offset", "local_log_start_offset", "high_watermark", "next_offset")
    remote = ("remote_segments", "remote_bytes", "remaining_segments", "remaining_bytes")
    return PartitionStatus(
        topic_id=key[0],
        partition=key[1],
        leader_epoch=0,
        highest_remote_offset=-1,
        low_watermark=0,
        local_bytes=size,
        error_reason="",
        error_message="",
        **dict.fromkeys(offsets + remote, 0),
    )


class ControllerWorld:
    """Controller whose writes always succeed; ``slices`` has the written payloads as JSON."""

    def __init__(
        self,
        *,
        brokers: Iterable[BrokerInfo] = (),
        topics: Iterable[TopicInfo] = (),
        rows: Iterable[PartitionRow] = (),
        view: ClusterInfo | None = None,
        epoch: int = 7,
    ) -> None:
        self.state = ControllerState(
            controller_id="operator-a", controller_epoch=epoch, cluster=view or cluster()
        )
        self.disablements = DisablementProgress()
        self.deletions = Deletions()
        self.replica_logs = ReplicaLogs()
        # Payloads by slice index, which tests load into the state of a next controller.
        self.slices: dict[int, dict[str, object]] = {}
        # The state starts with these rows as already persisted, without a commit.
        for item in brokers:
            self.state.put_broker(item)
        for made in topics:
            self.state.put_topic(made)
        for part in rows:
            self.state.put_row(part)

    def draft(self) -> Draft:
        return Draft(self.state)

    def commit(self, draft: Draft) -> GroupCommit:
        planned = commit.plan(draft)
        for write in planned.writes:
            # A round trip through JSON, so that a later load sees what the API server stores.
            self.slices[write.index] = json.loads(json.dumps(write.payload))
            commit.apply(self.state, write)
        for item in planned.brokers:
            self.state.put_broker(item)
        return planned

    def row(self, partition: int = 0, number: int = 1) -> PartitionRow:
        found = self.state.row((numbered_uuid(number), partition))
        assert found is not None
        return found

    def view(self, number: int = 1) -> TopicInfo:
        return self.state.topics[f"ns/topic-{number}"]

    def decide(self, number: int = 1, *, now_ms: int = T0) -> TopicDecision:
        """Decide and commit a topic, without the status write."""
        draft = self.draft()
        decision = topics.decide(
            draft, f"ns/topic-{number}", self.disablements, self.deletions, now_ms=now_ms
        )
        self.commit(draft)
        assert decision is not None
        return decision

    def reconcile(
        self, number: int = 1, *, now_ms: int = T0, brokers_acknowledge: bool = True
    ) -> StatusResult:
        """Decide, commit and write the status, as the shell does.

        Repeat it once when the brokers have acknowledged the pushed state.
        """
        decision = self.decide(number, now_ms=now_ms)
        result = self._write(number, decision, now_ms)
        if brokers_acknowledge:
            self.acknowledge_states()
            # An accepted loss is recorded only by the first write.
            stored = dataclasses.replace(decision, accepted=())  # once is enough
            result = self._write(number, stored, now_ms)
        return result

    def _write(self, number: int, decision: TopicDecision, now_ms: int) -> StatusResult:
        view = self.view(number)
        result = topic_status(self.state, view, decision, self.disablements, now_ms=now_ms)
        self.state.put_topic(written(view, result, decision.tiering_status))
        return result

    def acknowledge_states(
        self, *node_ids: int, errors: tuple[PartitionError, ...] = ()
    ) -> set[uuid.UUID]:
        """Acknowledge a snapshot for brokers (default: all live) and return the changed topics."""
        news = set[uuid.UUID]()
        for node_id in node_ids or [
            live_broker.node_id for live_broker in self.state.live_brokers()
        ]:
            answer = PartitionStatesResponse(
                error_code=0,
                broker_epoch=self.state.brokers[node_id].broker_epoch,
                errors=errors,
            )
            news |= self.state.take_states(node_id, snapshot.full(self.state), answer)
        return news

    def register(
        self,
        node_id: int,
        *,
        incarnation: int,
        directory: int | None = None,
        previous: int = -1,
        alive: bool = False,
    ) -> tuple[int, int]:
        """Commit a registration and return its error code and broker epoch."""
        draft = self.draft()
        request = registration_request(
            node_id, incarnation=incarnation, directory=directory, previous=previous
        )
        response = registration.register(
            draft, request, session_alive=alive, session_timeout_ms=SESSION_MS
        )
        self.commit(draft)
        return response.error_code, response.broker_epoch

    def beat(self, node_id: int, **fields: object) -> tuple[int, bool, bool]:
        """Commit a heartbeat; return error code, is_fenced and whether it extends the session."""
        request = BrokerHeartbeatRequest(
            broker_id=node_id,
            broker_epoch=self.state.brokers[node_id].broker_epoch,
            snapshot_controller_epoch=self.state.controller_epoch,
            loop_age_ms=1,
            want_shut_down=False,
        )
        draft = self.draft()
        response, refreshes = registration.heartbeat(
            draft,
            dataclasses.replace(request, **fields),  # type: ignore[arg-type]
            session_timeout_ms=SESSION_MS,
        )
        self.commit(draft)
        return response.error_code, response.is_fenced, refreshes


def registration_request(
    node_id: int,
    *,
    incarnation: int,
    directory: int | None = None,
    previous: int = -1,
    cluster_id: str = CLUSTER_ID,
    rack: str | None = None,
) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(
        broker_id=node_id,
        cluster_id=cluster_id,
        incarnation_id=numbered_uuid(incarnation),
        directory_id=numbered_uuid(2000 + node_id if directory is None else directory),
        previous_broker_epoch=previous,
        highest_controller_epoch=0,
        rack=rack,
        listeners=(Endpoint(name="PLAINTEXT", host="127.0.0.1", port=9092),),
    )


def written(view: TopicInfo, result: StatusResult, tiering: PersistedTiering) -> TopicInfo:
    """Return the view that the API server returns after a status write."""
    status = json.loads(json.dumps(result.status))
    topic_id = status.get("topicId")
    return dataclasses.replace(
        view,
        topic_id=parse_id(topic_id) if topic_id else None,
        partitions_placed=status.get("partitionsPlaced", 0),
        tiering_status=tiering,
        status=status,
    )


def tiered(enabled: bool, state: TieringState, epoch: int = 0) -> dict[str, object]:
    """Return topic fields with a tiering spec and a tiering status."""
    return {
        "tiering_spec": TieringSpec(enabled=enabled),
        "tiering_status": PersistedTiering(tiering=Tiering(state, epoch), since_ms=T0),
    }


def acknowledge(
    world: ControllerWorld,
    node_id: int,
    request: DisableRemoteTopicRequest,
    *,
    broker_epoch: int | None = None,
) -> DisableRemoteTopicResponse:
    """Return a broker's answer that every partition is disabled, with its role."""
    results = []
    for partition in request.partitions:
        # The answer carries the current leader epoch, as a live broker's does.
        found = world.state.row((request.topic_id, partition))
        assert found is not None
        results.append(
            DisableRemoteTopicResult(
                partition=partition,
                error_code=0,
                leader_epoch=found.leader_epoch,
                is_leader=found.leader == node_id,
            )
        )
    epoch = world.state.brokers[node_id].broker_epoch if broker_epoch is None else broker_epoch
    return DisableRemoteTopicResponse(
        error_code=0,
        broker_epoch=epoch,
        tiered_epoch=request.tiered_epoch,
        results=tuple(results),
    )


def ready(result: StatusResult) -> dict[str, tuple[str, str]]:
    """Return the conditions of a status as type -> (status, reason)."""
    conditions = result.status["conditions"]
    assert isinstance(conditions, list)
    return {item["type"]: (item["status"], item["reason"]) for item in conditions}


def messages(result: StatusResult) -> dict[str, str]:
    conditions = result.status["conditions"]
    assert isinstance(conditions, list)
    return {item["type"]: item["message"] for item in conditions}


def alter(world: ControllerWorld, *isr: int, number: int = 1) -> int:
    """Commit an ISR proposal of partition 0's leader and return the answer's error code."""
    made = world.row(number=number)
    change = IsrChange(
        topic_id=made.topic_id,
        partition=0,
        leader_epoch=made.leader_epoch,
        partition_epoch=made.partition_epoch,
        new_isr=isr,
        remote_manifest=False,
    )
    epoch = world.state.brokers[made.leader].broker_epoch
    request = AlterPartitionRequest(broker_id=made.leader, broker_epoch=epoch, changes=(change,))
    draft = world.draft()
    (result,) = isr_rules.alter_partition(draft, request).results
    world.commit(draft)
    return result.error_code


def fence(world: ControllerWorld, *node_ids: int) -> None:
    """Commit the fencing of brokers whose sessions end at one moment."""
    draft = world.draft()
    elections.fence(draft, node_ids, reason="no heartbeat")
    world.commit(draft)


def report_log(
    world: ControllerWorld,
    node_id: int,
    last_epoch: int,
    next_offset: int,
    *,
    partition: int = 0,
    **fields: object,
) -> list[Event]:
    """Report the end of a broker's replica, commit what follows and return the events."""
    made = world.row(partition)
    log = ReplicaLog(
        topic_id=made.topic_id,
        partition=made.partition,
        error_code=0,
        leader_epoch=made.leader_epoch,
        last_epoch=last_epoch,
        next_offset=next_offset,
    )
    answer = ReplicaLogInfoResponse(
        error_code=0,
        broker_epoch=world.state.brokers[node_id].broker_epoch,
        logs=(dataclasses.replace(log, **fields),),  # type: ignore[arg-type]
    )
    # Newly known log ends may decide an election, as in the shell.
    keys, events = world.replica_logs.take(world.state, node_id, answer)
    draft = world.draft()
    elections.settle_rows(draft, keys)
    return [*events, *world.commit(draft).events]


def reports(
    world: ControllerWorld,
    node_id: int,
    *reported: PartitionRow,
    has_all_records: bool = False,
    **tiering: int,
) -> None:
    """Report a broker's replicas as its last pushed state has them.

    ``tiering`` sets fields of its topics' states.
    """
    by_topic: dict[uuid.UUID, list[PartitionRow]] = {}
    # Brokers report their replicas grouped by topic, like the states that they received.
    for item in reported:
        by_topic.setdefault(item.topic_id, []).append(item)
    world.state.take_replica_report(
        node_id,
        [
            topic_state(
                topic_id,
                # The inverse of numbered_uuid, so that the names match those of the topics.
                f"topic-{topic_id.int - numbered_uuid(0).int}",
                partitions=tuple(
                    dataclasses.replace(
                        snapshot.partition_state(row_), has_all_records=has_all_records
                    )
                    for row_ in rows
                ),
                **tiering,
            )
            for topic_id, rows in by_topic.items()
        ],
    )
