"""The brokers of a Cluster's spec, where the API server rejects some of them."""

import copy
import dataclasses
import types
import uuid
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tests.unit.pods.pod_values import POD
from tidemark_operator.controller.status import cluster_status
from tidemark_operator.kube.errors import FieldConflict, Forbidden, Invalid, KubeError
from tidemark_operator.kube.kinds import BROKER, CLUSTER, Json, Kind
from tidemark_operator.reconcile.made_brokers import CHECK_S, REFUSED_S, MadeBrokers
from tidemark_operator.resources.names import BROKER_LABEL

MAIN = ShellWorld.key(CLUSTER, "main")


class AppliesApi:
    """API that applies objects, or refuses those named in ``refuses``."""

    def __init__(self) -> None:
        self.refuses: dict[str, KubeError] = {}
        self.applied: list[str] = []
        self.live: list[Json] = []

    async def apply(self, kind: Kind, body: Json, *, force: bool = False, **_: Any) -> Json:
        name = body["metadata"]["name"]
        if name in self.refuses and not (force and isinstance(self.refuses[name], FieldConflict)):
            raise self.refuses[name]
        self.applied.append(name)
        made = copy.deepcopy(body)
        made["metadata"] |= {"uid": str(uuid.uuid4()), "generation": 1, "resourceVersion": "1"}
        return made

    async def list_all(self, *_: Any, name: str = "", **__: Any) -> list[Json]:
        return [item for item in self.live if item["metadata"]["name"] == name]


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster(brokers={"replicas": 3, "template": POD})
    async with made.term():
        yield made


def brokers_of(world: ShellWorld, api: AppliesApi) -> MadeBrokers:
    client: Any = types.SimpleNamespace(api=api)
    return MadeBrokers(dataclasses.replace(world.services, client=client))


def stalled(world: ShellWorld) -> tuple[str, str, str]:
    state = world.services.state
    conditions: Any = cluster_status(state, generation=1, now_ms=0).status["conditions"]
    (found,) = [condition for condition in conditions if condition["type"] == "Stalled"]
    return found["status"], found["reason"], found["message"]


@pytest.mark.parametrize(
    "error",
    [Forbidden(403, "quota"), Invalid(422, "policy"), FieldConflict(409, "theirs")],
    ids=["quota", "policy", "taken"],
)
@pytest.mark.parametrize("refused", ["broker-1", "main-bootstrap", "main-brokers"])
async def test_a_refusal_is_reported_and_stops_nothing_else(
    world: ShellWorld, refused: str, error: KubeError
) -> None:
    """The remaining brokers are created, and the Cluster's status stays current."""
    api = AppliesApi()
    api.refuses[refused] = error
    keeper, body = brokers_of(world, api), world.known(CLUSTER, "main")
    # The second pass repeats neither the event nor the objects that exist.
    for _ in range(2):
        assert await keeper.keep(MAIN, body) == REFUSED_S
    expected = {"broker-1", "broker-2", "broker-3", "main-bootstrap", "main-brokers"}
    assert set(api.applied) == expected - {refused}
    status, reason, message = stalled(world)
    assert (status, reason) == ("True", "BrokersRefused")
    assert refused in message
    assert error.message in message
    assert world.events.reasons.count("BrokersRefused") == 1
    # Without the refusal, the missing object is created and the condition clears.
    api.refuses.clear()
    assert await keeper.keep(MAIN, body) == CHECK_S
    assert stalled(world)[0] == "False"


async def test_readers_are_created_beside_the_brokers(world: ShellWorld) -> None:
    """Give them the pods of the brokers."""
    api, body = AppliesApi(), copy.deepcopy(world.known(CLUSTER, "main"))
    body["spec"]["readers"] = {"replicas": 2}
    await brokers_of(world, api).keep(MAIN, body)
    made = {name for name in api.applied if name.startswith(("broker", "reader"))}
    assert made == {"broker-1", "broker-2", "broker-3", "reader-1001", "reader-1002"}
    reader = world.known(BROKER, "reader-1001")["spec"]
    assert (reader["role"], reader["nodeId"], reader["pod"]) == ("Reader", 1001, POD)
    assert "role" not in world.known(BROKER, "broker-1")["spec"]


def bootstrap(world: ShellWorld, **labels: str) -> Json:
    """Return the bootstrap Service as edited by a user."""
    uid = world.known(CLUSTER, "main")["metadata"]["uid"]
    owner = {"kind": "Cluster", "name": "main", "uid": uid}
    return {
        "metadata": {"name": "main-bootstrap", "labels": labels, "ownerReferences": [owner]},
        "spec": {"selector": {"app": "theirs"}},
    }


async def test_changes_by_users_to_the_bootstrap_service_are_reverted(
    world: ShellWorld,
) -> None:
    """Otherwise it would select no pod until a user reads the condition."""
    api = AppliesApi()
    api.refuses["main-bootstrap"] = FieldConflict(409, "held by kubectl-edit")
    api.live = [bootstrap(world)]
    assert await brokers_of(world, api).keep(MAIN, world.known(CLUSTER, "main")) == CHECK_S
    assert "main-bootstrap" in api.applied
    assert stalled(world)[0] == "False"


async def test_foreign_bootstrap_service_is_not_overwritten(
    world: ShellWorld,
) -> None:
    """A Broker of that name has a Service of the same manager: neither may overwrite the other."""
    api = AppliesApi()
    brokers = bootstrap(world, **{BROKER_LABEL: "main-bootstrap"})
    brokers["metadata"]["ownerReferences"] = [
        {"kind": "Broker", "name": "main-bootstrap", "uid": "another"}
    ]
    api.live = [brokers]
    assert await brokers_of(world, api).keep(MAIN, world.known(CLUSTER, "main")) == REFUSED_S
    assert "main-bootstrap" not in api.applied
    assert "belongs to Broker main-bootstrap" in stalled(world)[2]


async def test_at_rest_nothing_is_written(world: ShellWorld) -> None:
    api = AppliesApi()
    keeper, body = brokers_of(world, api), world.known(CLUSTER, "main")
    await keeper.keep(MAIN, body)
    before = len(api.applied)
    for _ in range(5):
        await keeper.keep(MAIN, body)
    assert len(api.applied) == before
    assert {broker["metadata"]["namespace"] for broker in keeper._brokers(MAIN)} == {NAMESPACE}


async def test_broker_of_a_newer_version_is_reverted_without_blocking_others(
    world: ShellWorld,
) -> None:
    """After a rollback of the operator, Brokers may still have fields of the newer version."""
    api = AppliesApi()
    keeper, body = brokers_of(world, api), world.known(CLUSTER, "main")
    await keeper.keep(MAIN, body)
    newer = copy.deepcopy(world.known(BROKER, "broker-1"))
    newer["spec"]["pod"]["later"] = True
    newer["metadata"]["resourceVersion"] = "2"
    world.services.objects.put(newer)
    api.applied.clear()
    api.refuses["broker-1"] = Forbidden(403, "quota")
    # A new keeper, as after the restart with the older version.
    keeper = brokers_of(world, api)
    await keeper.keep(MAIN, body)
    assert api.applied == ["main-bootstrap", "main-brokers"]
    del api.refuses["broker-1"]
    await keeper.keep(MAIN, body)
    assert "broker-1" in api.applied


async def queued(world: ShellWorld) -> set[str]:
    """Take all keys from the queue, mark them as done, and return their names."""
    found, queue = set(), world.services.queue
    while queue.depth:
        key = await queue.get()
        queue.done(key)
        found.add(key.name)
    return found


async def test_broker_to_be_removed_is_queued_at_once(world: ShellWorld) -> None:
    """The operator's own write queues the Broker, since its watch event changes nothing.

    Otherwise the status and the pod would lag behind the drain by up to a minute.
    """
    api = AppliesApi()
    keeper = brokers_of(world, api)
    await keeper.keep(MAIN, world.known(CLUSTER, "main"))
    assert {"broker-1", "broker-2", "broker-3"} <= await queued(world)
    # Scaling down marks broker 3 for removal.
    world.edit(CLUSTER, "main", brokers={"replicas": 2, "template": POD})
    await queued(world)
    await keeper.keep(MAIN, world.known(CLUSTER, "main"))
    assert "broker-3" in await queued(world)
