"""One Broker's pod after the other, on an API server that keeps what is applied."""

import copy
import dataclasses
import types
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tests.unit.pods.pod_values import POD
from tidemark_operator.kube.kinds import BROKER, STATEFUL_SET, Json, Kind, Listed
from tidemark_operator.reconcile.pods import CHECK_S, LOOK_AGAIN_S, PodKeeper

READY = {"readyReplicas": 1, "updatedReplicas": 1}


class PodsApi:
    """Server-side apply as far as a single writer sees it; ``calls`` are counted."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.calls = 0

    async def apply(
        self, kind: Kind, namespace: str, name: str, body: Json, *, dry_run: bool, **_: Any
    ) -> Json:
        self.calls += 1
        old = self.objects.get((kind.kind, name))
        new = copy.deepcopy(body)
        same = old is not None and old.get("spec") == new.get("spec")
        generation = 1 if old is None else old["metadata"]["generation"] + (not same)
        new["metadata"]["generation"] = generation
        new["status"] = {} if old is None else old["status"]
        if not dry_run:
            self.objects[kind.kind, name] = new
        return new

    async def list_all(self, kind: Kind, namespace: str, *, label_selector: str) -> Listed:
        self.calls += 1
        found = [copy.deepcopy(body) for (of, _), body in self.objects.items() if of == kind.kind]
        return Listed(found, resource_version=1)

    def run(self, name: str) -> None:
        """The wanted pod is ready."""
        body = self.objects[STATEFUL_SET.kind, name]
        body["status"] = READY | {"observedGeneration": body["metadata"]["generation"]}

    def image(self, name: str) -> str:
        template = self.objects[STATEFUL_SET.kind, name]["spec"]["template"]
        return str(template["spec"]["containers"][0]["image"])


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster()
    for node in (1, 2):
        spec = {"clusterRef": {"name": "main"}, "nodeId": node, "workload": "Pod", "pod": POD}
        made.make(BROKER, f"broker-{node}", spec)
    async with made.term():
        yield made


async def running(world: ShellWorld) -> tuple[PodKeeper, PodsApi]:
    """Both brokers are there, in pods that are ready."""
    api = PodsApi()
    client: Any = types.SimpleNamespace(api=api)
    services = dataclasses.replace(
        world.services,
        client=client,
        controller_addresses="op-0:9095",
        leads=lambda: world.leads,
    )
    keeper = PodKeeper(services)
    for node in (1, 2):
        assert await keep(world, keeper, node) == LOOK_AGAIN_S
        api.run(f"broker-{node}")
        assert await keep(world, keeper, node) == CHECK_S
        await world.start_broker(node)
    return keeper, api


async def keep(world: ShellWorld, keeper: PodKeeper, node: int) -> float | None:
    body = world.services.objects.get(world.key(BROKER, f"broker-{node}"))
    assert body is not None
    return await keeper.keep(body)


def change(world: ShellWorld, image: str = "new") -> None:
    for node in (1, 2):
        world.edit(BROKER, f"broker-{node}", pod=POD | {"image": image})


async def test_what_is_as_wanted_costs_no_call_for_a_while(world: ShellWorld) -> None:
    keeper, api = await running(world)
    before = api.calls
    again_s = await keep(world, keeper, 1)
    assert again_s is not None
    assert 0 < again_s <= CHECK_S
    assert api.calls == before


async def test_one_pod_is_replaced_and_the_other_waits_until_that_broker_is_back(
    world: ShellWorld,
) -> None:
    """Its pod was ready, and its former session not over yet: both were restarted."""
    keeper, api = await running(world)
    change(world)
    for node in (1, 2):
        assert await keep(world, keeper, node) == LOOK_AGAIN_S
    assert (api.image("broker-1"), api.image("broker-2")) == ("new", POD["image"])
    api.run("broker-1")
    await keep(world, keeper, 1)
    await keep(world, keeper, 2)
    assert api.image("broker-2") == POD["image"]
    held = world.services.state.pods[2].hold
    assert held is not None
    assert held.starting == (1,)
    await world.start_broker(1, incarnation=2)
    await keep(world, keeper, 2)
    assert api.image("broker-2") == "new"


async def test_whoever_leads_no_more_restarts_nobody(world: ShellWorld) -> None:
    keeper, api = await running(world)
    world.leads = False
    change(world)
    await keep(world, keeper, 1)
    assert api.image("broker-1") == POD["image"]


async def test_a_controller_that_has_not_heard_of_all_brokers_restarts_nobody(
    world: ShellWorld,
) -> None:
    keeper, api = await running(world)
    world.services.first_reports.expect([2])
    change(world)
    await keep(world, keeper, 1)
    assert api.image("broker-1") == POD["image"]
    world.services.first_reports.presented(2)
    await keep(world, keeper, 1)
    assert api.image("broker-1") == "new"


async def test_what_belongs_to_a_broker_is_in_its_namespace(world: ShellWorld) -> None:
    _, api = await running(world)
    assert {body["metadata"]["namespace"] for body in api.objects.values()} == {NAMESPACE}
