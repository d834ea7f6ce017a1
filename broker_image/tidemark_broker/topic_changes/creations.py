"""Creation of missing topics: those of the coordinators and, if the Cluster allows automatic
creation, those whose metadata clients request.

A caller registers the name and continues. The topic arrives with the metadata, or is requested
again. Requests are batched. Each name is sent at most once in a period that grows after each
failure. The number of waiting names is limited, since any client can name any number of them.

The coordinators of groups and transactions store their state in compacted topics that are never
tiered (Kafka's ``offsets.topic.*`` and ``transaction.state.log.*``). They are created with as many
replicas as there are brokers, so that a cluster of one broker serves groups. The others are added
as brokers join (KIP-409).
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from tidemark.backoff import Backoff
from tidemark.configuration.broker_keys import AUTO_CREATE_TOPICS
from tidemark.logfiles.names import (
    COORDINATORS_TOPICS,
    GROUP_OFFSETS_TOPIC,
    INTERNAL_TOPICS,
    TRANSACTION_STATE_TOPIC,
)
from tidemark.lru import Lru
from tidemark.wire.topics import CHANGES_MAX, ChangeKind, Setting, SettingOperation, TopicChange
from tidemark_broker.config_entries import integer_of
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.topic_changes.forwarder import ChangeForwarder, Requester

logger = logging.getLogger(__name__)

#: Names that may wait for clients, half of them for one client; more are ignored until there is
#: room.
WAITING_MAX = 1000
#: Names whose last request is remembered.
_REMEMBERED_MAX = 10_000
_TIMEOUT_S = 30.0
_PARTITIONS_MAX = 10_000
_REPLICAS_MAX = 100
_FIRST = Backoff(first_s=0.5, most_s=30.0)
#: Results that mean that the topic exists.
_DONE = (int(ErrorCode.none), int(ErrorCode.topic_already_exists))


class TopicRequests:
    """Names to request, with the earliest time of each. Pure; ``now_s`` is monotonic."""

    def __init__(self) -> None:
        #: Principal that a name is requested for.
        self._waiting: dict[str, str] = {}
        self._of: Counter[str] = Counter()
        self._tried: Lru[str, Backoff] = Lru(_REMEMBERED_MAX)

    def add(self, name: str, principal: str, now_s: float) -> bool:
        """Return whether the name will be requested: it was not just now, and there is room.

        The broker's own requests (no ``principal``) are always accepted, whatever clients name.
        """
        if name in self._waiting or (principal and not self._has_room(principal)):
            return False
        # A failed creation is not repeated with every metadata request.
        tried = self._tried.get(name)
        if tried is not None and not tried.ready(now_s):
            return False
        self._waiting[name] = principal
        self._of[principal] += 1
        return True

    def _has_room(self, principal: str) -> bool:
        return len(self._waiting) < WAITING_MAX and self._of[principal] < WAITING_MAX // 2

    def take(self, now_s: float) -> dict[str, str]:
        """Return the names of the next message with their principals: the broker's own first, then
        in order.

        They are not requested again until their pause is over. :meth:`succeeded` resets it to the
        shortest.
        """
        # Groups and transactions depend on the broker's own topics.
        in_turn = sorted(self._waiting.items(), key=lambda item: item[1] != "")
        taken = dict(in_turn[:CHANGES_MAX])
        for name in taken:
            self._of[self._waiting.pop(name)] -= 1
            self._tried.put(name, (self._tried.get(name) or _FIRST).failed(now_s))
        self._tried.evict()
        self._of = +self._of  # drop principals without waiting names
        return taken

    def succeeded(self, names: Iterable[str], now_s: float) -> None:
        """Reset the pauses of topics that were created: a later request is a new need."""
        for name in names:
            self._tried.put(name, _FIRST.failed(now_s))


class Creations:
    """Queue of topics to create.

    :meth:`request` from anywhere on the loop; :meth:`run` in a task. ``entries``: the broker's
    configuration file.
    """

    def __init__(
        self,
        forwarder: ChangeForwarder,
        cluster: MetadataCache,
        entries: Mapping[str, str],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._forwarder = forwarder
        self._cluster = cluster
        self._entries = entries
        self._monotonic = monotonic
        # Clients' names are bounded here, before anything is sent.
        self._pending = TopicRequests()
        self._news = asyncio.Event()

    def request(self, name: str, *, principal: str = "") -> None:
        """Request a topic, if it does not exist and may be created.

        It does not wait, and may be called repeatedly. ``principal``: the client it is requested
        for, if any.
        """
        is_there = name in self._cluster.topics
        # A coordinator's topic that is shown but not served must be created again.
        if name in COORDINATORS_TOPICS:
            is_there = self._cluster.has_topic(name)
        if is_there or not self.may_create(name):
            return
        if self._pending.add(name, principal, self._monotonic()):
            self._news.set()

    def may_create(self, name: str) -> bool:
        """Return whether the topic may be created: a coordinator's always, another one if the
        Cluster allows it.
        """
        allowed = self._cluster.cluster_config.get(AUTO_CREATE_TOPICS) == "true"
        return name in COORDINATORS_TOPICS or (allowed and name not in INTERNAL_TOPICS)

    async def run(self) -> None:
        """Send the requested creations until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while taken := self._pending.take(self._monotonic()):
                await self._create(taken)

    async def _create(self, taken: Mapping[str, str]) -> None:
        by_principal: dict[str, list[str]] = {}
        for name, principal in taken.items():
            by_principal.setdefault(principal, []).append(name)
        # One message for each principal, because the audit log records it.
        for principal, names in by_principal.items():
            await self._create_for(principal, names)

    async def _create_for(self, principal: str, names: list[str]) -> None:
        requester = Requester(principal or "a broker", "the cluster")
        changes = [self._change(name) for name in names]
        results = await self._forwarder.change(changes, requester, timeout_s=_TIMEOUT_S)
        made = []
        for name, result in zip(names, results, strict=True):
            if result.error_code in _DONE:
                made.append(name)
            else:
                logger.warning("topic %s was not created: %s", name, result.error_message)
        self._pending.succeeded(made, self._monotonic())

    def _change(self, name: str) -> TopicChange:
        if name in COORDINATORS_TOPICS:
            return creation_of(name, self._entries)
        return TopicChange(kind=ChangeKind.CREATE, name=name, topic_id=None, automatic=True)


def creation_of(topic: str, entries: Mapping[str, str]) -> TopicChange:
    """Return the creation of one of ``COORDINATORS_TOPICS``, as the broker's configuration says."""
    # Kafka's keys differ between both topics, and only one has a minimum ISR.
    if topic == GROUP_OFFSETS_TOPIC:
        partitions = integer_of(entries, "offsets.topic.num.partitions")
        replicas = integer_of(entries, "offsets.topic.replication.factor")
        segment_bytes = integer_of(entries, "offsets.topic.segment.bytes")
        config = {}
    elif topic == TRANSACTION_STATE_TOPIC:
        partitions = integer_of(entries, "transaction.state.log.num.partitions")
        replicas = integer_of(entries, "transaction.state.log.replication.factor")
        segment_bytes = integer_of(entries, "transaction.state.log.segment.bytes")
        min_isr = integer_of(entries, "transaction.state.log.min.isr")
        config = {
            "min.insync.replicas": str(min_isr),
            "unclean.leader.election.enable": "false",
        }
    else:
        raise ValueError(f"{topic} is not a topic of a coordinator")
    config |= {"cleanup.policy": "compact", "segment.bytes": str(segment_bytes)}
    return TopicChange(
        kind=ChangeKind.CREATE,
        name=topic,
        topic_id=None,
        partitions=i32(min(partitions, _PARTITIONS_MAX)),
        replication_factor=i32(min(replicas, _REPLICAS_MAX)),
        settings=tuple(
            Setting(name=name, value=value, operation=SettingOperation.SET)
            for name, value in sorted(config.items())
        ),
        automatic=True,
    )
