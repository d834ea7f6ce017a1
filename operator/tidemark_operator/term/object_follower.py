"""Objects of one namespace as the watches deliver them, leading or not.

kopf watches the kinds with few objects, the informers the kinds with thousands. Both end in one
store, and the present term is notified of each change. The process follows the objects before it
leads, so that a takeover finds them, and after a term, so that the next one does.

The deletion of a CustomResourceDefinition (``kubectl delete crd``, an uninstalled chart) makes
Kubernetes delete all objects of the kind. These deletions are no decisions about topics, users or
brokers, so the operator ignores them: the store retains the objects unchanged, and the cluster
continues. A deletion counts once the API server has shown that the kind is served
(:mod:`tidemark_operator.kube.definitions`).
"""

import asyncio
import collections
import logging
import time
from collections.abc import Callable

from tidemark_operator.health import Echoes
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.definitions import Definition, look_at_definition
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.informer import Informer
from tidemark_operator.kube.kinds import (
    BROKER,
    BY_KIND,
    CLUSTER,
    MANY,
    TOPIC,
    Json,
    Key,
    Kind,
    key_of,
)
from tidemark_operator.objects.store import ObjectCache

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 3.0
#: Kinds whose objects are retained while it is not known whether the kind stays. A deleted User
#: loses its access.
_WITH_DATA = (TOPIC.kind, BROKER.kind, CLUSTER.kind)


class DefinitionWatch:
    """Checks deletions in doubt, whether or not this operator leads.

    ``deliver`` is called with an object whose deletion counts, and whether it is deleted.
    ``changed`` is called when the set of definitions that are being deleted changes.
    """

    def __init__(
        self,
        objects: ObjectCache,
        namespace: str,
        deliver: Callable[[Key, bool], None],
        changed: Callable[[], None],
    ) -> None:
        """Prepare the watch. ``deliver`` receives each key whose deletion counts from now on."""
        self._objects = objects
        self._namespace = namespace
        self._deliver = deliver
        self._changed = changed
        self._wake = asyncio.Event()
        #: Plurals with the group, of definitions that are being deleted or do not exist.
        self.leaving: frozenset[str] = frozenset()

    async def run(self, api: KubeApi) -> None:
        """Check deletions until cancelled."""
        self._objects.on_unconfirmed = self._wake.set
        while True:
            # Sleep until a deletion is in doubt; while one is, look again at intervals.
            pause_s = LOOK_AGAIN_S if self.leaving or self._objects.kinds_to_check() else None
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self._look(api)

    async def _look(self, api: KubeApi) -> None:
        """Check whether the CustomResourceDefinition of a kind is being deleted.

        Deleting a CRD deletes all its objects. Such a deletion must not delete topics, so a
        reported deletion only counts after this check.
        """
        leaving: set[str] = set()
        for kind in BY_KIND.values():
            name = f"{kind.plural}.{kind.group}"
            # A request is only needed for an unconfirmed deletion, or to see a known one end.
            if kind.kind not in self._objects.kinds_to_check() and name not in self.leaving:
                continue
            try:
                found = await look_at_definition(api, kind, self._namespace)
            except KubeError as error:
                logger.warning(
                    "unknown whether the definition of %s is being deleted: %s", name, error
                )
                # Without an answer the last known state holds.
                leaving |= {name} & self.leaving
                continue
            if found is Definition.LEAVING:
                leaving.add(name)
                self._objects.keep_with_kind(kind.kind)
            else:
                self._accept(kind, found)
        self._notify(frozenset(leaving))

    def _accept(self, kind: Kind, found: Definition) -> None:
        """Let the deletions of a kind's objects count, because its CRD is not being deleted."""
        # An account of an older chart may not read definitions. Data is retained until it may.
        if found is Definition.UNKNOWN and kind.kind in _WITH_DATA:
            logger.warning(
                "a %s is being deleted, but the operator's account may not "
                "read the definition of %s, which may be deleted, too. Nothing "
                "is deleted until it may. Upgrade tidemark-base",
                kind.kind,
                kind.plural,
            )
            return
        for key, gone in self._objects.release(kind.kind):
            self._deliver(key, gone)

    def _notify(self, leaving: frozenset[str]) -> None:
        """Report which CRDs are being deleted, if that has changed."""
        if leaving == self.leaving:
            return
        for name in sorted(leaving - self.leaving):
            logger.warning(
                "the definition of %s is being deleted; its objects are kept unchanged", name
            )
        for name in sorted(self.leaving - leaving):
            logger.info("%s is served again", name)
        self.leaving = leaving
        self._changed()


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
        ``definitions_changed`` is called when ``definitions.leaving`` changes.
        """
        self._namespace = namespace
        self._deliver = deliver
        self._report_restore = restored
        self.objects = ObjectCache(self._restart)
        #: Set when the informers have to list again.
        self._restored = asyncio.Event()
        #: Detects watches that do not deliver our own writes.
        self.echoes = Echoes(time.monotonic)
        #: Set when an object of a kind with few objects changes, such as the Cluster.
        self.changed = asyncio.Event()
        #: Objects that kopf's thread brought, and whether each was deleted.
        self.arrived: collections.deque[tuple[Json, bool]] = collections.deque()
        #: Checks deletions against their definitions.
        self.definitions = DefinitionWatch(
            self.objects, namespace, self._deliver_confirmed, definitions_changed
        )

    async def follow(self, api: KubeApi) -> None:
        """Watch the kinds with thousands of objects until cancelled.

        Each watch is expected to start, even if nothing is ever written. After a restore of the API
        server's data all kinds are listed again: the API server sends nothing to a watch that
        continues from a version that it has not reached again.
        """
        while True:
            self._restored.clear()
            informers = []
            async with asyncio.TaskGroup() as group:
                for kind in MANY:
                    self.echoes.wrote(kind.kind, self.echoes.begins())
                    run = Informer(api, kind, self._namespace, self).run()
                    informers.append(group.create_task(run, name=f"informer of {kind.plural}"))
                await self._restored.wait()
                for informer in informers:
                    informer.cancel()

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

    def _restart(self, sign: str) -> None:
        """Report a restore of the API server's data, and list everything again."""
        self._restored.set()
        self._report_restore(sign)

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
