"""Periodic observation of the Apache Kafka cluster, in a few requests for all topics.

It wakes what has changed: brokers, placement, configurations (drift). Only topics that have a Topic
are queried. The result of an observation is the state from then on. If the cluster does not answer,
the Cluster's conditions say so, and the former state is kept.

The access to the cluster comes from the spec and the Secrets that it names.
"""

import asyncio
import dataclasses
import logging
import time
from collections.abc import Mapping
from typing import Any

from cryptography import x509

from tidemark.kafka_client.access import OAUTHBEARER, KafkaAccess, Login, Tls
from tidemark.kafka_client.values import ClusterView, TopicView
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.engines.base import EngineUnavailable
from tidemark_operator.engines.kafka import cluster_snapshot, desired_configs
from tidemark_operator.engines.kafka.cluster import EngineRefused, FoundTopic
from tidemark_operator.kafka_term.services import KafkaServices
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.kinds import BROKER, TOPIC, Json
from tidemark_operator.kube.secrets import OfferedTo, SecretProblem, read_secret
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.resources.engine import CA, CERTIFICATE, KEY, PASSWORD, TOKEN, USERNAME

logger = logging.getLogger(__name__)

POLL_S = 5.0
#: The period while replicas move.
MOVING_S = 1.0
#: Turns between reads of configurations: drift is seen within 20 seconds.
CONFIG_TURNS = 3
#: Turns between reads of Secrets, and of brokers' configurations.
ACCESS_TURNS = 6
SYSTEM, INTERVAL = "remote.log.storage.system.enable", "remote.log.manager.task.interval.ms"
NO_SYSTEM = (
    "the brokers have no remote storage. Set remote.log.storage.system.enable "
    "and remote.log.storage.manager.class.name on each broker, and restart "
    "them"
)


class Observer:
    """Observer of one term."""

    def __init__(self, services: KafkaServices) -> None:
        self._services = services
        self._soon = asyncio.Event()

    def look_soon(self) -> None:
        """Look soon, because something was changed."""
        self._soon.set()

    async def run(self) -> None:
        """Observe the Kafka cluster periodically, or soon after a change, until cancelled."""
        turn = 0
        while True:
            started_s = time.monotonic()
            await self._turn(turn)
            turn += 1
            took_s = time.monotonic() - started_s
            # Wait for the next period, or until a change requests an observation.
            try:
                # A slow cluster is queried less often, so that observation never takes most of the
                # time.
                pause_s = MOVING_S if self._services.state.partitions.moving else POLL_S
                async with asyncio.timeout(max(pause_s, 4 * took_s)):
                    await self._soon.wait()
            except TimeoutError:
                continue
            self._soon.clear()
            # Changes often arrive together, and brokers show them with a delay.
            await asyncio.sleep(0.2 + 2 * took_s)

    async def _turn(self, turn: int) -> None:
        """Observe once; ``turn`` decides how much. Errors become the Cluster's problem."""
        try:
            if turn % ACCESS_TURNS == 0 or self._services.seen.problem:
                await self._read_access()
            await self._look(with_configs=turn % CONFIG_TURNS == 0)
            if turn % ACCESS_TURNS == 0:
                await self._look_at_brokers()
        except EngineUnavailable as error:
            self._note_reachability(str(error), refused=isinstance(error, EngineRefused))
        except SecretProblem as error:
            self._note_reachability(str(error), refused=True)
        else:
            self._note_reachability("", refused=False)

    def _note_reachability(self, problem: str, *, refused: bool) -> None:
        """Record whether Kafka can be queried, and queue what shows it."""
        services, seen = self._services, self._services.seen
        if (problem, refused) == (seen.problem, seen.refused):
            return
        was_out = bool(seen.problem)
        seen.problem, seen.refused = problem, refused
        if problem:
            logger.warning("the Kafka cluster cannot be queried: %s", problem)
        services.queue.add(services.cluster_key)
        if not problem and was_out:
            self._wake_all()

    def _wake_all(self) -> None:
        for key in self._services.state.topics:
            self._services.queue.add(TOPIC.key(key))

    async def _read_access(self) -> None:
        """Read the spec and its Secrets, which may have changed."""
        services = self._services
        body = services.objects.get(services.cluster_key)
        if body is None:
            return
        spec = body["spec"]["engine"]["kafka"]
        namespace = services.cluster_key.namespace
        await services.kafka.client.use(await read_access(services.client.api, namespace, spec))

    # ------------------------------------------------------------ brokers

    async def _look_at_brokers(self) -> None:
        """Read the configuration of one broker, which all have in common."""
        seen = self._services.seen
        live = [] if seen.cluster is None else [n for n in seen.cluster.nodes if not n.fenced]
        if not live:
            return
        values = await self._services.kafka.broker_values(live[0].node_id, [SYSTEM, INTERVAL])
        not_tiered = "" if values.get(SYSTEM) == "true" else NO_SYSTEM
        seen.copy_interval_s = int(values.get(INTERVAL, "30000")) / 1000
        if not_tiered != seen.not_tiered:
            seen.not_tiered = not_tiered
            self._wake_all()

    def _take_cluster(self, found: ClusterView) -> None:
        """Update the brokers in the state from the observed nodes; queue what depends on them."""
        services, state = self._services, self._services.state
        former, services.seen.cluster = services.seen.cluster, found
        # Nodes rarely change, and each change writes objects and queues all topics.
        if former is not None and set(former.nodes) == set(found.nodes):
            return
        bodies = {int(body["spec"]["nodeId"]): body for body in self._broker_objects()}
        for node in found.nodes:
            body = bodies.get(node.node_id)
            meta: Json = {} if body is None else body["metadata"]
            key = broker_key(services, node.node_id)
            state.put_broker(
                cluster_snapshot.broker(
                    node,
                    f"{services.cluster_key.namespace}/{key}",
                    (body or {}).get("status") or {},
                    int(meta.get("generation", 1)),
                )
            )
            services.queue.add(BROKER.key(f"{services.cluster_key.namespace}/{key}"))
        # Brokers that Kafka no longer lists.
        for node_id in set(state.brokers) - {node.node_id for node in found.nodes}:
            state.drop_broker(node_id)
        services.queue.add(services.cluster_key)
        self._wake_all()

    def _broker_objects(self) -> list[Json]:
        services = self._services
        bodies = services.objects.of_kind(BROKER)
        return [body for body in bodies if cluster_of(body) == services.cluster_key.name]

    # ------------------------------------------------------------ topics

    async def _look(self, *, with_configs: bool) -> None:
        """Observe nodes, reassignments and topics once, and queue the Topics that have changed.

        ``with_configs``: also read the topics' configurations. Raises ``EngineUnavailable``.
        """
        services, seen = self._services, self._services.seen
        found = await services.kafka.describe()
        # A wrong address must not make another cluster's topics look lost.
        if foreign(services, found):
            raise EngineRefused(
                "bootstrapServers point to the Kafka cluster "
                f"{found.cluster_id}, but this Cluster is "
                f"{services.state.cluster.cluster_id}. Restore the previous "
                "bootstrapServers, or create another Cluster"
            )
        # A Topic without an id does not own the topic of its name yet, so that is not observed.
        names = sorted({topic.name for topic in services.state.topics.values() if topic.topic_id})
        moves = await services.kafka.moves() if names else {}
        views = await services.kafka.topics(names) if names else {}
        own: dict[str, dict[str, str]] | None = None
        if with_configs and views:
            own = await services.kafka.topic_values(sorted(views), self._keys())
        first = seen.cluster is None
        self._take_cluster(found)
        seen.moves = moves
        for name in names:
            self._take(name, views.get(name), own)
        if first:
            self._wake_all()
        for name in set(seen.topics) - set(names):
            del seen.topics[name]

    def _take(
        self, name: str, view: TopicView | None, own: dict[str, dict[str, str]] | None
    ) -> None:
        """Update the state from one observed topic.

        ``view`` is None if Kafka does not list it. ``own``: configurations by topic, None if not
        read.
        """
        services, seen = self._services, self._services.seen
        former = seen.topics.get(name)
        if view is None:
            if former is not None:
                del seen.topics[name]
            for topic in services.state.topics.named(name):
                # A topic may be missing on one broker for a moment: check again before anything is
                # decided.
                if topic.topic_id is not None and seen.missing_for_s(name) < 6 * POLL_S:
                    services.queue.add(TOPIC.key(topic.key))
            return
        # Without a new configuration, the last observed one stays.
        kept = {} if former is None else former.own
        present = FoundTopic(view, kept if own is None else own.get(name, kept))
        seen.missing_since_s.pop(name, None)
        seen.topics[name] = present
        for topic in services.state.topics.named(name):
            if topic.topic_id == present.view.topic_id:
                changed = take_rows(services, topic, present)
                if changed or former is None or former.own != present.own:
                    services.queue.add(TOPIC.key(topic.key))
            # Another topic has the name since the last observation.
            elif former is None or former.view.topic_id != present.view.topic_id:
                services.queue.add(TOPIC.key(topic.key))

    def _keys(self) -> list[str]:
        """Return the keys that any spec names, or named."""
        keys = {
            *desired_configs.SWITCHES,
            *desired_configs.LOCAL_RETENTION,
            *desired_configs.THROTTLED,
        }
        for topic in self._services.state.topics.values():
            keys.update(topic.config)
            keys.update(config_keys(topic))
        return sorted(keys)


def take_rows(services: KafkaServices, topic: TopicInfo, found: FoundTopic) -> bool:
    """Take an observed topic into the state; return whether anything changed."""
    state, topic_id = services.state, found.view.topic_id
    places = topic.replication_factor if state.cluster.under_replicated_creation else 0
    present = cluster_snapshot.rows(found.view, services.seen.moves, places=places)
    known, changed = state.rows_of(topic_id), False
    for row in present:
        if known.get(row.partition) != row:
            state.put_row(row)
            changed = True
    for partition in set(known) - {row.partition for row in present}:
        state.remove_row((topic_id, partition))
        changed = True
    return changed


def config_keys(topic: TopicInfo) -> frozenset[str]:
    """Return the keys that were ever set for the spec, as in the status."""
    kept = topic.status.get("configKeys")
    return frozenset(map(str, kept)) if isinstance(kept, list | tuple) else frozenset()


def broker_key(services: KafkaServices, node_id: int) -> str:
    """Return the name of a broker's object."""
    return f"{services.cluster_key.name}-{node_id}"


def foreign(services: KafkaServices, found: ClusterView) -> bool:
    """Return whether the answer is from another Kafka cluster than the recorded one."""
    stored = services.state.cluster.status.get("clusterId")
    return stored is not None and stored != found.cluster_id


def with_changes(found: FoundTopic, values: dict[str, str], unset: tuple[str, ...]) -> FoundTopic:
    """Return a topic with a change of its configuration applied."""
    kept = {key: value for key, value in found.own.items() if key not in unset}
    return dataclasses.replace(found, own={**kept, **values})


# ------------------------------------------------------------ access


#: Source of a client certificate, for messages.
_OWN = f"a Secret that tls.certificateSecretRef names ({CERTIFICATE}, {KEY})"


async def read_access(api: KubeApi, namespace: str, spec: Mapping[str, Any]) -> KafkaAccess:
    """Return the access of ``spec.engine.kafka``. Raises ``SecretProblem``."""
    bootstrap = tuple(str(spec["bootstrapServers"]).split(","))
    tls, sasl = spec.get("tls"), spec.get("sasl")
    return KafkaAccess(
        bootstrap,
        None if tls is None else await _tls(api, namespace, tls),
        None if sasl is None else await _login(api, namespace, sasl),
    )


async def _tls(api: KubeApi, namespace: str, spec: Mapping[str, Any]) -> Tls:
    """Return the TLS settings for a Kafka cluster, from the Secrets that the spec names."""
    trusted, own = spec.get("caSecretRef"), spec.get("certificateSecretRef")
    ca = {} if trusted is None else await _read(api, namespace, trusted, [CA])
    leaf = {} if own is None else await _read(api, namespace, own, [CERTIFICATE, KEY])
    certificate = leaf.get(CERTIFICATE, "")
    return Tls(
        ca.get(CA, ""),
        certificate,
        leaf.get(KEY, ""),
        ca_source="" if trusted is None else f"Secret {trusted['name']} ({CA})",
        own_source=_OWN if own is None else f"Secret {own['name']} ({CERTIFICATE}, {KEY})",
        ends_s=_ends_s(certificate),
    )


async def _login(api: KubeApi, namespace: str, spec: Mapping[str, Any]) -> Login:
    mechanism, ref = str(spec["mechanism"]), spec["credentialsSecretRef"]
    name = str(ref["name"])
    # A token has no user name, and files often end with a line break.
    if mechanism == OAUTHBEARER:
        found = await _read(api, namespace, ref, [TOKEN])
        return Login(mechanism, "", found[TOKEN].strip(), f"Secret {name}")
    found = await _read(api, namespace, ref, [USERNAME, PASSWORD])
    return Login(mechanism, found[USERNAME], found[PASSWORD], f"Secret {name}")


async def _read(
    api: KubeApi, namespace: str, ref: Mapping[str, Any], keys: list[str]
) -> dict[str, str]:
    return await read_secret(api, namespace, str(ref["name"]), keys, OfferedTo.CLUSTER)


def _ends_s(certificate: str) -> float | None:
    """Return the end of a chain's first certificate.

    None if it cannot be read, which OpenSSL reports.
    """
    # With its end known, an expired certificate gets a message of its own instead of a failed
    # handshake.
    try:
        first = x509.load_pem_x509_certificate(certificate.encode())
    except ValueError:
        return None
    return first.not_valid_after_utc.timestamp()
