"""Topics as a cluster describes them, and the manifests that leave them unchanged."""

import uuid
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tidemark.ids import id_text
from tidemark.kafka_client.values import EffectiveConfig, PartitionView, RequestFailure, TopicView
from tidemark_cli.imports.kafka_topics import ExistingTopic, imported_topic, is_own, with_topic_id
from tidemark_cli.imports.topics import ImportedTopic, NotImported

ID = uuid.UUID("e254d0bd-6d68-4bbf-a00b-707922030f98")


def view(*replicas: tuple[int, ...], name: str = "t", internal: bool = False) -> TopicView:
    partitions = (PartitionView(n, 1, 0, replica, replica) for n, replica in enumerate(replicas))
    return TopicView(name, ID, internal, tuple(partitions))


def existing(*replicas: tuple[int, ...], **changed: Any) -> ExistingTopic:
    usual = {"view": view(*replicas), "configuration": {}, "is_moving": False}
    return ExistingTopic(**{**usual, **changed})


def described(**changed: Any) -> ImportedTopic:
    usual = {"source": "here", "name": "t", "partitions": 2, "replication_factor": 2, "config": {}}
    return ImportedTopic(**{**usual, **changed})


def test_only_settings_of_the_topic_itself_are_imported() -> None:
    configuration = {
        "retention.ms": EffectiveConfig("1000", own=True),
        "segment.bytes": EffectiveConfig("1073741824", own=False),
        # Brokers do not return the values of secrets.
        "secret": EffectiveConfig(None, own=True),
    }
    found = imported_topic(existing((1, 2), (2, 3), configuration=configuration), "broker:9092")
    assert found == ImportedTopic(
        source="broker:9092, topic t",
        name="t",
        partitions=2,
        replication_factor=2,
        config={"retention.ms": "1000"},
        topic_id=id_text(ID),
    )


@pytest.mark.parametrize(
    ("topic", "why"),
    [
        (existing((1, 2), (1,)), "its partitions have 1 and 2 replicas: give all of them the same"),
        (existing((1, 2), is_moving=True), "being reassigned"),
        (
            existing(
                (1,), configuration=RequestFailure(ErrorCode.topic_authorization_failed, "no")
            ),
            "cannot be read: TOPIC_AUTHORIZATION_FAILED: no",
        ),
    ],
)
def test_topics_without_an_equivalent_manifest_are_refused(topic: ExistingTopic, why: str) -> None:
    with pytest.raises(NotImported, match=why):
        imported_topic(topic, "c")


@pytest.mark.parametrize(
    ("name", "internal", "own"),
    [
        ("orders", False, False),
        ("__consumer_offsets", True, True),
        ("__remote_log_metadata", False, True),
        ("__share_group_state", False, True),
        ("__strimzi_store_topic", False, True),
        ("__strimzi-topic-operator-kstreams-topic-store-changelog", False, True),
        ("named.otherwise", True, True),
        ("_schemas", False, False),
    ],
)
def test_internal_topics_are_recognized(name: str, internal: bool, own: bool) -> None:
    assert is_own(view((1,), name=name, internal=internal)) is own


def test_manifest_gets_the_id_of_the_existing_topic() -> None:
    cluster = {"t": existing((1, 2), (2, 3))}
    found = with_topic_id(described(), cluster)
    assert (found.topic_id, found.remarks) == (id_text(ID), ())
    # A second pass finds the same id and changes nothing.
    assert with_topic_id(found, cluster) == found


def test_differences_from_the_cluster_are_remarked() -> None:
    found = with_topic_id(described(remarks=("before",)), {"t": existing((1,), (1, 2), (2, 3))})
    assert found.remarks == (
        "before",
        "has 3 partitions in the cluster, but 2 in the manifest",
        "has 1 and 2 replicas in the cluster, but 2 in the manifest",
    )


def test_missing_topic_adopts_no_id() -> None:
    """The id belongs to another cluster, and the Topic would wait for it."""
    found = with_topic_id(described(topic_id="A" * 22), {})
    assert (found.topic_id, found.remarks) == ("", ("is not in the cluster: it will be created",))


def test_another_topic_of_that_name_is_not_adopted() -> None:
    with pytest.raises(NotImported, match="was recreated, or this is another cluster"):
        with_topic_id(described(topic_id="A" * 22), {"t": existing((1, 2))})
