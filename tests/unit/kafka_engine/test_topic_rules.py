"""Claims of a Topic on an existing topic, and refusals of a manifest."""

import dataclasses
import uuid
from collections.abc import Mapping

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.kafka_engine.test_desired_configs import topic
from tidemark.annotations import ADOPT_TOPIC_ID
from tidemark.ids import id_text
from tidemark.kafka_client.values import (
    Offset,
    PartitionView,
    Reassignment,
    RequestFailure,
    TopicView,
)
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_operator.controller.adoption import Adoption
from tidemark_operator.controller.state.model import Blocker, TieringSpec, TopicInfo
from tidemark_operator.engines.kafka import cluster_snapshot, records, topic_rules
from tidemark_operator.engines.kafka.cluster import FoundTopic

ID = uuid.UUID(int=7)


def found(*replicas: tuple[int, ...], **own: str) -> FoundTopic:
    partitions = tuple(
        PartitionView(part, nodes[0], 0, nodes, nodes) for part, nodes in enumerate(replicas)
    )
    keys = {name.replace("_", "."): value for name, value in own.items()}
    return FoundTopic(TopicView("t", ID, internal=False, partitions=partitions), keys)


def desired_topic(replicas: int = 1, annotation: str = "", **config: str) -> TopicInfo:
    asked: Mapping[str, str] = {ADOPT_TOPIC_ID: annotation} if annotation else {}
    return dataclasses.replace(topic(**config), replication_factor=replicas, annotations=asked)


def reason(claimed: Adoption | Blocker) -> str:
    return claimed.reason if isinstance(claimed, Blocker) else "Adopted"


@pytest.mark.parametrize(
    ("desired", "existing", "asked_for", "expected"),
    [
        (desired_topic(), found((1,)), False, "AdoptionRequired"),
        (desired_topic(), found((1,)), True, "Adopted"),
        (desired_topic(), found((1,), (1,)), True, "AdoptionRequired"),
        (desired_topic(annotation=id_text(ID)), found((1,)), False, "Adopted"),
        (desired_topic(annotation=id_text(ID)), found((1, 2)), False, "AdoptionRefused"),
        (desired_topic(annotation=id_text(uuid.UUID(int=8))), found((1,)), True, "AdoptionRefused"),
        (desired_topic(retention_ms="5"), found((1,)), True, "AdoptionRequired"),
        (
            desired_topic(retention_ms="5"),
            found((1,), retention_ms="5", flush_ms="1"),
            True,
            "Adopted",
        ),
        (desired_topic(), found((1,), remote_storage_enable="true"), True, "AdoptionRequired"),
        (desired_topic(3), found((1, 2)), True, "AdoptionRequired"),
    ],
)
def test_topic_is_adopted_only_if_it_matches(
    desired: TopicInfo, existing: FoundTopic, asked_for: bool, expected: str
) -> None:
    assert reason(topic_rules.claim(desired, existing, is_requested=asked_for)) == expected


def test_topic_created_by_the_operator_is_always_adopted() -> None:
    assert (
        reason(topic_rules.claim(desired_topic(3), found((1, 2)), is_requested=True, created=ID))
        == "Adopted"
    )


def test_topic_created_with_too_few_brokers_is_recognized() -> None:
    wide = desired_topic(3)
    assert (
        reason(
            topic_rules.claim(wide, found((1, 2)), is_requested=True, accepts_fewer_replicas=True)
        )
        == "Adopted"
    )
    # A topic with more replicas than the spec was created elsewhere.
    more = topic_rules.claim(
        desired_topic(1), found((1, 2)), is_requested=True, accepts_fewer_replicas=True
    )
    assert reason(more) == "AdoptionRequired"


def test_adopted_topic_has_the_tiering_of_its_switches() -> None:
    tiered = dataclasses.replace(desired_topic(), tiering_spec=TieringSpec(enabled=True))
    claimed = topic_rules.claim(
        tiered, found((1,), remote_storage_enable="true"), is_requested=True
    )
    assert isinstance(claimed, Adoption)
    assert claimed.tiering_status.tiering == Tiering(TieringState.ENABLED, 0)
    kept = {"remote_storage_enable": "true", "remote_log_copy_disable": "true"}
    claimed = topic_rules.claim(desired_topic(), found((1,), **kept), is_requested=True)
    assert isinstance(claimed, Adoption)
    retained = Tiering(TieringState.DISABLED, 0, DisablePolicy.RETAIN)
    assert claimed.tiering_status.tiering == retained


def test_a_recoverable_error_is_retried_and_another_waits_for_a_user() -> None:
    busy = topic_rules.refused(RequestFailure(ErrorCode.not_controller), "it")
    assert (busy.reason, busy.goes_on) == ("KafkaBusy", True)
    wrong = topic_rules.refused(RequestFailure(ErrorCode.invalid_config, "no such key"), "it")
    assert (wrong.reason, wrong.goes_on) == ("ConfigRefused", False)
    assert wrong.message == "it: INVALID_CONFIG: no such key"


def test_missing_replicas_are_placeholders_in_the_snapshot() -> None:
    view = found((1, 2), (2, 3)).view
    moves = {("t", 1): Reassignment((2, 3), adding=(3,), removing=(2,))}
    first, second = cluster_snapshot.rows(view, moves, places=3)
    assert (first.replicas, first.placeholders) == ((1, 2, -1), 1)
    assert (second.replicas, second.adding, second.removing) == ((2, 3, -1, -2), (3,), (2,))
    assert [row.replicas for row in cluster_snapshot.rows(view, {})] == [(1, 2), (2, 3)]


def test_a_leader_that_is_behind_is_distinguished_from_one_that_lost_records() -> None:
    beyond = RequestFailure(ErrorCode.offset_out_of_range)
    behind = records._result(0, -1, beyond, 5, RequestFailure(ErrorCode.offset_not_available))
    assert behind.error_code == ErrorCode.offset_not_available.value
    lost = records._result(0, -1, beyond, 5, Offset(3, -1, 2))
    assert (lost.error_code, lost.lost_from_offset) == (ErrorCode.offset_out_of_range.value, 3)
    assert records._result(0, 5, None, 5, None).low_watermark == 5


def test_client_changes_that_cannot_be_refused_are_reported_until_the_field_is_removed() -> None:
    refusing = dataclasses.replace(desired_topic(), refuses_client_changes=True)
    (blocker,) = topic_rules.refusals(refusing, 1, "")
    assert blocker.reason == "ClientChangesNotRefused"
    assert "remove the field" in blocker.message
    removed = dataclasses.replace(refusing, refuses_client_changes=None)
    assert topic_rules.refusals(removed, 1, "") == []


def test_tiering_fields_without_a_counterpart_are_reported_until_they_are_removed() -> None:
    plain = desired_topic()
    config = {**plain.config, "tidemark.remote.copy.max.lag.ms": "10000"}
    (blocker,) = topic_rules.refusals(dataclasses.replace(plain, config=config), 1, "")
    assert blocker.reason == "TieringFieldNotSupported"
    assert blocker.message.startswith("spec.tiering.maxLag.time has no effect")
    assert "set segment.ms in spec.config" in blocker.message
    assert topic_rules.refusals(plain, 1, "") == []
