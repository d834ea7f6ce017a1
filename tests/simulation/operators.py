"""The adapter to the operator: the real leader, terms, line of decisions and Lease loop.

Only I/O is replaced: the API server's client, the watches' thread, and the control listener's
socket (its answers and sessions are the real ones). A change to an interface of the operator
changes this module, and no other of the simulation.
"""

import asyncio
import datetime as dt
import functools
from typing import Any

from tests.certificates import authority_of, now
from tests.simulation.brokers import CLUSTER_ID
from tests.simulation.clockwork import ProcessLoop
from tests.simulation.kube import SimulatedApi
from tests.simulation.network import Connection
from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control
from tidemark_operator.certificates.authority import KeyPair, issue
from tidemark_operator.certificates.certificate_stores import StoredBundle
from tidemark_operator.certificates.rotation import Authorities, RotationPhase
from tidemark_operator.certificates.stored_authority import authority_data, leaf_data
from tidemark_operator.jobs.kubernetes import KubernetesJobs
from tidemark_operator.kube.kinds import MANY, WATCHED, Json, key_of
from tidemark_operator.leadership.elector import Elector
from tidemark_operator.leadership.lease import LeaseName
from tidemark_operator.listener.channel import Channel
from tidemark_operator.listener.connection import Attached
from tidemark_operator.listener.server import ControlServer, _Peer
from tidemark_operator.listener.standby_discovery import ControllerSearches
from tidemark_operator.metrics import Metrics
from tidemark_operator.settings import OperatorSettings
from tidemark_operator.term.broker_requests import BrokerRequests
from tidemark_operator.term.term_runner import TermRunner

PORT = 9092
NAMESPACE = "default"
SETTINGS = OperatorSettings(
    namespace=NAMESPACE, session_timeout_s=3.0, lease_duration_s=5.0, resync_s=45.0
)


@functools.cache
def _metrics() -> Metrics:
    """One set for all: nothing is decided by it."""
    return Metrics()


class _SliceWriter:
    """The controller's end of a command connection, as a stream writer."""

    def __init__(self, connection: Connection, cluster: Any) -> None:
        self._connection = connection
        self._cluster = cluster

    def write(self, frame: bytes) -> None:
        self._connection.push(frame)

    async def drain(self) -> None:
        return

    def close(self) -> None:
        self._connection.end_from(self._connection.theirs)


class SimulatedChannel(Channel):
    """Frames come from the simulated network instead of a stream."""

    cluster: Any = None

    async def call(self, request: Any, response_type: Any, timeout_s: float) -> Any:
        if isinstance(request, control.PartitionStatesRequest):
            self.cluster.checks.told(request)
        return await super().call(request, response_type, timeout_s)

    def arrived(self, frame: bytes) -> None:
        answer = self._waiting.get(int.from_bytes(frame[:4], "big", signed=True))
        if answer is not None and not answer.done():
            answer.set_result(frame)


class _OperatorListener(ControlServer):
    """The control listener without its thread and socket."""

    def __init__(self, handler: Any, loop: ProcessLoop, cluster: Any) -> None:
        self._handler = handler
        self._main: Any = loop
        self._loop: Any = loop
        self._cluster = cluster
        self._term = None
        self._channels: dict[int, Any] = {}
        self._cluster_id = lambda: CLUSTER_ID
        self.searches = ControllerSearches()

    def _post(self, call: Any) -> None:
        call()

    def _in_main(self, work: Any) -> Any:
        return self._main.create_task(work)

    def take(self, request: Any, given: Any, connection: Connection) -> None:
        """An Attach was answered: the roles turn round."""
        writer: Any = _SliceWriter(connection, self._cluster)
        attached = Attached(request, given.controller_epoch)
        channel: Any = self._attach(attached, None, writer)  # type: ignore[arg-type]
        if channel is None:
            writer.close()
        else:
            channel.cluster = self._cluster
            connection.channel = channel


class _NoLeaf:
    """An operator's own certificate, unused because the simulation has no handshakes."""

    def follow(self, held: Authorities) -> KeyPair:
        return held.issuing


class _Issued:
    """A keeper in which all requested certificates exist, created once for all runs."""

    arrives_within = dt.timedelta(0)

    async def read(self, name: str) -> StoredBundle | None:
        return _issued(name)

    async def write(self, name: str, *_: Any) -> None:
        raise AssertionError(f"{name} is recreated")


@functools.cache
def _issued(name: str) -> StoredBundle:
    issuing = authority_of(CLUSTER_ID)
    if not name.endswith("-tls"):
        held = Authorities(
            cluster_id=CLUSTER_ID, phase=RotationPhase.STEADY, issuing=issuing, since=now()
        )
        return StoredBundle(authority_data(held), "1")
    node_id = int(name.removesuffix("-tls").rpartition("-")[2])
    leaf = issue(issuing, TlsIdentity(CLUSTER_ID, node_id), now())
    return StoredBundle(leaf_data(leaf, issuing.certificate), "1")


class OperatorProcess:
    """One run of the operator's program."""

    def __init__(self, cluster: Any, name: str, life: int) -> None:
        world = cluster.world
        self.cluster = cluster
        self.world = world
        self.name = name
        self.identity = f"{name}-{life}"
        self.loop = ProcessLoop(world, name)
        self.loop.process = self
        self._last_s = 0.0
        self._peers: dict[Connection, _Peer] = {}

    def start(self) -> None:
        self.world.network.at[self.name, PORT] = self
        self.loop.call_soon(self._boot)

    def _boot(self) -> None:
        requests = BrokerRequests()
        lease = LeaseName(NAMESPACE, "tidemark-operator", self.identity)
        # The real elector and term runner, over the simulated API.
        self.elector = Elector(
            None,  # type: ignore[arg-type]
            lease,
            SETTINGS.lease_times,
            on_started=self._won,
            on_stopped=self._lost,
            on_led=self._led,
        )
        # Certificates play no part here, so nothing is issued and no file is read.
        own_leaf: Any = _NoLeaf()
        self.leader = TermRunner(
            SETTINGS,
            self.identity,
            _metrics(),
            leads=self.elector.leads,
            requests=requests,
            own_leaf=own_leaf,
            store_of=lambda _: _Issued(),
            jobs_of=lambda api: KubernetesJobs(api, ""),
        )
        self.listener = _OperatorListener(requests, self.loop, self.cluster)
        api: Any = SimulatedApi(self.cluster.kube, self.loop)
        self.cluster.kube.watchers.append(self._watch)
        for kind in WATCHED:
            for body in self.cluster.kube.of_kind(kind):
                self._watch(body, False)
        create = self.loop.create_task
        create(self.elector._compete(api))
        create(self.listener._tick())
        # An exception of the term runner fails the run.
        running = create(self.leader.run(api, self.listener, lambda: None))
        running.add_done_callback(self._failed)

    def _failed(self, task: "asyncio.Task[None]") -> None:
        """The leader's loop never ends by itself."""
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.failures.append((self.name, error))

    def _won(self) -> None:
        self.leader.won()

    def _lost(self) -> None:
        self.leader.lost()

    def _led(self) -> None:
        self.listener.searches.forget()

    def _watch(self, body: Json, gone: bool) -> None:
        """The watch brings it a little later, in order."""
        if self.loop.dead:
            return
        world = self.world
        self._last_s = max(world.now_s + 0.001 + 0.02 * world.chance.random(), self._last_s)
        world.at(self._last_s, self.loop, self._deliver, body, gone)

    def _deliver(self, body: Json, gone: bool) -> None:
        first = not self.leader.follower.arrived
        self.leader.follower.arrived.append((body, gone))
        if first:
            self.loop.call_soon(self.leader.follower.drain)

    def watch_anew(self) -> None:
        """The watches have ended, and cannot continue at their old version: everything is
        listed.
        """
        if not self.loop.dead and hasattr(self, "leader"):
            self.loop.call_soon(self._list_all)

    def _list_all(self) -> None:
        for kind in WATCHED:
            listed = self.cluster.kube.list_all(self.name, kind, "")
            if kind not in MANY:
                for body in listed:
                    self._deliver(body, False)
                continue
            version, known = listed.resource_version, self.leader.follower.before_list(kind)
            self.leader.follower.list_started(kind, version, known)
            for body in listed:
                self.leader.follower.list_item(kind, body, version)
            self.leader.follower.list_finished(kind, {key_of(body) for body in listed}, version)

    # ------------------------------------------------------------ what others see

    def answer(self, entity: Any, connection: Connection) -> Any:
        """Answer a broker's request; this process notices the end of its connection."""
        peer = self._peers.get(connection)
        if peer is None:
            peer = self._peers[connection] = _Peer(TlsIdentity(CLUSTER_ID, entity.broker_id))
            connection.on_drop = lambda: self.loop.call_soon(self._ended, connection)
        return self.listener._answer(entity, peer)

    def _ended(self, connection: Connection) -> None:
        peer = self._peers.pop(connection, None)
        if peer is not None:
            peer.left(self.world.now_s)

    def attach(self, request: Any, given: Any, connection: Connection) -> None:
        self.listener.take(request, given, connection)

    @property
    def term(self) -> Any:
        return None if self.loop.dead or not hasattr(self, "leader") else self.leader._term

    def kill(self) -> None:
        self.loop.die()
        self.world.network.reset(self.loop)
        if self._watch in self.cluster.kube.watchers:
            self.cluster.kube.watchers.remove(self._watch)
        if self.world.network.at.get((self.name, PORT)) is self:
            del self.world.network.at[self.name, PORT]
