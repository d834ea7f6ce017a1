"""External Services of brokers, and the addresses that clients reach them by.

A Service in its desired state costs no write. A Service that no listener needs any more is deleted:
as long as it exists, it lets clients in. A refusal by the API server goes into the status of the
Service's owner, and stops nothing else.
"""

import asyncio
import dataclasses
import math
import time
from collections.abc import Callable, Mapping

from tidemark.wire.control import Endpoint
from tidemark_operator.controller import external_listeners
from tidemark_operator.controller.state.model import ServiceAddress
from tidemark_operator.kube.errors import REFUSALS, Conflict, KubeError, NotFound
from tidemark_operator.kube.kinds import NODE, SERVICE, Json, Key, key_of
from tidemark_operator.pods import external_services
from tidemark_operator.pods.external_services import DesiredService
from tidemark_operator.pods.identity import MANAGER, identity_of
from tidemark_operator.pods.rollout import belongs_to_broker, owner_text
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.reconcile.workers import earliest
from tidemark_operator.resources.broker import Broker
from tidemark_operator.resources.names import BROKER_LABEL

#: Interval in seconds while an address is missing.
LOOK_AGAIN_S = 3.0
#: Foreign changes are reverted, and new addresses published, within this time.
CHECK_S = 60.0
#: Retry interval after a refusal, which needs a person.
REFUSED_S = 15.0
#: There may be many Nodes, and their addresses rarely change.
NODES_CHECK_S = 600.0

#: The API server's refusal of another loadBalancerClass.
_NEVER_CHANGES = "may not change once set"

_NODES_FORBIDDEN = (
    "nodeAddress is ExternalIP, but the operator may not list Nodes. Allow it "
    "(chart value operator.mayListNodes), or set host"
)


@dataclasses.dataclass(frozen=True, slots=True)
class _CheckedServices:
    """Services at the last look.

    ``desired``: the Services of that time. ``until_s``: end of the validity, in monotonic seconds.
    """

    desired: Mapping[str, DesiredService]
    until_s: float


class ExternalServices:
    """Services of one term; one instance for Brokers, one for the Cluster.

    ``clock`` returns monotonic seconds.
    """

    def __init__(
        self, services: ReconcilerServices, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Prepare the Services of one term. ``clock`` returns monotonic seconds."""
        self._services = services
        self._clock = clock
        #: By object: the result of its last check.
        self._looked: dict[Key, _CheckedServices] = {}
        #: Owners that received a Service in this term, or may have.
        self._given: set[Key] = set()
        #: Time of the last list of Nodes.
        self._nodes_at_s = -math.inf
        self._owners_then: frozenset[str] | None = None
        #: Shared list of all Services, and the end of its validity.
        self._listed: list[Json] = []
        self._listed_until_s = -math.inf
        #: Held during a shared list, so that concurrent callers wait for its result.
        self._turn = asyncio.Lock()

    # ------------------------------------------------------------ of a Broker

    async def keep_broker(self, body: Json) -> float | None:
        """Apply the Services of one Broker's external listeners.

        Return the seconds until the next check. Stores the resulting addresses in the state, and
        has the brokers announce a changed address. Returns None if there is nothing to check again.
        """
        state, broker = self._services.state, Broker.parse(body)
        node_id, pod = broker.spec.node_id, broker.spec.pod
        if pod is None:
            return None
        desired = external_services.broker_services(pod, identity_of(broker, ""))
        published, before = self._published(node_id), state.external_addresses.brokers.get(node_id)
        addresses, later_s = await self._keep(body, desired, broker.metadata.name, before)
        state.external_addresses.brokers[node_id] = addresses
        nodes_s = await self._look_at_nodes(node_id)
        # Brokers receive new states only if an address that they announce changed.
        if self._published(node_id) != published:
            self._services.engine.publish()
        if addresses != (before or {}):
            self._services.queue.add(self._services.cluster_key)  # its status has the addresses
        return earliest(later_s, nodes_s)

    def _published(self, node_id: int) -> tuple[Endpoint, ...]:
        """Return the endpoints of a broker that clients receive."""
        state = self._services.state
        broker = state.brokers.get(node_id)
        return () if broker is None else external_listeners.endpoints(state, broker)

    def forget(self, key: Key) -> None:
        """Drop what is remembered of a deleted object, whose Services were deleted with it."""
        self._looked.pop(key, None)
        self._given.discard(key)

    # ------------------------------------------------------------ of the Cluster

    async def keep_bootstraps(
        self, body: Json, desired: Mapping[str, DesiredService]
    ) -> float | None:
        """Keep the Services that lead to any broker; return the seconds until the next look."""
        state = self._services.state
        found, later_s = await self._keep(body, desired, "", state.external_addresses.bootstraps)
        state.external_addresses.bootstraps = found
        return later_s

    # ------------------------------------------------------------ Services

    async def _keep(
        self,
        body: Json,
        desired: Mapping[str, DesiredService],
        broker: str,
        before: Mapping[str, ServiceAddress] | None,
    ) -> tuple[Mapping[str, ServiceAddress], float | None]:
        """Apply the desired Services of one object; return their addresses by listener name.

        The second value is the number of seconds until the next check, None for no further check.
        Makes no API call while the result of the last check is valid. ``body`` is the owner, a
        Broker or the Cluster; ``broker`` is the Broker's name, "" for the Cluster. ``before``:
        addresses of the last check.
        """
        # Without listeners, Services of an earlier spec or controller may still have to be deleted.
        key, uid, now_s = key_of(body), str(body["metadata"]["uid"]), self._clock()
        looked = self._looked.get(key)
        if desired:
            self._given.add(key)
        elif looked is None and not await self._may_have(key, uid):
            return {}, None
        # The last look is valid for the same desired Services.
        if looked is not None and before is not None and looked.desired == desired:
            if not desired:
                return before, None
            if now_s < looked.until_s:
                return before, looked.until_s - now_s
        # Unchanged Services only wait for the load balancer's address, which one shared list shows.
        waits = looked is not None and looked.desired == desired
        live = await self._live(key.namespace, broker, shared=waits)
        found = await self._look(key, uid, desired, live)
        problems = [address for address in found.values() if address.problem is not None]
        # After a refusal a person may have fixed the cause, so the next check applies everything
        # again.
        if any(address.refused for address in problems):
            self._looked.pop(key, None)
            return found, REFUSED_S
        pause_s = LOOK_AGAIN_S if problems else CHECK_S
        self._looked[key] = _CheckedServices(desired, now_s + pause_s)
        return found, pause_s if desired else None

    async def _may_have(self, key: Key, uid: str) -> bool:
        """Return whether the owner may have Services, from this term or a former one."""
        return key in self._given or uid in await self._owners(key.namespace)

    async def _owners(self, namespace: str) -> frozenset[str]:
        """Return the uids of objects that had Services when the term began, from one list for all.

        A former controller may have ended before it deleted Services that no listener needs.
        """
        async with self._turn:
            if self._owners_then is None:
                self._owners_then = external_services.owners(
                    await self._list(namespace, self._of_all)
                )
            return self._owners_then

    async def _live(self, namespace: str, broker: str, *, shared: bool) -> dict[str, Json]:
        """Return the existing Services of one broker, or those of the Cluster, by name.

        ``shared``: use a list of all Services that is at most :data:`LOOK_AGAIN_S` old. Hundreds of
        brokers may wait for load balancers at the same time. ``broker``: "" for the Cluster.
        """
        # The lock makes concurrent callers wait for one list request.
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
        # The shared list contains the Services of all brokers.
        return {
            str(service["metadata"]["name"]): service
            for service in listed
            if service["metadata"]["labels"].get(BROKER_LABEL, "") == broker
        }

    @property
    def _of_all(self) -> str:
        return external_services.selector_of_cluster(self._services.cluster_key.name)

    async def _list(self, namespace: str, selector: str) -> list[Json]:
        return await self._services.client.api.list_all(SERVICE, namespace, label_selector=selector)

    async def _look(
        self, key: Key, uid: str, desired: Mapping[str, DesiredService], live: Mapping[str, Json]
    ) -> dict[str, ServiceAddress]:
        """Apply the desired Services and delete the object's other ones.

        Return addresses by listener. ``uid`` is the owner's, and ``live`` are the existing Services
        by name.
        """
        found = {}
        # Apply each desired Service; a refusal of one must not stop the others.
        for listener, service in desired.items():
            try:
                found[listener] = await self._applied(service, live.get(service.name), uid)
            except REFUSALS as error:
                found[listener] = _refused(service, live.get(service.name), uid, error)
        # Delete what no listener needs any more.
        for name in live.keys() - {service.name for service in desired.values()}:
            if external_services.is_of(live[name], uid):
                await self._delete(key.namespace, live[name])
        return found

    async def _applied(
        self, desired: DesiredService, live: Json | None, uid: str
    ) -> ServiceAddress:
        """Return the address of one Service.

        Apply the Service first if it differs from ``desired``.
        """
        # `is_of` compares the owner reference, so a Service of a recreated owner is not taken as
        # ours.
        is_own = live is not None and external_services.is_of(live, uid)
        if (
            live is not None
            and is_own
            and external_services.matches_manifest(live, desired.manifest)
        ):
            return external_services.service_address(desired, live)
        # The name may belong to an object without our labels, which the list does not show.
        if not is_own:
            found = await self._services.named(SERVICE, desired.name)
            if found is not None and not belongs_to_broker(found, desired.manifest):
                text = (
                    f"Service {desired.name} belongs to {owner_text(found)}. Delete "
                    "it, or rename the Broker or the listener"
                )
                return ServiceAddress(problem=text, refused=True)
        written = await self._services.client.api.apply(
            SERVICE, desired.manifest, manager=MANAGER, force=True
        )
        return external_services.service_address(desired, written)

    async def _delete(self, namespace: str, live: Json) -> None:
        """Delete exactly this Service; if it was replaced meanwhile, the next look finds the
        new one.
        """
        meta = live["metadata"]
        try:
            await self._services.client.api.delete(
                SERVICE, namespace, str(meta["name"]), uid=str(meta["uid"])
            )
        except (NotFound, Conflict):
            return

    # ------------------------------------------------------------ Nodes

    async def _look_at_nodes(self, node_id: int) -> float | None:
        """List the Nodes if this broker's NodePort addresses need ExternalIPs.

        One list serves all brokers. Returns the seconds until the next list, which is sooner while
        an address is unknown; None if no Node is needed. Without the permission to list Nodes, the
        state gets the problem for the status.
        """
        state = self._services.state
        # Most listeners need no Node, and the right to list them is optional.
        if not any(
            address.by_external_ip for address in state.external_addresses.brokers[node_id].values()
        ):
            return None
        async with self._turn:
            pause_s, age_s = self._nodes_pause_s(node_id), self._clock() - self._nodes_at_s
            if age_s < pause_s:
                return pause_s - age_s
            # One broker lists for all: the lock makes the others wait for its result.
            self._nodes_at_s = self._clock()
            before = (state.external_addresses.external_ips, state.external_addresses.nodes_problem)
            try:
                nodes = await self._services.client.api.list_all(NODE, "")
            except REFUSALS as error:
                state.external_addresses.nodes_problem = (
                    f"{_NODES_FORBIDDEN} ({error.server_message})"
                )
            else:
                state.external_addresses.external_ips = external_services.external_ips(nodes)
                state.external_addresses.nodes_problem = ""
            if before != (
                state.external_addresses.external_ips,
                state.external_addresses.nodes_problem,
            ):
                self._services.engine.publish()
            return self._nodes_pause_s(node_id)

    def _nodes_pause_s(self, node_id: int) -> float:
        state = self._services.state
        broker = state.brokers.get(node_id)
        unknown = broker is not None and external_listeners.needs_node(state, broker)
        return REFUSED_S if unknown or state.external_addresses.nodes_problem else NODES_CHECK_S


def _refused(
    desired: DesiredService, live: Json | None, uid: str, error: KubeError
) -> ServiceAddress:
    """Return the problem of a refused change; our own Service keeps its former address."""
    text = f"Service {desired.name}: {error.server_message}"
    if _NEVER_CHANGES in error.server_message:
        text += f". To have it created again: kubectl delete service {desired.name}"
    if live is None or not external_services.is_of(live, uid):
        return ServiceAddress(problem=text, refused=True)
    address = external_services.service_address(desired, live)
    return dataclasses.replace(address, problem=text, refused=True)
