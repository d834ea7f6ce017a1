"""Changes by Kafka clients on an API server: resulting objects and answers."""

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
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.resources.cluster import GROUPS_MAX
from tidemark_operator.topic_changes.changer import TopicChanger
from tidemark_operator.topic_changes.refusal import refused

TIERED = {"remote.log.storage.system.enable": "true"}
GIT = "argocd-controller"


class Changes:
    """Cluster of two brokers, with the changer of its topics."""

    def __init__(self, world: ShellWorld) -> None:
        self.world = world
        self.changer = TopicChanger(world.services)

    async def __call__(self, *changes: TopicChange, **fields: Any) -> list[tuple[str, str]]:
        """Apply changes and return the error and message of each."""
        return [error_and_message(result) for result in await self.results(*changes, **fields)]

    async def results(self, *changes: TopicChange, **fields: Any) -> list[TopicChangeResult]:
        answer = await self.changer.change(request(*changes, **fields))
        assert answer.error_code == 0
        return list(answer.results)

    async def one(self, requested: TopicChange, **fields: Any) -> tuple[str, str]:
        (answer,) = await self(requested, **fields)
        return answer

    def object(self, name: str = "t") -> Json:
        body = self.world.server.find(TOPIC, name)
        assert body is not None
        return body

    def spec(self, name: str = "t") -> Json:
        spec: Json = self.object(name)["spec"]
        return spec


def error_and_message(result: TopicChangeResult) -> tuple[str, str]:
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
async def test_topic_name_is_converted_to_an_object_name(
    changes: Changes, topic: str, begins: str
) -> None:
    assert await changes.one(create(topic)) == ("none", "")
    (body,) = changes.world.server.of_kind(TOPIC)
    assert body["metadata"]["name"].startswith(begins)
    assert body["spec"]["topicName"] == topic


async def test_used_object_name_is_avoided(changes: Changes) -> None:
    changes.world.make_topic("orders", topicName="invoices")
    assert await changes.one(create("orders")) == ("none", "")
    assert changes.spec("orders")["topicName"] == "invoices"
    assert len(changes.world.server.of_kind(TOPIC)) == 2


async def test_omitted_counts_are_the_cluster_defaults(changes: Changes) -> None:
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
    # The watch has delivered the Cluster's new configuration.
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
async def test_invalid_changes_are_refused_as_in_kafka(changes: Changes, case: str) -> None:
    requested, error, message = REFUSED[case]
    error_name, text = await changes.one(requested)
    assert error_name == error
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
async def test_duplicate_and_colliding_names_are_refused(
    changes: Changes, former: str, name: str, error: str
) -> None:
    """The same applies to two requests in one call."""
    assert [error_name for error_name, _ in await changes(create(former), create(name))] == [
        "none",
        error,
    ]


async def test_an_assignment_determines_the_placement(changes: Changes) -> None:
    assignments = (
        Assignment(partition=1, replicas=(2, 1)),
        Assignment(partition=0, replicas=(1, 2)),
    )
    requested = create(partitions=-1, replicas=-1, assignments=assignments)
    assert await changes.one(requested) == ("none", "")
    topic = changes.world.services.state.topics["ns/t"]
    assert topic.assignments == {0: (1, 2), 1: (2, 1)}
    assert (topic.partitions, topic.replication_factor) == (2, 2)


async def test_placeholders_are_accepted_if_the_cluster_allows_them(changes: Changes) -> None:
    changes.world.edit(CLUSTER, "main", config=UNDER_REPLICATED)
    assert await changes.one(create(replicas=3)) == ("none", "")


async def test_coordinator_topic_is_created_with_few_brokers(
    changes: Changes,
) -> None:
    config = settings(cleanup_policy="compact", min_insync_replicas="2")
    # Kafka's default of 3 replicas, with only two brokers.
    requested = create("__consumer_offsets", 5, 3, automatic=True, settings=config)
    assert await changes.one(requested) == ("none", "")
    (body,) = changes.world.server.of_kind(TOPIC)
    assert body["metadata"]["labels"] == {"tidemark.dev/internal": "true"}
    assert body["spec"]["topicName"] == "__consumer_offsets"


async def test_too_many_changes_in_a_message_are_refused(changes: Changes) -> None:
    answers = await changes(*[create(f"t{number}") for number in range(101)])
    assert {error for error, _ in answers} == {"invalid_request"}
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
async def test_refusals_of_the_api_server_are_answered(
    changes: Changes, error: Any, code: str
) -> None:
    # The API server refuses the write, for instance by an admission webhook.
    changes.world.api.fail("apply_fields Topic", error)
    error_name, text = await changes.one(create())
    assert error_name == code
    assert (error.message if error else "no answer") in text


# ---------------------------------------------------------------- growing


async def test_partitions_are_added(changes: Changes) -> None:
    await changes(create(partitions=2))
    (result,) = await changes.results(change(ChangeKind.GROW, partitions=5))
    assert (result.error_code, result.partitions) == (0, 5)
    assert changes.spec()["partitions"] == 5
    assert changes.object()["metadata"]["generation"] == 2


@pytest.mark.parametrize(("count", "message"), [(2, "already has 2"), (1, "not be an increase")])
async def test_partition_count_never_decreases(changes: Changes, count: int, message: str) -> None:
    await changes(create(partitions=2))
    error_name, text = await changes.one(change(ChangeKind.GROW, partitions=count))
    assert error_name == "invalid_partitions"
    assert message in text


async def test_coordinator_topic_cannot_grow(changes: Changes) -> None:
    """Groups would be mapped to other partitions than those with their offsets."""
    compacted = settings(cleanup_policy="compact")
    await changes(create("__consumer_offsets", partitions=2, settings=compacted))
    error_name, text = await changes.one(
        change(ChangeKind.GROW, "__consumer_offsets", partitions=3)
    )
    assert error_name == "invalid_partitions"
    assert "number of partitions" in text


async def test_growth_needs_enough_brokers(changes: Changes) -> None:
    changes.world.make_topic(replicas=3)
    error_name, text = await changes.one(change(ChangeKind.GROW, partitions=2))
    # One broker is missing for the existing factor of three.
    assert error_name == "invalid_replication_factor"
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


async def test_unknown_topic_is_not_changed(changes: Changes) -> None:
    for kind in (ChangeKind.GROW, ChangeKind.DELETE, ChangeKind.CONFIGURE):
        assert (await changes.one(change(kind)))[0] == "unknown_topic_or_partition"


@pytest.mark.parametrize("kind", [ChangeKind.DELETE, ChangeKind.CONFIGURE], ids=str)
async def test_just_deleted_topic_is_unknown(changes: Changes, kind: ChangeKind) -> None:
    """The watch has not delivered the deletion yet."""
    changes.world.make_topic("t")
    # The deletion reaches the operator after this request.
    changes.world.api.fail("get Topic", NotFound(404, "topics t not found"))
    assert (await changes.one(change(kind)))[0] == "unknown_topic_or_partition"


@pytest.mark.parametrize(
    ("name", "error"), [("a b", "invalid_topic_exception"), ("", "invalid_request")]
)
async def test_invalid_topic_name_has_no_configuration(
    changes: Changes, name: str, error: str
) -> None:
    assert (await changes.one(change(ChangeKind.CONFIGURE, name=name)))[0] == error


# ---------------------------------------------------------------- other field managers


async def test_a_field_of_gits_manifest_is_not_changed(changes: Changes) -> None:
    changes.world.make_topic(partitions=2)
    # Argo CD manages the field by server-side apply.
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "partitions"))
    error_name, text = await changes.one(change(ChangeKind.GROW, partitions=3))
    assert error_name == "policy_violation"
    assert GIT in text
    assert "spec.partitions" in text
    assert changes.spec()["partitions"] == 2


async def test_key_outside_gits_manifest_may_be_set(changes: Changes) -> None:
    changes.world.make_topic(config={"retention.ms": "1"})
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "config", "retention.ms"))
    requested = change(ChangeKind.CONFIGURE, settings=settings(segment_ms="7"))
    assert await changes.one(requested) == ("none", "")
    assert changes.spec()["config"] == {"retention.ms": "1", "segment.ms": "7"}


async def test_key_of_gits_manifest_is_not_removed(changes: Changes) -> None:
    """Server-side apply would silently keep the key."""
    changes.world.make_topic(config={"retention.ms": "1"})
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "config", "retention.ms"))
    requested = change(ChangeKind.CONFIGURE, settings=settings(retention_ms=None))
    error_name, text = await changes.one(requested)
    assert error_name == "policy_violation"
    assert f"spec.config.retention.ms is managed by {GIT}" in text


async def test_a_topic_of_gits_manifest_is_not_deleted(changes: Changes) -> None:
    changes.world.make_topic()
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "partitions"))
    error_name, text = await changes.one(change(ChangeKind.DELETE))
    assert error_name == "policy_violation"
    assert GIT in text
    assert changes.world.server.find(TOPIC, "t") is not None


# ---------------------------------------------------------------- configuration


async def test_settings_are_kept_while_others_change(changes: Changes) -> None:
    await changes(create(settings=settings(retention_ms="5", segment_ms="6")))
    requested = settings(retention_ms=None, max_message_bytes="7")
    assert await changes.one(change(ChangeKind.CONFIGURE, settings=requested)) == ("none", "")
    assert changes.spec()["config"] == {"segment.ms": "6", "max.message.bytes": "7"}
    assert changes.spec()["partitions"] == 1


async def test_alter_configs_replaces_all_settings(changes: Changes) -> None:
    await changes(create(settings=settings(retention_ms="5", segment_ms="6")))
    requested = change(ChangeKind.CONFIGURE, settings=settings(segment_ms="8"), replaces_all=True)
    assert await changes.one(requested) == ("none", "")
    assert changes.spec()["config"] == {"segment.ms": "8"}


def _for_all_brokers(**fields: Any) -> TopicChange:
    requested = {"settings": (), "replaces_all": False} | fields
    return change(ChangeKind.CONFIGURE_CLUSTER, "", **requested)


async def test_config_of_all_brokers_is_stored_in_the_cluster(changes: Changes) -> None:
    await changes(create())
    requested = settings(log_retention_ms="5", message_max_bytes="3")
    changes.world.journal.clear()
    assert await changes.one(_for_all_brokers(settings=requested)) == ("none", "")
    body = changes.world.server.find(CLUSTER, "main")
    assert body is not None
    assert body["spec"]["config"] == {"log.retention.ms": "5", "message.max.bytes": "3"}
    assert "published brokers" in changes.world.journal, "brokers receive it"
    (topic,) = changes.world.services.state.topics.values()
    assert topic.config["retention.ms"] == "5"
    event = changes.world.events.emitted[-1]
    assert (event.kind, event.reason) == ("Cluster", "ChangedByClient")
    assert "by User:alice at 10.0.0.7" in event.message

    # Validation only: the key stays set.
    less = settings(message_max_bytes=None)
    assert await changes.one(_for_all_brokers(settings=less), validate_only=True) == ("none", "")
    assert dict(changes.world.services.state.cluster.config) == body["spec"]["config"]
    # The older AlterConfigs replaces all dynamic keys.
    only = settings(message_max_bytes="4")
    assert await changes.one(_for_all_brokers(settings=only, replaces_all=True)) == ("none", "")
    assert dict(changes.world.services.state.cluster.config) == {"message.max.bytes": "4"}


async def test_alter_configs_keeps_keys_that_kafka_cannot_change(changes: Changes) -> None:
    changes.world.edit(CLUSTER, "main", config={"num.partitions": "3", "log.retention.ms": "5"})
    requested = _for_all_brokers(settings=settings(message_max_bytes="4"), replaces_all=True)
    # AlterConfigs may remove what Kafka clients have set themselves.
    changes.world.server.hold(CLUSTER, "main", MANAGER, ("spec", "config", "log.retention.ms"))
    assert await changes.one(requested) == ("none", "")
    assert dict(changes.world.services.state.cluster.config) == {
        "num.partitions": "3",
        "message.max.bytes": "4",
    }


@pytest.mark.parametrize(
    ("requested", "error", "message"),
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
async def test_invalid_config_of_all_brokers_is_refused(
    changes: Changes, requested: tuple[Setting, ...], error: str, message: str
) -> None:
    changes.world.edit(CLUSTER, "main", config={"message.max.bytes": "6"})
    path = ("spec", "config", "message.max.bytes")
    changes.world.server.hold(CLUSTER, "main", GIT, path)
    error_name, text = await changes.one(_for_all_brokers(settings=requested))
    assert error_name == error
    assert message in text
    assert dict(changes.world.services.state.cluster.config) == {"message.max.bytes": "6"}


async def test_group_config_is_stored_in_the_cluster(changes: Changes) -> None:
    def of(name: str, **requested: Any) -> TopicChange:
        fields = {"settings": (), "replaces_all": False} | requested
        return change(ChangeKind.CONFIGURE_GROUP, name, **fields)

    changes.world.edit(CLUSTER, "main", config=UNDER_REPLICATED)
    session = settings(consumer_session_timeout_ms="50000")
    changes.world.journal.clear()
    assert await changes.one(of("g", settings=session)) == ("none", "")
    cluster = changes.world.services.state.cluster
    assert cluster.groups == {"g": {"consumer.session.timeout.ms": "50000"}}
    assert "published brokers" in changes.world.journal, "brokers receive it"
    (group,) = snapshot.full(changes.world.services.state).groups
    assert (group.group_id, [(item.name, item.value) for item in group.config]) == (
        "g",
        [("consumer.session.timeout.ms", "50000")],
    )
    # Unknown keys and invalid values are refused, as for topics.
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
    assert await changes.one(of("h", replaces_all=True)) == ("none", "")
    assert changes.world.services.state.cluster.groups == {}


async def test_groups_with_a_configuration_have_a_limit(changes: Changes) -> None:
    # As many groups as the limit allows.
    full = {f"g{number}": {"consumer.session.timeout.ms": "50000"} for number in range(GROUPS_MAX)}
    changes.world.edit(CLUSTER, "main", groups=full)
    requested = settings(consumer_session_timeout_ms="50000")
    error, message = await changes.one(
        change(ChangeKind.CONFIGURE_GROUP, "one more", settings=requested)
    )
    assert error == "policy_violation"
    assert "Remove one" in message
    # An existing group may still be changed at the limit.
    requested = settings(consumer_session_timeout_ms="51000")
    assert await changes.one(change(ChangeKind.CONFIGURE_GROUP, "g0", settings=requested)) == (
        "none",
        "",
    )


@pytest.mark.parametrize("kind", [ChangeKind.CONFIGURE, ChangeKind.CONFIGURE_CLUSTER])
async def test_unset_key_may_be_removed(changes: Changes, kind: ChangeKind) -> None:
    """Kafka's reassignment tool removes replication throttles that were never set."""
    await changes(create())
    less = settings(leader_replication_throttled_rate=None)
    assert await changes.one(change(kind, settings=less)) == ("none", "")


async def test_append_and_subtract_change_a_list(changes: Changes) -> None:
    await changes(create())

    def part(operation: SettingOperation) -> TopicChange:
        one = Setting(name="cleanup.policy", value="compact", operation=operation)
        return change(ChangeKind.CONFIGURE, settings=(one,))

    assert await changes.one(part(SettingOperation.APPEND)) == ("none", "")
    assert changes.spec()["config"] == {"cleanup.policy": "delete,compact"}
    assert await changes.one(part(SettingOperation.SUBTRACT)) == ("none", "")
    assert changes.spec()["config"] == {"cleanup.policy": "delete"}
    # APPEND is only valid for keys that are lists.
    wrong = Setting(name="retention.ms", value="1", operation=SettingOperation.APPEND)
    answer = await changes.one(change(ChangeKind.CONFIGURE, settings=(wrong,)))
    assert answer[0] == "invalid_config"


async def test_concurrent_changes_of_another_operator_are_kept(changes: Changes) -> None:
    """A late request of a stuck operator does not contain all settings and must not remove any."""
    await changes(create(settings=settings(retention_ms="5")))

    def overtake(call: str) -> None:
        if call.startswith("apply_fields"):
            # Another operator of the pair applies the same field manager's settings first.
            changes.world.api.before = changes.world.journal.append
            body = changes.object()
            spec = {**body["spec"], "config": {"retention.ms": "5", "segment.ms": "6"}}
            patch = {"metadata": {"name": "t"}, "spec": spec}
            changes.world.server.apply_fields("other", TOPIC, "t", patch, MANAGER)

    changes.world.api.before = overtake
    requested = change(ChangeKind.CONFIGURE, settings=settings(max_message_bytes="7"))
    assert await changes.one(requested) == ("none", "")
    config = {"retention.ms": "5", "segment.ms": "6", "max.message.bytes": "7"}
    assert changes.spec()["config"] == config


async def test_change_with_endless_conflicts_is_retriable(
    changes: Changes,
) -> None:
    await changes(create())
    changes.world.api.fail("apply_fields Topic", Conflict(409, "modified"), times=100)
    requested = change(ChangeKind.GROW, partitions=2)
    error_name, text = await changes.one(requested)
    assert error_name == "not_controller"
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
    """Create topic t and place its only partition."""
    await changes(create(replicas=replicas))
    await TopicReconciler(changes.world.services).reconcile(changes.world.key(TOPIC, "t"))


async def codes_by_partition(changes: Changes, requested: TopicChange) -> dict[int, str]:
    (result,) = await changes.results(requested)
    assert result.error_code == 0
    return {part.partition: ErrorCode(part.error_code).name for part in result.parts}


async def test_reassignment_moves_a_partition(changes: Changes) -> None:
    await _placed(changes, replicas=1)
    (row,) = changes.world.services.state.all_rows()
    # The other one of brokers 1 and 2.
    other = 3 - row.leader
    requested = change(
        ChangeKind.REASSIGN, assignments=(Assignment(partition=0, replicas=(other,)),)
    )
    assert await codes_by_partition(changes, requested) == {0: "none"}
    (moving,) = changes.world.services.state.all_rows()
    assert (moving.adding, moving.removing) == ((other,), (row.leader,))
    assert changes.spec()["replicationFactor"] == 1
    assert "ReassignedByClient" in changes.world.events.reasons


async def test_a_manifests_replication_factor_follows_a_move(changes: Changes) -> None:
    await _placed(changes, replicas=2)
    requested = change(ChangeKind.REASSIGN, assignments=(Assignment(partition=0, replicas=(2,)),))
    assert await codes_by_partition(changes, dataclasses.replace(requested, keeps_factor=True)) == {
        0: "invalid_replication_factor"
    }
    # The factor is not among Git's fields, so the spec may follow the move.
    changes.world.server.hold(TOPIC, "t", GIT, ("spec", "partitions"))
    assert await codes_by_partition(changes, requested) == {0: "none"}
    assert changes.spec()["replicationFactor"] == 1


async def test_factor_of_an_interrupted_reassignment_is_written_later(changes: Changes) -> None:
    """The operator fails between the move and the write of the spec.

    Only Kafka clients manage the field, so the move must be the reason for the difference.
    """
    await _placed(changes, replicas=2)
    requested = change(ChangeKind.REASSIGN, assignments=(Assignment(partition=0, replicas=(2,)),))
    # The move is committed, and then the write of the spec times out.
    changes.world.api.fail("apply_fields Topic")
    assert await changes.one(requested) == ("request_timed_out", "no answer")
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
    """This applies only if Kafka clients alone manage the field."""
    await _placed(changes, replicas=2)
    if is_git:
        changes.world.server.hold(TOPIC, "t", GIT, ("spec", "partitions"))
    services = changes.world.services
    # Both brokers report a second partition, which the restored objects lack.
    (row,) = services.state.all_rows()
    second = dataclasses.replace(row, partition=1, name="")
    report = topic_state(
        row.topic_id, "t", partitions=tuple(map(snapshot.partition_state, (row, second)))
    )
    for node_id in (1, 2):
        services.state.take_replica_report(node_id, [report])
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


async def test_partitions_follow_a_factor_written_by_a_user(changes: Changes) -> None:
    """The request must neither be refused nor reset the replication factor."""
    await _placed(changes, replicas=2)
    changes.world.edit(TOPIC, "t", replicationFactor=1)
    # A user has edited the field, so kubectl manages it now.
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
    requested = change(ChangeKind.ELECT, assignments=(Assignment(partition=0, replicas=()),))
    assert await codes_by_partition(changes, requested) == {0: "election_not_needed"}


# ---------------------------------------------------------------- deleting


async def test_client_deletes_topics_by_name_and_by_id(changes: Changes) -> None:
    made = await changes.results(create("a"), create("b"))
    by_id = change(ChangeKind.DELETE, name=None, topic_id=made[1].topic_id)
    assert await changes(change(ChangeKind.DELETE, "a"), by_id) == [("none", ""), ("none", "")]
    assert changes.world.server.of_kind(TOPIC) == []
    assert changes.world.events.reasons[2:] == ["DeletedByClient"] * 2
    assert (await changes.one(by_id))[0] == "unknown_topic_id"


async def test_recreated_topic_is_not_mistaken_for_the_former_one(
    changes: Changes,
) -> None:
    """The controller's watch has not delivered the new object yet."""
    (made,) = await changes.results(create(partitions=2))
    former = changes.object()
    # From here on the controller receives no watch events.
    changes.world.server.watchers.clear()
    changes.world.server.delete("git", TOPIC, "t", uid=former["metadata"]["uid"])
    again = {"metadata": {"name": "t"}, "spec": former["spec"]}
    changes.world.server.create("git", TOPIC, former["metadata"]["namespace"], again)
    by_id = change(ChangeKind.DELETE, name=None, topic_id=made.topic_id)
    # By id the topic is unknown, by name the controller must refresh first.
    assert (await changes.one(by_id))[0] == "unknown_topic_id"
    assert (await changes.one(change(ChangeKind.DELETE)))[0] == "not_controller"
    assert (await changes.one(change(ChangeKind.GROW, partitions=3)))[0] == "not_controller"
    assert changes.spec() == former["spec"]


async def test_deletion_can_be_switched_off(changes: Changes) -> None:
    await changes(create())
    changes.world.edit(CLUSTER, "main", config={"delete.topic.enable": "false"})
    assert (await changes.one(change(ChangeKind.DELETE)))[0] == "topic_deletion_disabled"


async def test_internal_topic_is_not_deleted(changes: Changes) -> None:
    await changes(create("__consumer_offsets", settings=settings(cleanup_policy="compact")))
    error_name, text = await changes.one(change(ChangeKind.DELETE, "__consumer_offsets"))
    assert error_name == "policy_violation"
    assert "internal" in text


def test_error_message_with_client_text_is_truncated() -> None:
    result = refused(
        ErrorCode.invalid_config, f"Unknown topic config name: {'x' * 0x7FFF}"
    ).result()
    assert result.error_message is not None
    assert len(result.error_message) == 2000


# ---------------------------------------------------------------- only manifests change topics


REFUSE = {"clientChanges": "Refuse"}
SPEC_CHANGES = {
    "create": create("new"),
    "create automatically": create("new", automatic=True),
    "delete": change(ChangeKind.DELETE),
    "grow": change(ChangeKind.GROW, partitions=2),
    "configure": change(ChangeKind.CONFIGURE, settings=settings(retention_ms="7")),
    "configure the cluster": change(
        ChangeKind.CONFIGURE_CLUSTER, "", settings=settings(log_retention_ms="7")
    ),
    "configure a group": change(
        ChangeKind.CONFIGURE_GROUP, "g", settings=settings(consumer_session_timeout_ms="45000")
    ),
    "change the replication factor": change(
        ChangeKind.REASSIGN, assignments=(Assignment(partition=0, replicas=(1, 2)),)
    ),
}


@pytest.mark.parametrize("case", SPEC_CHANGES)
@pytest.mark.parametrize("validate_only", [True, False])
async def test_changes_of_a_spec_are_refused_if_only_manifests_may_change_it(
    changes: Changes, case: str, validate_only: bool
) -> None:
    await changes.one(create())
    await TopicReconciler(changes.world.services).reconcile(changes.world.key(TOPIC, "t"))
    config = {"auto.create.topics.enable": "true"}
    changes.world.edit(CLUSTER, "main", config=config, **REFUSE)
    before = [body["metadata"]["resourceVersion"] for body in changes.world.server.of_kind(TOPIC)]
    error_name, text = await changes.one(SPEC_CHANGES[case], validate_only=validate_only)
    assert error_name == "policy_violation"
    assert "is managed by Kubernetes" in text
    assert text.endswith("spec.clientChanges of Cluster ns/main is Refuse")
    after = [body["metadata"]["resourceVersion"] for body in changes.world.server.of_kind(TOPIC)]
    assert after == before


async def test_refusal_names_the_object_to_change(changes: Changes) -> None:
    await changes.one(create())
    changes.world.edit(CLUSTER, "main", **REFUSE)
    assert (await changes.one(change(ChangeKind.GROW, partitions=2)))[1].startswith(
        "Topic ns/t is managed by Kubernetes: change the Topic object."
    )
    assert "create a Topic object for topic orders" in (await changes.one(create("orders")))[1]


async def test_topic_overrides_the_cluster_for_changes_by_clients(changes: Changes) -> None:
    await changes.one(create())
    grow = change(ChangeKind.GROW, partitions=2)
    changes.world.edit(TOPIC, "t", **REFUSE)
    error_name, text = await changes.one(grow)
    assert (error_name, text.endswith("spec.clientChanges of Topic ns/t is Refuse")) == (
        "policy_violation",
        True,
    )
    changes.world.edit(CLUSTER, "main", **REFUSE)
    changes.world.edit(TOPIC, "t", clientChanges="Allow")
    assert await changes.one(grow) == ("none", "")


async def test_errors_of_kafka_come_before_the_refusal(changes: Changes) -> None:
    await changes.one(create())
    changes.world.edit(CLUSTER, "main", **REFUSE)
    assert (await changes.one(create()))[0] == "topic_already_exists"
    assert (await changes.one(create("x", partitions=0)))[0] == "invalid_partitions"
    unknown = change(ChangeKind.DELETE, "unknown")
    assert (await changes.one(unknown))[0] == "unknown_topic_or_partition"
    assert (await changes.one(change(ChangeKind.GROW, partitions=1)))[0] == "invalid_partitions"


async def test_changes_of_no_spec_are_made_although_clients_are_refused(changes: Changes) -> None:
    await changes.one(create())
    await TopicReconciler(changes.world.services).reconcile(changes.world.key(TOPIC, "t"))
    changes.world.edit(CLUSTER, "main", **REFUSE)
    (row,) = changes.world.services.state.all_rows()
    (other,) = {1, 2} - set(row.replicas)
    move = Assignment(partition=0, replicas=(other,))
    assert await changes.one(change(ChangeKind.REASSIGN, assignments=(move,))) == ("none", "")
    # Groups depend on the coordinators' topics, which brokers create. A client would choose the
    # number of partitions, which is fixed.
    requested = create("__consumer_offsets", settings=settings(cleanup_policy="compact"))
    assert (await changes.one(requested))[0] == "policy_violation"
    assert await changes.one(dataclasses.replace(requested, automatic=True)) == ("none", "")
