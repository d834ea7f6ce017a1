"""Topics that are needed and are not there: those of the coordinators, and, where the Cluster lets
them be created automatically, those that clients ask the metadata of.

Whoever needs one says so and goes on; it comes with the metadata, or is asked for again. What is
asked for is sent together, each name at most once in a while, longer after each failure; names that
wait have a limit, since any client can name any number of them.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from kio.schema.errors import ErrorCode

from tidemark.backoff import Backoff
from tidemark.configuration.broker_keys import AUTO_CREATE_TOPICS
from tidemark.logfiles.names import COORDINATORS_TOPICS, INTERNAL_TOPICS
from tidemark.lru import Lru
from tidemark.wire.topics import CHANGES_MAX, ChangeKind, TopicChange
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.topic_changes.forwarder import Asker, ChangeForwarder
from tidemark_broker.topic_changes.internal_topics import creation_of

logger = logging.getLogger(__name__)

#: Names of clients that may wait to be sent, half of them of one; more are not heard until there is
#: room.
WAITING_MAX = 1000
#: Names of which it is known when they were last asked for.
_REMEMBERED_MAX = 10_000
_TIMEOUT_S = 30.0
_FIRST = Backoff(first_s=0.5, most_s=30.0)
#: What others have caused to be made is no failure.
_DONE = (int(ErrorCode.none), int(ErrorCode.topic_already_exists))


class Wanted:
    """Which names are to be asked for, and not sooner than when. Pure; ``now_s`` is monotonic."""

    def __init__(self) -> None:
        #: Who wants it, by name.
        self._waiting: dict[str, str] = {}
        self._of: Counter[str] = Counter()
        self._tried: Lru[str, Backoff] = Lru(_REMEMBERED_MAX)

    def add(self, name: str, principal: str, now_s: float) -> bool:
        """Whether it is to be asked for: it was not a moment ago, and there is room. What a broker
        needs itself (no ``principal``) is always heard, whatever clients name."""
        if name in self._waiting or (principal and not self._has_room(principal)):
            return False
        tried = self._tried.get(name)
        if tried is not None and not tried.ready(now_s):
            return False
        self._waiting[name] = principal
        self._of[principal] += 1
        return True

    def _has_room(self, principal: str) -> bool:
        return len(self._waiting) < WAITING_MAX and self._of[principal] < WAITING_MAX // 2

    def take(self, now_s: float) -> dict[str, str]:
        """Those of the next message, with who wants them: what a broker needs, then first come.
        They are not asked for again until their pause is over, which :meth:`succeeded` makes the
        shortest again."""
        in_turn = sorted(self._waiting.items(), key=lambda each: each[1] != "")
        taken = dict(in_turn[:CHANGES_MAX])
        for name in taken:
            self._of[self._waiting.pop(name)] -= 1
            self._tried.put(name, (self._tried.get(name) or _FIRST).failed(now_s))
        self._tried.evict()
        self._of = +self._of  # without those of whom none waits
        return taken

    def succeeded(self, names: Iterable[str], now_s: float) -> None:
        """They are made: what comes next is another need."""
        for name in names:
            self._tried.put(name, _FIRST.failed(now_s))


class Creations:
    """:meth:`want` from anywhere on the loop; :meth:`run` in a task. ``entries``: the broker's
    file."""

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
        self._wanted = Wanted()
        self._news = asyncio.Event()

    def want(self, name: str, *, principal: str = "") -> None:
        """Have a topic created, if it is not there and may be. Does not wait, and may be said as
        often as it is needed. ``principal``: on whose behalf, where it is a client's."""
        is_there = name in self._cluster.topics
        if name in COORDINATORS_TOPICS:
            is_there = self._cluster.has_topic(name)
        if is_there or not self.may_create(name):
            return
        if self._wanted.add(name, principal, self._monotonic()):
            self._news.set()

    def may_create(self, name: str) -> bool:
        """A coordinator's topic always, another one as the Cluster says."""
        allowed = self._cluster.cluster_config.get(AUTO_CREATE_TOPICS) == "true"
        return name in COORDINATORS_TOPICS or (allowed and name not in INTERNAL_TOPICS)

    async def run(self) -> None:
        """Ask for what is wanted, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            while taken := self._wanted.take(self._monotonic()):
                await self._create(taken)

    async def _create(self, wanted: Mapping[str, str]) -> None:
        by_principal: dict[str, list[str]] = {}
        for name, principal in wanted.items():
            by_principal.setdefault(principal, []).append(name)
        for principal, names in by_principal.items():
            await self._create_for(principal, names)

    async def _create_for(self, principal: str, names: list[str]) -> None:
        asker = Asker(principal or "a broker", "the cluster")
        changes = [self._change(name) for name in names]
        results = await self._forwarder.change(changes, asker, timeout_s=_TIMEOUT_S)
        made = []
        for name, result in zip(names, results, strict=True):
            if result.error_code in _DONE:
                made.append(name)
            else:
                logger.warning("topic %s was not created: %s", name, result.error_message)
        self._wanted.succeeded(made, self._monotonic())

    def _change(self, name: str) -> TopicChange:
        if name in COORDINATORS_TOPICS:
            return creation_of(name, self._entries)
        return TopicChange(kind=ChangeKind.CREATE, name=name, topic_id=None, automatic=True)
