"""Whether a topic that is there is a Topic's, and what is refused of a manifest."""

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
from tidemark_operator.controller.model import TieringSpec, TopicInfo
from tidemark_operator.controller.topics import Blocker
from tidemark_operator.engines.kafka import cluster_snapshot, records, topic_rules
from tidemark_operator.engines.kafka.cluster import FoundTopic

ID = uuid.UUID(int=7)


def found(*replicas: tuple[int, ...], **own: str) -> FoundTopic:
    partitions = tuple(
        PartitionView(part, nodes[0], 0, nodes, nodes) for part, nodes in enumerate(replicas)
    )
    keys = {name.replace("_", "."): value for name, value in own.items()}
    return FoundTopic(TopicView("t", ID, internal=False, partitions=partitions), keys)


def wanting(replicas: int = 1, annotation: str = "", **config: str) -> TopicInfo:
    asked: Mapping[str, str] = {ADOPT_TOPIC_ID: annotation} if annotation else {}
    return dataclasses.replace(topic(**config), replication_factor=replicas, asked=asked)


def reason(claimed: Adoption | Blocker) -> str:
    return claimed.reason if isinstance(claimed, Blocker) else "Adopted"


@pytest.mark.parametrize(
    ("wanted", "there", "asked_for", "expected"),
    [
        (wanting(), found((1,)), False, "AdoptionRequired"),
        (wanting(), found((1,)), True, "Adopted"),
        (wanting(), found((1,), (1,)), True, "AdoptionRequired"),
        (wanting(annotation=id_text(ID)), found((1,)), False, "Adopted"),
        (wanting(annotation=id_text(ID)), found((1, 2)), False, "AdoptionRefused"),
        (wanting(annotation=id_text(uuid.UUID(int=8))), found((1,)), True, "AdoptionRefused"),
        (wanting(retention_ms="5"), found((1,)), True, "AdoptionRequired"),
        (wanting(retention_ms="5"), found((1,), retention_ms="5", flush_ms="1"), True, "Adopted"),
        (wanting(), found((1,), remote_storage_enable="true"), True, "AdoptionRequired"),
        (wanting(3), found((1, 2)), True, "AdoptionRequired"),
    ],
)
def test_a_topic_is_taken_over_where_that_is_certain(
    wanted: TopicInfo, there: FoundTopic, asked_for: bool, expected: str
) -> None:
    assert reason(topic_rules.claim(wanted, there, asked_for=asked_for)) == expected


def test_what_kafka_says_that_it_created_is_ours_whatever_it_is() -> None:
    assert (
        reason(topic_rules.claim(wanting(3), found((1, 2)), asked_for=True, created=ID))
        == "Adopted"
    )


def test_a_topic_that_was_made_while_brokers_are_missing_is_known_again() -> None:
    wide = wanting(3)
    assert (
        reason(topic_rules.claim(wide, found((1, 2)), asked_for=True, may_lack=True)) == "Adopted"
    )
    more = topic_rules.claim(wanting(1), found((1, 2)), asked_for=True, may_lack=True)
    assert reason(more) == "AdoptionRequired"


def test_what_is_taken_over_has_the_tiering_that_its_switches_say() -> None:
    tiered = dataclasses.replace(wanting(), tiering_spec=TieringSpec(enabled=True))
    claimed = topic_rules.claim(tiered, found((1,), remote_storage_enable="true"), asked_for=True)
    assert isinstance(claimed, Adoption)
    assert claimed.tiering_status.tiering == Tiering(TieringState.ENABLED, 0)
    kept = {"remote_storage_enable": "true", "remote_log_copy_disable": "true"}
    claimed = topic_rules.claim(wanting(), found((1,), **kept), asked_for=True)
    assert isinstance(claimed, Adoption)
    retained = Tiering(TieringState.DISABLED, 0, DisablePolicy.RETAIN)
    assert claimed.tiering_status.tiering == retained


def test_a_recoverable_error_is_retried_and_another_waits_for_a_user() -> None:
    busy = topic_rules.refused(RequestFailure(ErrorCode.not_controller), "it")
    assert (busy.reason, busy.goes_on) == ("KafkaBusy", True)
    wrong = topic_rules.refused(RequestFailure(ErrorCode.invalid_config, "no such key"), "it")
    assert (wrong.reason, wrong.goes_on) == ("ConfigRefused", False)
    assert wrong.message == "it: INVALID_CONFIG: no such key"


def test_replicas_that_no_broker_could_take_are_placeholders_of_the_picture() -> None:
    view = found((1, 2), (2, 3)).view
    moves = {("t", 1): Reassignment((2, 3), adding=(3,), removing=(2,))}
    first, second = cluster_snapshot.rows(view, moves, places=3)
    assert (first.replicas, first.placeholders) == ((1, 2, -1), 1)
    assert (second.replicas, second.adding, second.removing) == ((2, 3, -1, -2), (3,), (2,))
    assert [row.replicas for row in cluster_snapshot.rows(view, {})] == [(1, 2), (2, 3)]


def test_a_leader_that_is_behind_is_distinguished_from_one_that_lost_records() -> None:
    beyond = RequestFailure(ErrorCode.offset_out_of_range)
    behind = records._answer(-1, beyond, 5, RequestFailure(ErrorCode.offset_not_available))
    assert behind.error_code == ErrorCode.offset_not_available.value
    lost = records._answer(-1, beyond, 5, Offset(3, -1, 2))
    assert (lost.error_code, lost.lost_from) == (ErrorCode.offset_out_of_range.value, 3)
    assert records._answer(5, None, 5, None).low_watermark == 5
