"""Common labels and annotations of the operator's objects, and the record of refused ones."""

from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, UNDER_REPLICATED, ShellWorld
from tidemark_operator.certificates.certificate_stores import SecretStore
from tidemark_operator.kube.errors import (
    ApiServerUnavailable,
    Conflict,
    Forbidden,
    Invalid,
    KubeError,
)
from tidemark_operator.kube.kinds import (
    CLUSTER,
    JOB,
    PARTITION_SLICE,
    SECRET,
    STATEFUL_SET,
    TOPIC,
    Json,
)
from tidemark_operator.kube.own_objects import REFUSALS_MAX, REMEMBERED_S, OwnObjects
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.failures import LOOK_AGAIN_S, reporter
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler

GIVEN: Json = {"labels": {"team": "core", "own": "theirs"}, "annotations": {"cost": "7"}}
BY_POLICY = Invalid(
    422,
    "POST /x: HTTP 422: topics.tidemark.dev \"t\" is forbidden: ValidatingAdmissionPolicy 'p' with "
    "binding 'b' denied request: needs the label team",
)
BY_WEBHOOK = Forbidden(
    403, 'POST /x: HTTP 403: admission webhook "v.gatekeeper.sh" denied the request: [team] no'
)
BY_SCHEMA = Invalid(422, "POST /x: HTTP 422: spec.partitions: Invalid value")


def following(clock: list[float], **metadata: Any) -> OwnObjects:
    own = OwnObjects(lambda: clock[0])
    own.follow({"spec": {"objectMetadata": metadata or GIVEN}})
    return own


async def refuse(own: OwnObjects, error: KubeError, name: str = "t", **options: bool) -> None:
    async def send(_: Json) -> Json:
        raise error

    with pytest.raises(type(error)):
        await own.write(TOPIC, {"metadata": {"name": name}, "spec": {}}, send, **options)


async def accept(own: OwnObjects, name: str = "t") -> None:
    async def send(body: Json) -> Json:
        return body

    await own.write(TOPIC, {"metadata": {"name": name}, "spec": {}}, send)


def test_labels_of_the_operator_override_those_of_the_cluster() -> None:
    # The label "own" is set by both: the operator depends on its own labels.
    body = {"kind": "Secret", "metadata": {"name": "x", "labels": {"own": "ours"}}}
    marked = following([0.0]).marked(body)
    assert marked["metadata"]["labels"] == {"team": "core", "own": "ours"}
    assert marked["metadata"]["annotations"] == {"cost": "7"}
    assert body["metadata"] == {"name": "x", "labels": {"own": "ours"}}, "it is a copy"


@pytest.mark.parametrize("kind", [JOB.kind, STATEFUL_SET.kind])
def test_pod_templates_have_the_labels(kind: str) -> None:
    spec = {"template": {"metadata": {"labels": {"own": "ours"}}, "spec": {}}}
    marked = following([0.0]).marked({"kind": kind, "metadata": {"name": "x"}, "spec": spec})
    template = marked["spec"]["template"]["metadata"]
    assert template["labels"] == {"team": "core", "own": "ours"}
    assert template["annotations"] == {"cost": "7"}


def test_objects_are_unchanged_without_object_metadata() -> None:
    body = {"kind": "Secret", "metadata": {"name": "x"}}
    own = OwnObjects()
    own.follow({"spec": {}})
    assert own.marked(body) == body


@pytest.mark.parametrize("error", [BY_POLICY, BY_WEBHOOK])
async def test_a_refusal_is_reported_once_and_forgotten_in_time(error: KubeError) -> None:
    clock = [0.0]
    own, reported = following(clock), []
    own.on_refusal = reported.append
    for _ in range(3):
        await refuse(own, error)
    assert [(item.kind, item.name) for item in reported] == [("Topic", "t")]
    assert [item.message for item in own.refused()] == [error.server_message]
    # The object was perhaps deleted: its refusal expires.
    clock[0] = REMEMBERED_S + 1
    assert own.refused() == []


async def test_refusal_with_a_changing_message_is_reported_once_a_minute() -> None:
    clock, reported = [0.0], []
    own = following(clock)
    own.on_refusal = reported.append
    for number in range(30):
        clock[0] = 10.0 * number
        await refuse(own, Forbidden(403, f"POST /x: HTTP 403: 10.0.0.{number} is forbidden"))
    # Thirty retries at intervals of 10 s take five minutes.
    assert 4 <= len(reported) <= 5
    (only,) = own.refused()
    assert only.message == reported[-1].message


async def test_an_accepted_object_is_no_longer_refused() -> None:
    own = following([0.0])
    await refuse(own, BY_POLICY)
    await accept(own, "another")
    assert len(own.refused()) == 1
    await accept(own)
    assert own.refused() == []


async def test_changed_labels_clear_the_refusals() -> None:
    own = following([0.0])
    await refuse(own, BY_POLICY)
    # The same labels again, as in any reconcile of the Cluster.
    own.follow({"spec": {"objectMetadata": GIVEN}})
    assert len(own.refused()) == 1, "nothing has changed"
    own.follow({"spec": {"objectMetadata": {"labels": {"team": "other"}}}})
    assert own.refused() == []


@pytest.mark.parametrize(
    "error", [BY_SCHEMA, Conflict(409, "exists"), ApiServerUnavailable(503, "busy")], ids=str
)
async def test_other_errors_are_no_refusals(error: KubeError) -> None:
    own = following([0.0])
    await refuse(own, error)
    assert own.refused() == []


async def test_a_dry_run_is_no_refusal() -> None:
    own = following([0.0])
    await refuse(own, BY_POLICY, dry_run=True)
    assert own.refused() == []


async def test_refusals_are_bounded_however_many_topics_clients_request() -> None:
    own = following([0.0])
    for number in range(REFUSALS_MAX + 5):
        await refuse(own, BY_POLICY, f"t{number}")
    names = [item.name for item in own.refused()]
    assert (len(names), names[-1]) == (REFUSALS_MAX, f"t{REFUSALS_MAX + 4}")


# ---------------------------------------------------------------- in a term


async def test_slices_and_other_objects_have_the_labels_of_their_cluster() -> None:
    world = ShellWorld()
    body = world.make_cluster(objectMetadata=GIVEN)
    world.api.own.follow(body)
    async with world.term():
        slices = world.server.of_kind(PARTITION_SLICE)
        assert {slice_["metadata"]["labels"]["team"] for slice_ in slices} == {"core"}
        # A change takes effect with the next write, without a restart.
        world.edit(CLUSTER, "main", objectMetadata={"labels": {"team": "other"}})
        assert world.api.own.marked({"metadata": {}})["metadata"]["labels"] == {"team": "other"}


async def test_existing_objects_get_the_labels_when_they_are_next_written() -> None:
    world = ShellWorld()
    world.make_cluster(UNDER_REPLICATED)
    keeper: Any = SecretStore(world.api, NAMESPACE)  # type: ignore[arg-type]
    async with world.term():
        # A Secret and the slices exist before the Cluster has the labels.
        await keeper.write("x", {"a": b"1"}, None)
        world.edit(CLUSTER, "main", objectMetadata=GIVEN)
        world.make_broker(1)
        await world.start_broker(1)
        world.make_topic()
        await TopicReconciler(world.services).reconcile(world.key(TOPIC, "t"))
        slices = [item["metadata"]["labels"] for item in world.server.of_kind(PARTITION_SLICE)]
        assert [labels for labels in slices if labels.get("team") == "core"]
        await keeper.write("x", {"a": b"2"}, await keeper.read("x"))
        (secret,) = [
            item for item in world.server.of_kind(SECRET) if item["metadata"]["name"] == "x"
        ]
        assert secret["metadata"]["labels"]["team"] == "core"


async def test_the_cluster_reports_refusals_until_accepted() -> None:
    world = ShellWorld()
    world.make_cluster()
    async with world.term():
        own = world.api.own
        own.on_refusal = reporter(world.services)
        main = world.key(CLUSTER, "main")
        reconciler = ClusterReconciler(world.services)
        await reconciler.reconcile(main)
        assert "ObjectsAccepted" not in _types(world)
        # Five refused objects: the condition names three and counts the rest.
        for number in range(5):
            await refuse(own, BY_POLICY, f"t{number}")
        assert world.events.reasons == ["CreationRefused"] * 5  # the writer aggregates them
        delay_s = await reconciler.reconcile(main)
        assert delay_s is not None
        assert delay_s <= LOOK_AGAIN_S
        status, reason, message = world.condition(CLUSTER, "main", "ObjectsAccepted")
        assert (status, reason) == ("False", "CreationRefused")
        assert "denied request: needs the label team" in message
        assert "and 2 more" in message
        assert "spec.objectMetadata" in message
        # Each object is accepted in its next attempt, which clears the condition.
        for number in range(5):
            await accept(own, f"t{number}")
        await reconciler.reconcile(main)
        assert "ObjectsAccepted" not in _types(world)


def _types(world: ShellWorld) -> set[str]:
    return {item["type"] for item in world.status(CLUSTER, "main")["conditions"]}
