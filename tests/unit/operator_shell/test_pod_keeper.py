"""Rolling replacement of brokers' pods, on an API server that stores applied objects."""

import copy
import dataclasses
import types
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, ShellWorld
from tests.unit.pods.pod_values import POD
from tidemark_operator.certificates.certificate_stores import CERTIFICATES
from tidemark_operator.controller.status import broker_status
from tidemark_operator.kube.errors import (
    ApiServerUnavailable,
    Forbidden,
    Invalid,
    KubeError,
    NotFound,
    error_of,
)
from tidemark_operator.kube.kinds import (
    BROKER,
    CONFIG_MAP,
    EVENT,
    SECRET,
    SERVICE,
    STATEFUL_SET,
    VOLUME_CLAIM,
    Json,
    Kind,
    ObjectList,
)
from tidemark_operator.reconcile.pods import CHECK_S, LOOK_AGAIN_S, REFUSED_S, PodKeeper
from tidemark_operator.resources.names import OFFERED_ANNOTATION

READY = {"readyReplicas": 1, "updatedReplicas": 1}


class PodsApi:
    """Server-side apply as a single writer sees it, with a fixed ``clock``.

    ``calls`` are counted, and kinds in ``refuses`` are not written.
    """

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Json] = {}
        self.calls = 0
        self.refuses: dict[str, KubeError] = {}
        self.now_s = 1000.0
        self.before_writing: Callable[[Kind], None] = lambda _: None

    def clock(self) -> float:
        return self.now_s

    async def apply(self, kind: Kind, body: Json, *, dry_run: bool, **_: Any) -> Json:
        name = body["metadata"]["name"]
        self.calls += 1
        old = self.objects.get((kind.kind, name))
        if not dry_run:
            self.before_writing(kind)
            if kind.kind in self.refuses:
                raise self.refuses[kind.kind]
        new = copy.deepcopy(body)
        new["metadata"]["managedFields"] = _fields(old)
        # The API server raises the generation with each change of the spec.
        same = old is not None and old.get("spec") == new.get("spec")
        generation = 1 if old is None else old["metadata"]["generation"] + (not same)
        new["metadata"]["generation"] = generation
        new["status"] = {} if old is None else old["status"]
        if not dry_run:
            self.objects[kind.kind, name] = new
        return new

    async def get(self, kind: Kind, namespace: str, name: str) -> Json:
        if (kind.kind, name) not in self.objects:
            raise NotFound(404, "there is none")
        return self.objects[kind.kind, name]

    async def list_all(
        self, kind: Kind, namespace: str, *, name: str = "", field_selector: str = ""
    ) -> ObjectList:
        self.calls += 1
        if field_selector and kind.kind in self.refuses:
            raise self.refuses[kind.kind]
        found = [
            copy.deepcopy(body)
            for (of, object_), body in self.objects.items()
            if of == kind.kind and name in ("", object_)
        ]
        return ObjectList(found, resource_version=1)

    def run(self, name: str) -> None:
        """Let the desired pod become ready."""
        body = self.objects[STATEFUL_SET.kind, name]
        body["status"] = READY | {
            "replicas": 1,
            "observedGeneration": body["metadata"]["generation"],
        }

    def addresses(self, name: str) -> str:
        """Return the operators' addresses in the broker's configuration."""
        lines = self.objects[CONFIG_MAP.kind, name]["data"]["broker.properties"].splitlines()
        return str(dict(line.split("=", 1) for line in lines)["controller.addresses"])

    def image(self, name: str) -> str:
        template = self.objects[STATEFUL_SET.kind, name]["spec"]["template"]
        return str(template["spec"]["containers"][0]["image"])


def _fields(old: Json | None) -> list[Json]:
    """Return the managed fields of other managers."""
    return [] if old is None else old["metadata"].get("managedFields", [])


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
    """Start both brokers, in pods that are ready."""
    api = PodsApi()
    keeper = keeper_of(world, api)
    for node in (1, 2):
        assert await keep(world, keeper, node) == LOOK_AGAIN_S
        # The StatefulSet's controller creates the pod, and the broker registers.
        api.run(f"broker-{node}")
        api.now_s += LOOK_AGAIN_S
        assert await keep(world, keeper, node) == CHECK_S - LOOK_AGAIN_S
        await world.start_broker(node)
    return keeper, api


def keeper_of(world: ShellWorld, api: PodsApi, addresses: str = "op-0:9095") -> PodKeeper:
    client: Any = types.SimpleNamespace(api=api)
    services = dataclasses.replace(
        world.services,
        client=client,
        controller_addresses=addresses,
        leads=lambda: world.leads,
    )
    return PodKeeper(services, api.clock)


async def keep(world: ShellWorld, keeper: PodKeeper, node: int) -> float | None:
    body = world.services.objects.get(world.key(BROKER, f"broker-{node}"))
    assert body is not None
    return await keeper.keep(body)


def change(world: ShellWorld, image: str = "new") -> None:
    for node in (1, 2):
        world.edit(BROKER, f"broker-{node}", pod=POD | {"image": image})


async def test_up_to_date_pod_costs_no_call_within_the_check_interval(world: ShellWorld) -> None:
    keeper, api = await running(world)
    before = api.calls
    again_s = await keep(world, keeper, 1)
    assert again_s is not None
    assert 0 < again_s <= CHECK_S
    assert api.calls == before


def pod_condition(world: ShellWorld) -> tuple[str, str]:
    """Return reason and message of broker 1's PodUpToDate condition."""
    state = world.services.state
    conditions: Any = broker_status(state, state.brokers[1], now_ms=0).status["conditions"]
    (found,) = [condition for condition in conditions if condition["type"] == "PodUpToDate"]
    return found["reason"], found["message"]


async def test_next_pod_waits_until_the_replaced_broker_is_registered(
    world: ShellWorld,
) -> None:
    """A ready pod does not prove that the broker has registered again."""
    keeper, api = await running(world)
    change(world)
    # Both brokers have a new spec, but only one may restart.
    for node in (1, 2):
        assert await keep(world, keeper, node) == LOOK_AGAIN_S
    assert (api.image("broker-1"), api.image("broker-2")) == ("new", POD["image"])
    # The new pod is ready, but its broker has not registered yet.
    api.run("broker-1")
    api.now_s += LOOK_AGAIN_S
    await keep(world, keeper, 1)
    await keep(world, keeper, 2)
    assert api.image("broker-2") == POD["image"]
    hold = world.services.state.pods[2].hold
    assert hold is not None
    assert hold.starting == (1,)
    await world.start_broker(1, incarnation=2)
    await keep(world, keeper, 2)
    assert api.image("broker-2") == "new"


async def test_a_former_controller_restarts_no_broker(world: ShellWorld) -> None:
    keeper, api = await running(world)
    world.leads = False
    change(world)
    await keep(world, keeper, 1)
    assert api.image("broker-1") == POD["image"]


async def test_a_controller_without_reports_of_all_brokers_restarts_no_broker(
    world: ShellWorld,
) -> None:
    keeper, api = await running(world)
    # A takeover has just happened, and broker 2 has not reported its replicas.
    world.services.first_reports.expect([2])
    change(world)
    await keep(world, keeper, 1)
    assert api.image("broker-1") == POD["image"]
    world.services.first_reports.broker_reported(2)
    await keep(world, keeper, 1)
    assert api.image("broker-1") == "new"


async def test_a_deleted_stateful_set_is_recreated_before_any_broker_knows_the_operators(
    world: ShellWorld,
) -> None:
    """All operator addresses have changed at once.

    An operator that no broker has reached restarts no broker, and no broker would ever reach it:
    deleting the StatefulSet resolves this.
    """
    _, api = await running(world)
    world.services.state.unreached = True
    keeper = keeper_of(world, api, addresses="other-0:9095")
    for node in (1, 2):
        await keep(world, keeper, node)
    assert api.addresses("broker-1") == api.addresses("broker-2") == "op-0:9095"
    # The user deletes one StatefulSet: only its broker gets the new addresses.
    del api.objects[STATEFUL_SET.kind, "broker-1"]
    api.now_s += CHECK_S
    for node in (1, 2):
        await keep(world, keeper, node)
    assert (STATEFUL_SET.kind, "broker-1") in api.objects
    assert (api.addresses("broker-1"), api.addresses("broker-2")) == ("other-0:9095", "op-0:9095")


async def test_objects_of_a_broker_are_in_its_namespace(world: ShellWorld) -> None:
    _, api = await running(world)
    assert {body["metadata"]["namespace"] for body in api.objects.values()} == {NAMESPACE}


# ------------------------------------------------------------------ foreign changes


@pytest.mark.parametrize("part", ["labels", "ownerReferences"])
async def test_removed_metadata_does_not_break_the_rolling_order(
    world: ShellWorld, part: str
) -> None:
    """StatefulSets are found by name: a missing label must not make all pods restart at once."""
    keeper, api = await running(world)
    for node in (1, 2):
        # A user removes the metadata from both StatefulSets.
        api.objects[STATEFUL_SET.kind, f"broker-{node}"]["metadata"].pop(part)
    change(world)
    # Two rounds: the second broker must still wait for the first one.
    for node in (1, 2, 1, 2):
        await keep(world, keeper, node)
    assert (api.image("broker-1"), api.image("broker-2")) == ("new", POD["image"])


async def test_update_strategy_is_reverted_in_the_brokers_turn(
    world: ShellWorld,
) -> None:
    """With the former strategy, pods that a user has changed meanwhile would be replaced."""
    keeper, api = await running(world)
    for node in (1, 2):
        # A user has stopped the rollout of both StatefulSets.
        api.objects[STATEFUL_SET.kind, f"broker-{node}"]["spec"]["updateStrategy"] = {
            "type": "OnDelete"
        }
    api.now_s += CHECK_S
    for node in (1, 2):
        await keep(world, keeper, node)
    strategies = [
        api.objects[STATEFUL_SET.kind, f"broker-{node}"]["spec"]["updateStrategy"]["type"]
        for node in (1, 2)
    ]
    assert strategies == ["RollingUpdate", "OnDelete"]


@pytest.mark.parametrize(
    ("kind", "content"), [(CONFIG_MAP, "f:data"), (SERVICE, "f:spec")], ids=["config", "service"]
)
async def test_foreign_object_of_the_same_name_is_not_adopted(
    world: ShellWorld, kind: Kind, content: str
) -> None:
    """Otherwise it would get an owner and be deleted with the Broker."""
    api = PodsApi()
    foreign = {"manager": "another", "operation": "Apply", "fieldsV1": {content: {}}}
    body: Json = {"metadata": {"generation": 1, "managedFields": [foreign]}, "status": {}}
    api.objects[kind.kind, "broker-1"] = body
    keeper = keeper_of(world, api)
    await keep(world, keeper, 1)
    assert "another" in world.services.state.pods[1].refused
    assert api.objects[kind.kind, "broker-1"] is body
    assert (STATEFUL_SET.kind, "broker-1") not in api.objects


async def test_service_of_another_brokers_listener_is_not_taken_over(
    world: ShellWorld,
) -> None:
    """Both have the operator as field manager: only labels and owner distinguish them."""
    api = PodsApi()
    labels = {"tidemark.dev/cluster": "main", "tidemark.dev/broker": "broker"}
    owner = {"kind": "Broker", "name": "broker", "uid": "1", "controller": True}
    body: Json = {
        "metadata": {"generation": 1, "labels": labels, "ownerReferences": [owner]},
        "status": {},
    }
    api.objects[SERVICE.kind, "broker-1"] = body
    await keep(world, keeper_of(world, api), 1)
    assert "belongs to Broker broker. Delete it" in world.services.state.pods[1].refused
    assert api.objects[SERVICE.kind, "broker-1"] is body


async def test_an_edited_service_of_the_operator_remains_its_own(
    world: ShellWorld,
) -> None:
    """Otherwise the broker would stay down after its StatefulSet was deleted as documented, until
    its Service is removed.
    """
    keeper, api = await running(world)
    edited = {"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:spec": {}}}
    # kubectl edit took the ownership of all fields of the spec.
    api.objects[SERVICE.kind, "broker-1"]["metadata"]["managedFields"] = [edited]
    del api.objects[STATEFUL_SET.kind, "broker-1"]
    api.now_s += CHECK_S
    await keep(world, keeper, 1)
    assert not world.services.state.pods[1].refused
    assert (STATEFUL_SET.kind, "broker-1") in api.objects


async def test_a_stateful_set_of_another_owner_is_left_alone(world: ShellWorld) -> None:
    api = PodsApi()
    body: Json = {"metadata": {"name": "broker-1", "generation": 1}, "spec": {}, "status": {}}
    api.objects[STATEFUL_SET.kind, "broker-1"] = body
    await keep(world, keeper_of(world, api), 1)
    assert "was not created for it" in world.services.state.pods[1].refused
    assert api.objects[STATEFUL_SET.kind, "broker-1"] is body


@pytest.mark.parametrize("labels", [{}, CERTIFICATES.labels], ids=["user's", "operator's"])
async def test_pod_gets_no_secret_that_is_not_offered_to_the_cluster(
    world: ShellWorld, labels: dict[str, str]
) -> None:
    """The running pod is not changed either."""
    keeper, api = await running(world)
    # The new listener needs a Secret that is offered only to Exports.
    listener = {"name": "TLS", "port": 9093, "protocol": "SSL", "tlsSecretRef": {"name": "main-ca"}}
    secured = {**POD, "image": "new", "listeners": [*POD["listeners"], listener]}
    world.edit(BROKER, "broker-1", pod=secured)
    offered: Json = {"name": "main-ca", "annotations": {OFFERED_ANNOTATION: "Export"}}
    api.objects[SECRET.kind, "main-ca"] = {"metadata": {**offered, "labels": labels}}
    assert await keep(world, keeper, 1) == REFUSED_S
    assert "Secret main-ca" in world.services.state.pods[1].refused
    assert pod_condition(world)[0] == "PodRefused"
    assert api.image("broker-1") == POD["image"]
    # Once it is offered, the pod is replaced, unless the Secret is the operator's own.
    offered["annotations"] = {OFFERED_ANNOTATION: "Cluster"}
    api.objects[SECRET.kind, "main-ca"] = {"metadata": {**offered, "labels": labels}}
    await keep(world, keeper, 1)
    assert api.image("broker-1") == (POD["image"] if labels else "new")


# ------------------------------------------------------------------ volumes

CLAIM = "data-broker-1-0"


def claim_of(**labels: str) -> Json:
    """Return a claim that exists before the Broker, with labels by the part after the slash."""
    found = {f"tidemark.dev/{name}": value for name, value in labels.items()}
    spec = {"storageClassName": "fast", "resources": {"requests": {"storage": "1Gi"}}}
    meta = {"name": CLAIM, "generation": 1, "labels": found}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


@pytest.mark.parametrize(
    "labels", [{}, {"cluster": "main", "broker": "broker-2"}], ids=["none", "another's"]
)
async def test_a_claim_of_another_owner_is_not_modified(
    world: ShellWorld, labels: dict[str, str]
) -> None:
    """Otherwise it would be adopted silently and its content used as the broker's log directory."""
    api = PodsApi()
    # A claim of this name may contain another broker's records.
    foreign = claim_of(**labels)
    api.objects[VOLUME_CLAIM.kind, CLAIM] = foreign
    keeper = keeper_of(world, api)
    assert await keep(world, keeper, 1) == REFUSED_S
    refused = world.services.state.pods[1].refused
    assert f"{CLAIM} tidemark.dev/cluster=main tidemark.dev/broker=broker-1" in refused
    assert api.objects[VOLUME_CLAIM.kind, CLAIM] is foreign
    assert len(api.objects) == 1
    # The user adds the labels that the message names.
    api.objects[VOLUME_CLAIM.kind, CLAIM] = claim_of(cluster="main", broker="broker-1")
    await keep(world, keeper, 1)
    assert not world.services.state.pods[1].refused
    assert (STATEFUL_SET.kind, "broker-1") in api.objects


async def test_labels_removed_from_its_claim_are_restored(world: ShellWorld) -> None:
    keeper, api = await running(world)
    api.objects[VOLUME_CLAIM.kind, CLAIM]["metadata"].pop("labels")
    api.now_s += CHECK_S
    await keep(world, keeper, 1)
    assert not world.services.state.pods[1].refused
    assert "labels" in api.objects[VOLUME_CLAIM.kind, CLAIM]["metadata"]


MISSING = 'storageclass.storage.k8s.io "fast" not found'


@pytest.mark.parametrize(
    ("class_name", "events", "text"),
    [
        (None, (), "there is no default StorageClass"),
        ("fast", (MISSING,), "StorageClass fast does not exist"),
        ("fast", (MISSING, "quota is used up"), "of StorageClass fast: quota is used up"),
        ("fast", (), "is being created"),
    ],
    ids=["no default", "no class", "last event", "no event"],
)
async def test_a_missing_volume_is_reported(
    world: ShellWorld, class_name: str | None, events: tuple[str, ...], text: str
) -> None:
    api = PodsApi()
    keeper = keeper_of(world, api)
    await keep(world, keeper, 1)
    claim = api.objects[VOLUME_CLAIM.kind, CLAIM]
    claim["status"] = {"phase": "Pending"}
    claim["spec"]["storageClassName"] = class_name
    for number, note in enumerate(events):
        # The events have increasing times, because the message quotes the last one.
        at = f"2026-01-01T00:00:0{number}Z"
        api.objects[EVENT.kind, str(number)] = {
            "metadata": {"creationTimestamp": at},
            "type": "Warning",
            "note": note,
        }
    api.now_s += CHECK_S
    assert await keep(world, keeper, 1) == LOOK_AGAIN_S
    reason, message = pod_condition(world)
    assert reason == "PodStarting"
    assert text in message


async def test_a_pod_that_is_not_created_has_a_reason(world: ShellWorld) -> None:
    """The message does not refer to a pod that does not exist."""
    api = PodsApi()
    keeper = keeper_of(world, api)
    await keep(world, keeper, 1)
    body = api.objects[STATEFUL_SET.kind, "broker-1"]
    # The StatefulSet's controller cannot create the pod at all.
    body["status"] = {"observedGeneration": body["metadata"]["generation"], "replicas": 0}
    api.objects[EVENT.kind, "e"] = {
        "metadata": {"creationTimestamp": "2026-01-01T00:00:00Z"},
        "type": "Warning",
        "note": "no PriorityClass with name high was found",
    }
    api.now_s += LOOK_AGAIN_S
    await keep(world, keeper, 1)
    text = "pod broker-1-0 is not created: no PriorityClass with name high was found"
    assert pod_condition(world) == ("PodStarting", text)
    # Later checks share one list of StatefulSets, without reading the events again.
    api.now_s += LOOK_AGAIN_S
    before = api.calls
    await keep(world, keeper, 1)
    assert api.calls == before + 1, "the one list for all"


@pytest.mark.parametrize(
    ("events", "text"),
    [
        ((("Scheduled", "Normal"), ("BackOff", "Normal")), "is not ready: BackOff"),
        ((("FailedScheduling", "Warning"), ("Pulling", "Normal")), "is being created"),
        ((("Scheduled", "Normal"), ("Unhealthy", "Warning")), "is being created"),
    ],
    ids=["no image", "scheduled since", "starting"],
)
async def test_a_pod_that_does_not_start_has_a_reason(
    world: ShellWorld, events: tuple[tuple[str, str], ...], text: str
) -> None:
    api = PodsApi()
    keeper = keeper_of(world, api)
    await keep(world, keeper, 1)
    body = api.objects[STATEFUL_SET.kind, "broker-1"]
    body["status"] = {"observedGeneration": body["metadata"]["generation"], "replicas": 1}
    for number, (reason, type_) in enumerate(events):
        at = f"2026-01-01T00:00:0{number}Z"
        api.objects[EVENT.kind, str(number)] = {
            "metadata": {"creationTimestamp": at},
            "type": type_,
            "reason": reason,
            "note": reason,
        }
    api.now_s += CHECK_S
    await keep(world, keeper, 1)
    assert text in pod_condition(world)[1]


async def test_pods_are_kept_without_permission_to_read_events(world: ShellWorld) -> None:
    api = PodsApi()
    api.refuses[EVENT.kind] = Forbidden(403, "not yours")
    api.objects[VOLUME_CLAIM.kind, CLAIM] = claim_of(cluster="main", broker="broker-1")
    assert await keep(world, keeper_of(world, api), 1) == LOOK_AGAIN_S
    assert (STATEFUL_SET.kind, "broker-1") in api.objects


# ------------------------------------------------------------------ interrupted updates


async def test_lost_lease_ends_an_update_halfway(world: ShellWorld) -> None:
    keeper, api = await running(world)

    # The lease is lost after the ConfigMap was written, before the StatefulSet.
    def lose_lease(kind: Kind) -> None:
        world.leads = kind is not CONFIG_MAP

    api.before_writing = lose_lease
    change(world)
    await keep(world, keeper, 1)
    assert not world.leads
    assert api.image("broker-1") == POD["image"]


async def test_a_pod_that_was_refused_blocks_no_other_broker(world: ShellWorld) -> None:
    """The pod never stopped, so it never returned; the others must not wait for that."""
    keeper, api = await running(world)
    api.refuses[STATEFUL_SET.kind] = Invalid(422, "no")
    change(world)
    await keep(world, keeper, 1)
    assert world.services.state.pods[1].refused == "no"
    assert "PodReplaced" not in world.events.reasons
    api.refuses.clear()
    await keep(world, keeper, 2)
    assert api.image("broker-2") == "new"


# ------------------------------------------------------------------ cost of waiting


async def test_waiting_brokers_send_no_requests(world: ShellWorld) -> None:
    """Otherwise a hundred brokers would each send four requests and list all StatefulSets,
    every 3 s.
    """
    keeper, api = await running(world)
    # Broker 1 restarts, and broker 2 waits for it.
    change(world)
    for node in (1, 2):
        await keep(world, keeper, node)
    before = api.calls
    for _ in range(10):
        await keep(world, keeper, 2)
    assert api.calls == before


async def test_starting_pods_share_one_list(world: ShellWorld) -> None:
    api = PodsApi()
    keeper = keeper_of(world, api)
    for node in (1, 2):
        await keep(world, keeper, node)
    before = api.calls
    # All starting pods are covered by one list per interval.
    for node in (1, 2, 1, 2):
        assert await keep(world, keeper, node) == LOOK_AGAIN_S
    assert api.calls == before + 1
    api.now_s += CHECK_S
    await keep(world, keeper, 1)
    assert api.calls > before + 2, "users' changes are reverted all the same"


def test_schema_violation_is_a_refusal_although_the_server_answers_500() -> None:
    """The API server answers such an apply with 500, which would be retried and never reported."""
    answer = (
        '{"message": "failed to create typed patch object (ns/b): .spec.a: field not declared"}'
    )
    assert isinstance(error_of(500, answer.encode(), None, "PATCH b"), Invalid)
    assert isinstance(error_of(500, b'{"message": "etcd"}', None, "PATCH b"), ApiServerUnavailable)
