"""Kafka clients' changes against an API server: what becomes of the objects, what is answered."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.control_messages import topic_state
from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tests.unit.topic_changes.requests import change, create, request, settings
from tidemark.wire.topics import (
    DISABLEMENT_IN_PROGRESS,
    Assignment,
    ChangeKind,
    Setting,
    SettingOperation,
    TopicChange,
    TopicChangeResult,
)
from tidemark_operator.controller import replication_factor_changes, snapshot
from tidemark_operator.kube.errors import Conflict, Forbidden, Invalid, NotFound
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json
from tidemark_operator.objects.ownership import MANAGER
from tidemark_operator.reconcile.topics import TopicReconciler
from tidemark_operator.resources.cluster import GROUPS_MAX
from tidemark_operator.topic_changes.changer import TopicChanger
from tidemark_operator.topic_changes.refusal import refused

TIERED = {"remote.log.storage.system.enable": "true"}
GIT = "argocd-controller"


class Changes:
    """A cluster of two brokers, and who changes its topics."""

    def __init__(self, world: ShellWorld) -> None:
        self.world = world
        self.changer = TopicChanger(world.services)

    async def __call__(self, *changes: TopicChange, **fields: Any) -> list[tuple[str, str]]:
        """(error, message) of each."""
        return [_told(result) for result in await self.results(*changes, **fields)]

    async def results(self, *changes: TopicChange, **fields: Any) -> list[TopicChangeResult]:
        answer = await self.changer.change(request(*changes, **fields))
        assert answer.error_code == 0
        return list(answer.results)

    async def one(self, asked: TopicChange, **fields: Any) -> tuple[str, str]:
        (told,) = await self(asked, **fields)
        return told

    def object(self, name: str = "t") -> Json:
        body = self.world.server.find(TOPIC, name)
        assert body is not None
        return body

    def spec(self, name: str = "t") -> Json:
        spec: Json = self.object(name)["spec"]
        return spec


def _told(result: TopicChangeResult) -> tuple[str, str]:
    code = result.error_code
    name = str(code) if code == DISABLEMENT_IN_PROGRESS else ErrorCode(code).name
    return name, result.error_message or ""


@pytest.fixture
async def changes() -> AsyncIterator[Changes]:
    world = ShellWorld()
    world.make_cluster({})
    world.make_broker(1)
    world.make_broker(2)
    async with world.term():
        await world.start_broker(1)
        await world.start_broker(2)
        world.events.emitted.clear()
        yield Changes(world)


@pytest.fixture
async def tiered(changes: Changes) -> Changes:
    state = changes.world.services.state
    changes.world.edit(CLUSTER, "main", config=TIERED)
    state.cluster = dataclasses.replace(state.cluster, remote_storage="{}")
    return changes


# ---------------------------------------------------------------- creating


async def test_a_topic_becomes_an_object(changes: Changes) -> None:
    (result,) = await changes.results(create("orders", 3, 2, settings=settings(retention_ms="5")))
    body = changes.object("orders")
    assert body["spec"] == {
        "clusterRef": {"name": "main"},
        "partitions": 3,
        "replicationFactor": 2,
        "config": {"retention.ms": "5"},
    }
    assert (result.error_code, result.partitions, result.replication_factor) == (0, 3, 2)
    assert str(result.topic_id) == body["metadata"]["uid"]
    assert changes.world.events.reasons == ["CreatedByClient"]
    assert "by User:alice at 10.0.0.7" in changes.world.events.emitted[0].message


@pytest.mark.parametrize(
    ("topic", "begins"), [("Orders_EU", "orders-eu-"), ("___", "topic-"), ("a..b", "a-b-")]
)
async def test_a_name_that_is_no_object_name_is_made_one(
    changes: Changes, topic: str, begins: str
) -> None:
    assert await changes.one(create(topic)) == ("none", "")
    (body,) = changes.world.server.of_kind(TOPIC)
    assert body["metadata"]["name"].startswith(begins)
    assert body["spec"]["topicName"] == topic


async def test_an_object_name_that_another_topic_has_is_not_taken(changes: Changes) -> None:
    changes.world.make_topic("orders", topicName="invoices")
    assert await changes.one(create("orders")) == ("none", "")
    assert changes.spec("orders")["topicName"] == "invoices"
    assert len(changes.world.server.of_kind(TOPIC)) == 2


async def test_omitted_counts_are_the_clusters(changes: Changes) -> None:
    cluster = {"num.partitions": "4", "default.replication.factor": "2"}
    changes.world.edit(CLUSTER, "main", config=cluster)
    assert await changes.one(create(partitions=-1, replicas=-1)) == ("none", "")
    assert (changes.spec()["partitions"], changes.spec()["replicationFactor"]) == (4, 2)


async def test_more_replicas_than_brokers_are_granted_if_the_cluster_allows_it(
    changes: Changes,
) -> None:
    """A partition may have fewer live replicas at its creation (KIP-409)."""
    assert (await changes.one(create(replicas=3)))[0] == "invalid_replication_factor"
    config = {"enable.under.replicated.topic.creation": "true"}
    changes.world.edit(CLUSTER, "main", config=config)
    state = changes.world.services.state
    state.cluster = dataclasses.replace(state.cluster, config=config)
    assert await changes.one(create(replicas=3)) == ("none", "")
    assert changes.spec()["replicationFactor"] == 3


async def test_validation_alone_writes_nothing(changes: Changes) -> None:
    assert await changes.one(create(), validate_only=True) == ("none", "")
    assert changes.world.server.of_kind(TOPIC) == []
    assert changes.world.events.reasons == []


REFUSED = {
    "no name": (create(""), "invalid_topic_exception", "invalid topic name"),
    "two dots": (create(".."), "invalid_topic_exception", "invalid topic name"),
    "long name": (create("a" * 250), "invalid_topic_exception", "invalid topic name"),
    "not served": (create("__cluster_metadata"), "invalid_topic_exception", "not supported"),
    "no partitions": (create(partitions=0), "invalid_partitions", "non-positive"),
    "many partitions": (create(partitions=10_001), "policy_violation", "exceed the limit of 10000"),
    "no replicas": (create(replicas=0), "invalid_replication_factor", "larger than 0"),
    "many replicas": (create(replicas=3), "invalid_replication_factor", "3 brokers are required"),
    "unknown key": (create(settings=settings(x_y="1")), "invalid_config", "Unknown topic config"),
    "bad value": (
        create(settings=settings(retention_ms="soon")),
        "invalid_config",
        "must be a whole number",
    ),
    "a value that no object may have": (
        create(settings=settings(cleanup_policy=f"delete{' ' * 2000},compact")),
        "invalid_config",
        "at most 1024",
    ),
    "key twice": (
        create(settings=settings(retention_ms="1") * 2),
        "invalid_request",
        "set twice",
    ),
    "null value": (
        create(settings=(Setting(name="retention.ms", value=None, operation=0),)),
        "invalid_config",
        "has no value",
    ),
    "lags that contradict each other": (
        create(settings=settings(min_compaction_lag_ms="7", max_compaction_lag_ms="6")),
        "invalid_config",
        "min.compaction.lag.ms 7 exceeds max.compaction.lag.ms 6",
    ),
    "no store": (
        create(settings=settings(remote_storage_enable="true")),
        "invalid_config",
        "no tiered storage",
    ),
    "assigned and counted": (
        create(replicas=-1, assignments=(Assignment(partition=0, replicas=(1,)),)),
        "invalid_request",
        "has to be -1",
    ),
    "a hole in the assignments": (
        create(partitions=-1, replicas=-1, assignments=(Assignment(partition=1, replicas=(1,)),)),
        "invalid_replica_assignment",
        "consecutive",
    ),
    "unknown broker": (
        create(partitions=-1, replicas=-1, assignments=(Assignment(partition=0, replicas=(9,)),)),
        "invalid_replica_assignment",
        "broker 9, which is not registered",
    ),
    "broker twice": (
        create(partitions=-1, replicas=-1, assignments=(Assignment(partition=0, replicas=(1, 1)),)),
        "invalid_replica_assignment",
        "twice",
    ),
    "not automatically": (create(automatic=True), "policy_violation", "auto.create.topics.enable"),
}


@pytest.mark.parametrize("case", REFUSED)
async def test_changes_that_kafka_refuses_are_refused(changes: Changes, case: str) -> None:
    asked, error, message = REFUSED[case]
    told, text = await changes.one(asked)
    assert told == error
    assert message in text
    assert changes.world.server.of_kind(TOPIC) == []


@pytest.mark.parametrize(
    ("former", "name", "error"),
    [
        ("t", "t", "topic_already_exists"),
        ("a.b", "a_b", "invalid_topic_exception"),
        ("a_b.c", "a.b_c", "invalid_topic_exception"),
        ("a.b", "a.c", "none"),
    ],
)
async def test_a_name_is_there_once(changes: Changes, former: str, name: str, error: str) -> None:
    """The same applies to two requests in one call."""
    assert [told for told, _ in await changes(create(former), create(name))] == ["none", error]


async def test_an_assignment_determines_the_placement(changes: Changes) -> None:
    assignments = (
        Assignment(partition=1, replicas=(2, 1)),
        Assignment(partition=0, replicas=(1, 2)),
    )
    asked = create(partitions=-1, replicas=-1, assignments=assignments)
    assert await changes.one(asked) == ("none", "")
    topic = changes.world.services.state.topics["ns/t"]
    assert topic.assignments == {0: (1, 2), 1: (2, 1)}
    assert (topic.partitions, topic.replication_factor) == (2, 2)


async def test_placeholders_are_accepted_where_the_cluster_accepts_them(changes: Changes) -> None:
    changes.world.edit(CLUSTER, "main", config=UNDER_REPLICATED)
    assert await changes.one(create(replicas=3)) == ("none", "")


async def test_a_coordinators_topic_is_created_however_few_brokers_there_are(
    changes: Changes,
) -> None:
    config = settings(cleanup_policy="compact", min_insync_replicas="2")
    asked = create("__consumer_offsets", 5, 3, automatic=True, settings=config)
    assert await changes.one(asked) == ("none", "")
    (body,) = changes.world.server.of_kind(TOPIC)
    assert body["metadata"]["labels"] == {"tidemark.dev/internal": "true"}
    assert body["spec"]["topicName"] == "__consumer_offsets"


async def test_more_changes_than_a_message_may_have_are_refused(changes: Changes) -> None:
    told = await changes(*[create(f"t{number}") for number in range(101)])
    assert {error for error, _ in told} == {"invalid_request"}
    assert changes.world.server.of_kind(TOPIC) == []


# ---------------------------------------------------------------- refusals of the API server


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (Invalid(422, "spec.config: no such thing"), "invalid_config"),
        (Invalid(422, "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS: wait"), "950"),
        (Invalid(422, "spec.partitions: no"), "policy_violation"),
        (Forbidden(403, "a policy of the namespace"), "policy_violation"),
        (None, "request_timed_out"),
    ],
    ids=["configuration", "disabling", "admission", "forbidden", "no answer"],
)
async def test_the_api_server_has_the_last_word(changes: Changes, error: Any, code: str) -> None:
    changes.world.api.fail("apply_fields Topic", error)
    told, text = await changes.one(create())
    assert told == code
    assert (error.message if error else "no answer") in text


# ---------------------------------------------------------------- growing


async def test_partitions_are_added(changes: Changes) -> None:
    await changes(create(partitions=2))
    (result,) = await changes.results(change(ChangeKind.GROW, partitions=5))
    assert (result.error_code, result.partitions) == (0, 5)
    assert changes.spec()["partitions"] == 5
    assert changes.object()["metadata"]["generation"] == 2


@pytest.mark.parametrize(("count", "message"), [(2, "already has 2"), (1, "not be an increase")])
async def test_partitions_are_never_taken_away(changes: Changes, count: int, message: str) -> None:
    await changes(create(partitions=2))
    told, text = await changes.one(change(ChangeKind.GROW, partitions=count))
    assert told == "invalid_partitions"
    assert message in text


async def test_what_coordinators_are_found_by_does_not_grow(changes: Changes) -> None:
    """Groups would be looked for where their offsets are not."""
    compacted = settings(cleanup_policy="compact")
    await changes(create("__consumer_offsets", partitions=2, settings=compacted))
    told, text = await changes.one(change(ChangeKind.GROW, "__consumer_offsets", partitions=3))
    assert told == "invalid_partitions"
    assert "number of partitions" in text


async def test_partitions_are_added_where_there_are_brokers_for_them(changes: Changes) -> None:
    changes.world.make_topic(replicas=3)
    told, text = await changes.one(change(ChangeKind.GROW, partitions=2))
    assert told == "invalid_replication_factor"
    assert "3 brokers are required" in text
    assert changes.spec()["partitions"] == 1


async def test_added_partitions_are_placed_as_assigned(changes: Changes) -> None:
    first = (Assignment(partition=0, replicas=(1,)),)
    await changes(create(partitions=-1, replicas=-1, assignments=first))
    more = (Assignment(partition=0, replicas=(2,)), Assignment(partition=1, replicas=(1,)))
    grow = change(ChangeKind.GROW, partitions=3, assignments=more)
    assert await changes.one(grow) == ("none", "")
    topic = changes.world.services.state.topics["ns/t"]
    assert topic.assignments == {0: (1,), 1: (2,), 2: (1,)}
    fewer = change(ChangeKind.GROW, partitions=5, assignments=first)
    assert (await changes.one(fewer))[0] == "invalid_replica_assignment"


async def test_what_is_not_there_is_not_changed(changes: Changes) -> None:
    for kind in (ChangeKind.GROW, ChangeKind.DELETE, ChangeKind.CONFIGURE):
        assert (await changes.one(change(kind)))[0] == "unknown_topic_or_partition"


@pytest.mark.parametrize("kind", [ChangeKind.DELETE, ChangeKind.CONFIGURE], ids=str)
async def test_what_went_a_moment_ago_is_not_there(changes: Changes, kind: ChangeKind) -> None:
    """The operator has not seen its end yet."""
    changes.world.make_topic("t")
    changes.world.api.fail("get Topic", NotFound(404, "topics t not found"))
    assert (await changes.one(change(kind)))[0] == "unknown_topic_or_partition"


@pytest.mark.parametrize(
    ("name", "error"), [("a b", "invalid_topic_exception"), ("", "invalid_request")]
)
async def test_what_can_be_no_topic_has_no_configuration(
    changes: Changes, name: str, error: str
) -> None:
    assert (await changes.one(change(ChangeKind.CONFIGURE, name=name)))[0] == error


# ---------------------------------------------------------------- who else describes it


async def test_a_field_of_gits_manifest_is_not_changed(changes: Changes) -> None:
    changes.world.make_topic(partitions=2)
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "partitions"))
    told, text = await changes.one(change(ChangeKind.GROW, partitions=3))
    assert told == "policy_violation"
    assert GIT in text
    assert "spec.partitions" in text
    assert changes.spec()["partitions"] == 2


async def test_a_key_beside_those_of_gits_manifest_may_be_set(changes: Changes) -> None:
    changes.world.make_topic(config={"retention.ms": "1"})
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "config", "retention.ms"))
    asked = change(ChangeKind.CONFIGURE, settings=settings(segment_ms="7"))
    assert await changes.one(asked) == ("none", "")
    assert changes.spec()["config"] == {"retention.ms": "1", "segment.ms": "7"}


async def test_a_key_of_gits_manifest_is_not_taken_away(changes: Changes) -> None:
    """Server-side apply would leave it, without a word."""
    changes.world.make_topic(config={"retention.ms": "1"})
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "config", "retention.ms"))
    asked = change(ChangeKind.CONFIGURE, settings=settings(retention_ms=None))
    told, text = await changes.one(asked)
    assert told == "policy_violation"
    assert f"spec.config.retention.ms is managed by {GIT}" in text


async def test_a_topic_of_gits_manifest_is_not_deleted(changes: Changes) -> None:
    changes.world.make_topic()
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "partitions"))
    told, text = await changes.one(change(ChangeKind.DELETE))
    assert told == "policy_violation"
    assert GIT in text
    assert changes.world.server.find(TOPIC, "t") is not None


# ---------------------------------------------------------------- configuration


async def test_settings_are_kept_while_others_change(changes: Changes) -> None:
    await changes(create(settings=settings(retention_ms="5", segment_ms="6")))
    asked = settings(retention_ms=None, max_message_bytes="7")
    assert await changes.one(change(ChangeKind.CONFIGURE, settings=asked)) == ("none", "")
    assert changes.spec()["config"] == {"segment.ms": "6", "max.message.bytes": "7"}
    assert changes.spec()["partitions"] == 1


async def test_the_old_request_replaces_all_settings(changes: Changes) -> None:
    await changes(create(settings=settings(retention_ms="5", segment_ms="6")))
    asked = change(ChangeKind.CONFIGURE, settings=settings(segment_ms="8"), is_whole=True)
    assert await changes.one(asked) == ("none", "")
    assert changes.spec()["config"] == {"segment.ms": "8"}


def _for_all_brokers(**fields: Any) -> TopicChange:
    asked = {"settings": (), "is_whole": False} | fields
    return change(ChangeKind.CONFIGURE_CLUSTER, "", **asked)


async def test_what_is_set_for_all_brokers_is_the_clusters_configuration(changes: Changes) -> None:
    await changes(create())
    asked = settings(log_retention_ms="5", message_max_bytes="3")
    changes.world.journal.clear()
    assert await changes.one(_for_all_brokers(settings=asked)) == ("none", "")
    body = changes.world.server.find(CLUSTER, "main")
    assert body is not None
    assert body["spec"]["config"] == {"log.retention.ms": "5", "message.max.bytes": "3"}
    assert "published brokers" in changes.world.journal, "brokers receive it"
    (topic,) = changes.world.services.state.topics.values()
    assert topic.config["retention.ms"] == "5"
    event = changes.world.events.emitted[-1]
    assert (event.kind, event.reason) == ("Cluster", "ChangedByClient")
    assert "by User:alice at 10.0.0.7" in event.message

    less = settings(message_max_bytes=None)
    assert await changes.one(_for_all_brokers(settings=less), validate_only=True) == ("none", "")
    assert dict(changes.world.services.state.cluster.config) == body["spec"]["config"]
    only = settings(message_max_bytes="4")
    assert await changes.one(_for_all_brokers(settings=only, is_whole=True)) == ("none", "")
    assert dict(changes.world.services.state.cluster.config) == {"message.max.bytes": "4"}


async def test_the_old_request_leaves_what_kafka_cannot_change(changes: Changes) -> None:
    changes.world.edit(CLUSTER, "main", config={"num.partitions": "3", "log.retention.ms": "5"})
    asked = _for_all_brokers(settings=settings(message_max_bytes="4"), is_whole=True)
    changes.world.server.hold(CLUSTER, "main", MANAGER, ("spec", "config", "log.retention.ms"))
    assert await changes.one(asked) == ("none", "")
    assert dict(changes.world.services.state.cluster.config) == {
        "num.partitions": "3",
        "message.max.bytes": "4",
    }


@pytest.mark.parametrize(
    ("asked", "error", "message"),
    [
        (
            settings(node_id="7"),
            "invalid_request",
            "Cannot update these configs dynamically: node.id",
        ),
        (settings(retention_ms="7"), "invalid_request", "dynamically: retention.ms"),
        (settings(log_retention_ms="soon"), "invalid_request", "must be a whole number"),
        (settings(log_preallocate="true"), "invalid_request", "is not served"),
        (settings(num_partitions="1"), "invalid_request", "dynamically: num.partitions"),
        (settings(log_retention_ms="1") * 2, "invalid_request", "set twice"),
        (settings(message_max_bytes="7"), "policy_violation", GIT),
        (settings(message_max_bytes=None), "policy_violation", GIT),
    ],
    ids=[
        "static",
        "a topic's",
        "bad value",
        "not served",
        "the Cluster's",
        "twice",
        "git's",
        "git's, to go",
    ],
)
async def test_what_is_not_set_for_all_brokers(
    changes: Changes, asked: tuple[Setting, ...], error: str, message: str
) -> None:
    changes.world.edit(CLUSTER, "main", config={"message.max.bytes": "6"})
    held = ("spec", "config", "message.max.bytes")
    changes.world.server.hold(CLUSTER, "main", GIT, held)
    told, text = await changes.one(_for_all_brokers(settings=asked))
    assert told == error
    assert message in text
    assert dict(changes.world.services.state.cluster.config) == {"message.max.bytes": "6"}


async def test_what_is_set_for_a_group_is_in_the_cluster(changes: Changes) -> None:
    def of(name: str, **asked: Any) -> TopicChange:
        fields = {"settings": (), "is_whole": False} | asked
        return change(ChangeKind.CONFIGURE_GROUP, name, **fields)

    changes.world.edit(CLUSTER, "main", config=UNDER_REPLICATED)
    session = settings(consumer_session_timeout_ms="50000")
    changes.world.journal.clear()
    assert await changes.one(of("g", settings=session)) == ("none", "")
    cluster = changes.world.services.state.cluster
    assert cluster.groups == {"g": {"consumer.session.timeout.ms": "50000"}}
    assert "published brokers" in changes.world.journal, "brokers receive it"
    (told,) = snapshot.full(changes.world.services.state).groups
    assert (told.group_id, [(item.name, item.value) for item in told.config]) == (
        "g",
        [("consumer.session.timeout.ms", "50000")],
    )
    unknown = settings(consumer_x="1")
    assert (await changes.one(of("g", settings=unknown)))[0] == "invalid_config"
    bad = settings(consumer_session_timeout_ms="soon")
    assert (await changes.one(of("g", settings=bad)))[0] == "invalid_config"
    other = settings(consumer_heartbeat_interval_ms="6000")
    assert await changes.one(of("h", settings=other)) == ("none", "")
    less = settings(consumer_session_timeout_ms=None)
    assert await changes.one(of("g", settings=less)) == ("none", "")
    assert changes.world.services.state.cluster.groups == {
        "h": {"consumer.heartbeat.interval.ms": "6000"}
    }
    assert await changes.one(of("h", is_whole=True)) == ("none", "")
    assert changes.world.services.state.cluster.groups == {}


async def test_groups_with_a_configuration_have_a_limit(changes: Changes) -> None:
    full = {f"g{number}": {"consumer.session.timeout.ms": "50000"} for number in range(GROUPS_MAX)}
    changes.world.edit(CLUSTER, "main", groups=full)
    asked = settings(consumer_session_timeout_ms="50000")
    error, message = await changes.one(
        change(ChangeKind.CONFIGURE_GROUP, "one more", settings=asked)
    )
    assert error == "policy_violation"
    assert "Remove one" in message
    asked = settings(consumer_session_timeout_ms="51000")
    assert await changes.one(change(ChangeKind.CONFIGURE_GROUP, "g0", settings=asked)) == (
        "none",
        "",
    )


@pytest.mark.parametrize("kind", [ChangeKind.CONFIGURE, ChangeKind.CONFIGURE_CLUSTER])
async def test_what_is_not_set_may_be_taken_away(changes: Changes, kind: ChangeKind) -> None:
    """As Kafka's own tool does with the throttles of replication once a partition has moved."""
    await changes(create())
    less = settings(leader_replication_throttled_rate=None)
    assert await changes.one(change(kind, settings=less)) == ("none", "")


async def test_a_list_is_appended_to_and_taken_from(changes: Changes) -> None:
    await changes(create())

    def part(operation: SettingOperation) -> TopicChange:
        one = Setting(name="cleanup.policy", value="compact", operation=operation)
        return change(ChangeKind.CONFIGURE, settings=(one,))

    assert await changes.one(part(SettingOperation.APPEND)) == ("none", "")
    assert changes.spec()["config"] == {"cleanup.policy": "delete,compact"}
    assert await changes.one(part(SettingOperation.SUBTRACT)) == ("none", "")
    assert changes.spec()["config"] == {"cleanup.policy": "delete"}
    wrong = Setting(name="retention.ms", value="1", operation=SettingOperation.APPEND)
    told = await changes.one(change(ChangeKind.CONFIGURE, settings=(wrong,)))
    assert told[0] == "invalid_config"


async def test_concurrent_changes_of_another_operator_are_kept(changes: Changes) -> None:
    """A late request of a stuck operator, or of one that gave up waiting, names not every setting:
    it must not remove settings that a client knows to be in force.
    """
    await changes(create(settings=settings(retention_ms="5")))

    def overtake(call: str) -> None:
        if call.startswith("apply_fields"):
            changes.world.api.before = changes.world.journal.append
            body = changes.object()
            held = {**body["spec"], "config": {"retention.ms": "5", "segment.ms": "6"}}
            patch = {"metadata": {"name": "t"}, "spec": held}
            changes.world.server.apply_fields("other", TOPIC, "t", patch, MANAGER)

    changes.world.api.before = overtake
    asked = change(ChangeKind.CONFIGURE, settings=settings(max_message_bytes="7"))
    assert await changes.one(asked) == ("none", "")
    config = {"retention.ms": "5", "segment.ms": "6", "max.message.bytes": "7"}
    assert changes.spec()["config"] == config


async def test_a_change_that_others_always_overtake_is_to_be_retried(
    changes: Changes,
) -> None:
    await changes(create())
    changes.world.api.fail("apply_fields Topic", Conflict(409, "modified"), times=100)
    asked = change(ChangeKind.GROW, partitions=2)
    told, text = await changes.one(asked)
    assert told == "not_controller"
    assert "Retry the request" in text


async def test_a_lag_is_compared_with_the_clusters_default(changes: Changes) -> None:
    changes.world.edit(CLUSTER, "main", config={"log.cleaner.max.compaction.lag.ms": "6"})
    await changes.one(create())

    def least(ms: str) -> TopicChange:
        return change(ChangeKind.CONFIGURE, settings=settings(min_compaction_lag_ms=ms))

    assert (await changes.one(least("7")))[0] == "invalid_config"
    assert await changes.one(least("6")) == ("none", "")


# ---------------------------------------------------------------- replicas and leaders


async def _placed(changes: Changes, replicas: int) -> None:
    """Topic t with one partition that is served."""
    await changes(create(replicas=replicas))
    await TopicReconciler(changes.world.services).reconcile(changes.world.key(TOPIC, "t"))


async def _in_parts(changes: Changes, asked: TopicChange) -> dict[int, str]:
    (result,) = await changes.results(asked)
    assert result.error_code == 0
    return {part.partition: ErrorCode(part.error_code).name for part in result.parts}


async def test_a_partition_is_given_other_replicas(changes: Changes) -> None:
    await _placed(changes, replicas=1)
    (row,) = changes.world.services.state.all_rows()
    other = 3 - row.leader
    asked = change(ChangeKind.REASSIGN, assignments=(Assignment(partition=0, replicas=(other,)),))
    assert await _in_parts(changes, asked) == {0: "none"}
    (moving,) = changes.world.services.state.all_rows()
    assert (moving.adding, moving.removing) == ((other,), (row.leader,))
    assert changes.spec()["replicationFactor"] == 1
    assert "ReassignedByClient" in changes.world.events.reasons


async def test_a_manifests_replication_factor_follows_a_move(changes: Changes) -> None:
    await _placed(changes, replicas=2)
    asked = change(ChangeKind.REASSIGN, assignments=(Assignment(partition=0, replicas=(2,)),))
    assert await _in_parts(changes, dataclasses.replace(asked, keeps_factor=True)) == {
        0: "invalid_replication_factor"
    }
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "partitions"))
    assert await _in_parts(changes, asked) == {0: "none"}
    assert changes.spec()["replicationFactor"] == 1


async def test_a_factor_that_a_move_could_not_write_is_written_later(changes: Changes) -> None:
    """An operator that dies between the two leaves the move, and a client that may never ask
    again: the manifest is Kafka's clients' own, so it was such a move that made them differ."""
    await _placed(changes, replicas=2)
    asked = change(ChangeKind.REASSIGN, assignments=(Assignment(partition=0, replicas=(2,)),))
    changes.world.api.fail("apply_fields Topic")
    assert await changes.one(asked) == ("request_timed_out", "no answer")
    reconciler = TopicReconciler(changes.world.services)
    for _ in range(2):
        await reconciler.reconcile(changes.world.key(TOPIC, "t"))
    assert changes.spec()["replicationFactor"] == 1
    assert changes.world.condition(TOPIC, "t", "Stalled")[0] == "False"
    assert not changes.world.services.state.resizing, "the manifest followed, not the partitions"


@pytest.mark.parametrize("is_git", [False, True])
async def test_a_restored_number_of_partitions_follows_the_brokers(
    changes: Changes, is_git: bool
) -> None:
    """Only if Kafka's clients alone have written the number; a person corrects their own."""
    await _placed(changes, replicas=2)
    if is_git:
        changes.world.server.hold(TOPIC, "t", GIT, ("spec", "partitions"))
    services = changes.world.services
    (row,) = services.state.all_rows()
    second = dataclasses.replace(row, partition=1, name="")
    told = topic_state(
        row.topic_id, "t", partitions=tuple(map(snapshot.partition_state, (row, second)))
    )
    for node_id in (1, 2):
        services.state.take_held(node_id, [told])
    reconciler = TopicReconciler(services)
    for _ in range(3):
        await reconciler.reconcile(changes.world.key(TOPIC, "t"))
    assert [*services.state.rows_of(row.topic_id)] == [0, 1]
    assert changes.spec()["partitions"] == (1 if is_git else 2)
    reason = changes.world.condition(TOPIC, "t", "Stalled")[1]
    assert (reason == "PartitionsBeyondSpec") == is_git
    assert await changes.one(change(ChangeKind.GROW, partitions=2)) == (
        "invalid_partitions",
        "Topic already has 2 partition(s).",
    )


async def test_partitions_follow_a_factor_that_a_person_has_written(changes: Changes) -> None:
    """The request must neither be refused nor reset the replication factor."""
    await _placed(changes, replicas=2)
    changes.world.edit(TOPIC, "t", replicationFactor=1)
    changes.world.server.hold(TOPIC, "t", "kubectl-edit", ("spec", "replicationFactor"))
    reconciler = TopicReconciler(changes.world.services)
    await reconciler.reconcile(changes.world.key(TOPIC, "t"))
    assert changes.spec()["replicationFactor"] == 1
    assert changes.world.condition(TOPIC, "t", "Stalled")[0] == "False"
    services = changes.world.services
    await services.committer.decide(replication_factor_changes.step)
    (row,) = services.state.all_rows()
    assert (len(row.replicas), row.leader) == (1, *row.isr)
    await reconciler.reconcile(changes.world.key(TOPIC, "t"))
    assert changes.world.condition(TOPIC, "t", "FullyReplicated")[1] != "ReplicationFactorChanging"
    assert not services.state.resizing


async def test_leaders_are_elected(changes: Changes) -> None:
    await _placed(changes, replicas=2)
    asked = change(ChangeKind.ELECT, assignments=(Assignment(partition=0, replicas=()),))
    assert await _in_parts(changes, asked) == {0: "election_not_needed"}


# ---------------------------------------------------------------- deleting


async def test_a_topic_that_a_client_made_is_deleted_by_name_and_by_id(changes: Changes) -> None:
    made = await changes.results(create("a"), create("b"))
    by_id = change(ChangeKind.DELETE, name=None, topic_id=made[1].topic_id)
    assert await changes(change(ChangeKind.DELETE, "a"), by_id) == [("none", ""), ("none", "")]
    assert changes.world.server.of_kind(TOPIC) == []
    assert changes.world.events.reasons[2:] == ["DeletedByClient"] * 2
    assert (await changes.one(by_id))[0] == "unknown_topic_id"


async def test_a_topic_that_was_made_again_is_not_taken_for_the_one_before(
    changes: Changes,
) -> None:
    """The controller does not know of it yet."""
    (made,) = await changes.results(create(partitions=2))
    former = changes.object()
    changes.world.server.watchers.clear()
    changes.world.server.delete("git", TOPIC, "t", uid=former["metadata"]["uid"])
    again = {"metadata": {"name": "t"}, "spec": former["spec"]}
    changes.world.server.create("git", TOPIC, former["metadata"]["namespace"], again)
    by_id = change(ChangeKind.DELETE, name=None, topic_id=made.topic_id)
    assert (await changes.one(by_id))[0] == "unknown_topic_id"
    assert (await changes.one(change(ChangeKind.DELETE)))[0] == "not_controller"
    assert (await changes.one(change(ChangeKind.GROW, partitions=3)))[0] == "not_controller"
    assert changes.spec() == former["spec"]


async def test_deletion_can_be_switched_off(changes: Changes) -> None:
    await changes(create())
    changes.world.edit(CLUSTER, "main", config={"delete.topic.enable": "false"})
    assert (await changes.one(change(ChangeKind.DELETE)))[0] == "topic_deletion_disabled"


async def test_what_brokers_keep_their_state_in_is_not_deleted(changes: Changes) -> None:
    await changes(create("__consumer_offsets", settings=settings(cleanup_policy="compact")))
    told, text = await changes.one(change(ChangeKind.DELETE, "__consumer_offsets"))
    assert told == "policy_violation"
    assert "internal" in text


def test_a_clients_text_does_not_make_a_message_too_long() -> None:
    told = refused(ErrorCode.invalid_config, f"Unknown topic config name: {'x' * 0x7FFF}").result()
    assert told.error_message is not None
    assert len(told.error_message) == 2000
