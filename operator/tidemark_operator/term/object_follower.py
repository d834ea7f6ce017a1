"""Objects of one namespace as the watches deliver them, leading or not.

kopf watches the kinds with few objects, the informers the kinds with thousands. Both end in one
store, and the present term is notified of each change. The process follows the objects before it
leads, so that a takeover finds them, and after a term, so that the next one does.
"""

import asyncio
import collections
import logging
import time
from collections.abc import Callable

from tidemark_operator.health import Echoes
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.informer import Informer
from tidemark_operator.kube.kinds import MANY, Json, Key, Kind, key_of
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.term.definitions import DefinitionWatch

logger = logging.getLogger(__name__)


class ObjectFollower:
    """Receiver of the watches, in the main loop; a ``Follower`` of the informers."""

    def __init__(
        self,
        namespace: str,
        *,
        deliver: Callable[[Key, bool], None],
        restored: Callable[[str], None],
        definitions_changed: Callable[[], None],
    ) -> None:
        """Prepare the store; :meth:`follow` starts the informers.

        ``deliver`` receives the key of each changed object, and whether it was deleted.
        ``restored`` is called with the sign that the API server's data is older than what was read.
        ``definitions_changed`` is called when :attr:`leaving_definitions` changes.
        """
        self._namespace = namespace
        self._deliver = deliver
        self.objects = ObjectCache(restored)
        #: Detects watches that do not deliver our own writes.
        self.echoes = Echoes(time.monotonic)
        #: Set when an object of a kind with few objects changes, such as the Cluster.
        self.changed = asyncio.Event()
        #: Objects that kopf's thread brought, and whether each was deleted.
        self.arrived: collections.deque[tuple[Json, bool]] = collections.deque()
        self._definitions = DefinitionWatch(
            self.objects, namespace, self._deliver_confirmed, definitions_changed
        )

    @property
    def leaving_definitions(self) -> frozenset[str]:
        """Definitions of our kinds that are being deleted or do not exist."""
        return self._definitions.leaving

    async def follow(self, api: KubeApi) -> None:
        """Watch the kinds with thousands of objects until cancelled.

        Each watch is expected to start, even if nothing is ever written.
        """
        async with asyncio.TaskGroup() as group:
            for kind in MANY:
                self.echoes.wrote(kind.kind, self.echoes.begins())
                informer = Informer(api, kind, self._namespace, self)
                group.create_task(informer.run(), name=f"informer of {kind.plural}")

    async def follow_definitions(self, api: KubeApi) -> None:
        """Check deletions against their definitions until cancelled."""
        await self._definitions.run(api)

    # ------------------------------------------------------------ kopf's watches

    def drain(self) -> None:
        """Take in everything that kopf's thread brought, in one go."""
        while self.arrived:
            self.watch_event(*self.arrived.popleft())
        self.changed.set()

    # ------------------------------------------------------------ informers

    def watch_event(self, body: Json, gone: bool) -> None:
        """Take in an object from a watch."""
        self.echoes.delivered(str(body.get("kind")))
        put = self.objects.remove if gone else self.objects.put
        self._take(body, lambda: put(body), gone=gone)

    def before_list(self, kind: Kind) -> int:
        """Prepare for a list of all objects of a kind, and expect its watch to start.

        Returns the version up to which the store knows the kind.
        """
        self.echoes.wrote(kind.kind, self.echoes.begins())
        return self.objects.reached(kind)

    def list_started(self, kind: Kind, version: int, known: int) -> None:
        """Take in the start of a list."""
        self.objects.list_started(kind, version, known)

    def list_item(self, kind: Kind, body: Json, version: int) -> None:
        """Take in an object from a list, which does not prove that the watch works."""
        self._take(body, lambda: self.objects.list_item(kind, body, version))

    def list_finished(self, kind: Kind, present: set[Key], version: int) -> None:
        """Finish a list: objects that it lacks are deleted, and the watch has proved to work."""
        self.echoes.delivered(kind.kind)
        for key in self.objects.remove_missing(kind, present, version):
            self._deliver(key, True)

    # ------------------------------------------------------------ inside

    def _take(self, body: Json, put: Callable[[], bool], *, gone: bool = False) -> None:
        """Take in one object; an unreadable one does not stop the others."""
        try:
            if put():
                self._deliver(key_of(body), gone)
        except Exception:
            meta = body.get("metadata")
            logger.exception("a %s cannot be processed: %.200s", body.get("kind"), meta)

    def _deliver_confirmed(self, key: Key, gone: bool) -> None:
        """Deliver a deletion that was in doubt until its definition was checked."""
        self._deliver(key, gone)
        self.changed.set()
