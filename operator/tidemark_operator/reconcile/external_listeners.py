"""Keeps the Services that lead to brokers from outside, and learns from them where from.

A Service that is as wanted costs no write. One that a listener needs no more is deleted: as long as
it is there, whoever it let in comes in. What the API server refuses is told in the status of whose
Service it is, and stops nothing else.
"""

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Mapping

from tidemark.wire.control import Endpoint
from tidemark_operator.controller import external_listeners
from tidemark_operator.controller.external_addresses import WayIn
from tidemark_operator.kube.errors import REFUSALS, Conflict, KubeError, NotFound
from tidemark_operator.kube.kinds import NODE, SERVICE, Json, Key, key_of
from tidemark_operator.pods import external_services
from tidemark_operator.pods.external_services import Wanted
from tidemark_operator.pods.identity import MANAGER, identity_of
from tidemark_operator.pods.rollout import is_ours, whose
from tidemark_operator.reconcile.services import Services
from tidemark_operator.resources.broker import parse_broker
from tidemark_operator.resources.names import BROKER_LABEL

#: While an address is waited for.
LOOK_AGAIN_S = 3.0
#: What somebody else has changed is set back, and another address told, within this time.
CHECK_S = 60.0
#: What the API server refuses waits for a person.
REFUSED_S = 15.0
#: Nodes are many, and their addresses stay.
NODES_CHECK_S = 600.0

#: How the API server refuses another loadBalancerClass.
_NEVER_CHANGES = "may not change once set"

_NODES_FORBIDDEN = (
    "nodeAddress is ExternalIP, but the operator may not list Nodes. Allow it "
    "(chart value operator.mayListNodes), or set host"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _Looked:
    """What was wanted when Services were last looked at, and until when that need not be done again
    (monotonic seconds)."""

    wanted: Mapping[str, Wanted]
    until_s: float


class ExternalServices:
    """Of one term; one for Brokers, one for the Cluster. ``clock``: monotonic seconds."""

    def __init__(self, services: Services, clock: Callable[[], float] = time.monotonic) -> None:
        self._services = services
        self._clock = clock
        self._looked: dict[Key, _Looked] = {}
        #: Those that were given some in this term, or may have been.
        self._given: set[Key] = set()
        self._nodes_at_s = -math.inf
        self._owners_then: frozenset[str] | None = None
        self._listed: list[Json] = []
        self._listed_until_s = -math.inf
        self._turn = asyncio.Lock()

    # ------------------------------------------------------------ of a Broker

    async def keep_broker(self, body: Json) -> float | None:
        """See to the Services of one Broker; when to look again, in seconds."""
        state, broker = self._services.state, parse_broker(body)
        node_id, pod = broker.spec.node_id, broker.spec.pod
        if pod is None:
            return None
        wanted = external_services.broker_services(pod, identity_of(broker, ""))
        told, before = self._told(node_id), state.ways_in.brokers.get(node_id)
        ways, later_s = await self._keep(body, wanted, broker.metadata.name, before)
        state.ways_in.brokers[node_id] = ways
        nodes_s = await self._look_at_nodes(node_id)
        if self._told(node_id) != told:
            self._services.engine.publish()
        if ways != (before or {}):
            self._services.queue.add(self._services.cluster_key)  # its status says so, too
        return min((each for each in (later_s, nodes_s) if each is not None), default=None)

    def _told(self, node_id: int) -> tuple[Endpoint, ...]:
        """What others are told of a broker's listeners."""
        state = self._services.state
        broker = state.brokers.get(node_id)
        return () if broker is None else external_listeners.endpoints(state, broker)

    def forget(self, key: Key) -> None:
        """The object is gone, and its Services with it."""
        self._looked.pop(key, None)
        self._given.discard(key)

    # ------------------------------------------------------------ of the Cluster

    async def keep_bootstraps(self, body: Json, wanted: Mapping[str, Wanted]) -> float | None:
        """See to the Services that lead to any broker; when to look again, in seconds."""
        state = self._services.state
        found, later_s = await self._keep(body, wanted, "", state.ways_in.bootstraps)
        state.ways_in.bootstraps = found
        return later_s

    # ------------------------------------------------------------ Services

    async def _keep(
        self,
        body: Json,
        wanted: Mapping[str, Wanted],
        broker: str,
        before: Mapping[str, WayIn] | None,
    ) -> tuple[Mapping[str, WayIn], float | None]:
        """Where they lead from, and when to look again; without a call where that is known.
        ``broker``: whose they are; "": of all."""
        key, uid, now_s = key_of(body), str(body["metadata"]["uid"]), self._clock()
        looked = self._looked.get(key)
        if wanted:
            self._given.add(key)
        elif looked is None and not await self._may_have(key, uid):
            return {}, None  # there never were any
        if looked is not None and before is not None and looked.wanted == wanted:
            if not wanted:
                return before, None
            if now_s < looked.until_s:
                return before, looked.until_s - now_s
        waits = looked is not None and looked.wanted == wanted
        live = await self._live(key.namespace, broker, shared=waits)
        found = await self._look(key, uid, wanted, live)
        problems = [way for way in found.values() if way.problem is not None]
        if any(way.refused for way in problems):
            self._looked.pop(key, None)  # somebody may have done something about it
            return found, REFUSED_S
        pause_s = LOOK_AGAIN_S if problems else CHECK_S
        self._looked[key] = _Looked(wanted, now_s + pause_s)
        return found, pause_s if wanted else None

    async def _may_have(self, key: Key, uid: str) -> bool:
        """Whether there may be some: of this term's making, or of a former one's."""
        return key in self._given or uid in await self._owners(key.namespace)

    async def _owners(self, namespace: str) -> frozenset[str]:
        """The uids of those that had such Services when the term began, by one list for all: a
        former controller may have been gone before it deleted what nobody needs any more."""
        async with self._turn:
            if self._owners_then is None:
                self._owners_then = external_services.owners(
                    await self._list(namespace, self._of_all)
                )
            return self._owners_then

    async def _live(self, namespace: str, broker: str, *, shared: bool) -> dict[str, Json]:
        """Those of one broker by name, or those of all; ``shared``: of a list that is a few seconds
        old at most. Hundreds of brokers wait for load balancers at once."""
        if shared:
            async with self._turn:
                if self._clock() >= self._listed_until_s:
                    self._listed = await self._list(namespace, self._of_all)
                    self._listed_until_s = self._clock() + LOOK_AGAIN_S
            listed = self._listed
        else:
            name = self._services.cluster_key.name
            selector = external_services.selector_of(name, broker)
            listed = await self._list(namespace, selector)
        return {
            str(each["metadata"]["name"]): each
            for each in listed
            if each["metadata"]["labels"].get(BROKER_LABEL, "") == broker
        }

    @property
    def _of_all(self) -> str:
        return external_services.selector_of_cluster(self._services.cluster_key.name)

    async def _list(self, namespace: str, selector: str) -> list[Json]:
        return await self._services.client.api.list_all(SERVICE, namespace, label_selector=selector)

    async def _look(
        self, key: Key, uid: str, wanted: Mapping[str, Wanted], live: Mapping[str, Json]
    ) -> dict[str, WayIn]:
        found = {}
        for listener, each in wanted.items():
            try:
                found[listener] = await self._applied(each, live.get(each.name), uid)
            except REFUSALS as error:
                found[listener] = _refused(each, live.get(each.name), uid, error)
        for name in live.keys() - {each.name for each in wanted.values()}:
            if external_services.is_of(live[name], uid):
                await self._delete(key.namespace, live[name])
        return found

    async def _applied(self, wanted: Wanted, live: Json | None, uid: str) -> WayIn:
        ours = live is not None and external_services.is_of(live, uid)
        if live is not None and ours and external_services.is_as_wanted(live, wanted.manifest):
            return external_services.way_in(wanted, live)
        if not ours:
            found = await self._services.named(SERVICE, wanted.name)
            if found is not None and not is_ours(found, wanted.manifest):
                text = (
                    f"Service {wanted.name} belongs to {whose(found)}. Delete "
                    "it, or rename the Broker or the listener"
                )
                return WayIn(problem=text, refused=True)
        return external_services.way_in(wanted, await self._apply(wanted.manifest))

    async def _apply(self, manifest: Json) -> Json:
        meta = manifest["metadata"]
        return await self._services.client.api.apply(
            SERVICE, meta["namespace"], meta["name"], manifest, manager=MANAGER, force=True
        )

    async def _delete(self, namespace: str, live: Json) -> None:
        """Of exactly this one; whoever has made another meanwhile has it looked at again."""
        meta = live["metadata"]
        try:
            await self._services.client.api.delete(
                SERVICE, namespace, str(meta["name"]), uid=str(meta["uid"])
            )
        except (NotFound, Conflict):
            return

    # ------------------------------------------------------------ Nodes

    async def _look_at_nodes(self, node_id: int) -> float | None:
        """Nodes are listed where their ExternalIPs are asked for, sooner where one is not known."""
        state = self._services.state
        if not any(way.by_external_ip for way in state.ways_in.brokers[node_id].values()):
            return None
        async with self._turn:
            pause_s, age_s = self._nodes_pause_s(node_id), self._clock() - self._nodes_at_s
            if age_s < pause_s:
                return pause_s - age_s
            self._nodes_at_s = self._clock()
            before = (state.ways_in.external_ips, state.ways_in.nodes_problem)
            try:
                nodes = await self._services.client.api.list_all(NODE, "")
            except REFUSALS as error:
                state.ways_in.nodes_problem = f"{_NODES_FORBIDDEN} ({error.said})"
            else:
                state.ways_in.external_ips = external_services.external_ips(nodes)
                state.ways_in.nodes_problem = ""
            if before != (state.ways_in.external_ips, state.ways_in.nodes_problem):
                self._services.engine.publish()
            return self._nodes_pause_s(node_id)

    def _nodes_pause_s(self, node_id: int) -> float:
        state = self._services.state
        broker = state.brokers.get(node_id)
        unknown = broker is not None and external_listeners.needs_node(state, broker)
        return REFUSED_S if unknown or state.ways_in.nodes_problem else NODES_CHECK_S


def _refused(wanted: Wanted, live: Json | None, uid: str, error: KubeError) -> WayIn:
    """A change that is refused takes nobody's way away: ours leads where it led."""
    text = f"Service {wanted.name}: {error.said}"
    if _NEVER_CHANGES in error.said:
        text += f". To have it created again: kubectl delete service {wanted.name}"
    if live is None or not external_services.is_of(live, uid):
        return WayIn(problem=text, refused=True)
    way = external_services.way_in(wanted, live)
    return dataclasses.replace(way, problem=text, refused=True)
