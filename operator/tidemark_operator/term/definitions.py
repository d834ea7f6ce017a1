"""Check that deletions of our objects do not come from the deletion of their kind.

The deletion of a CustomResourceDefinition (``kubectl delete crd``, an uninstalled chart) makes
Kubernetes delete all objects of the kind. These deletions are no decisions about topics, users or
brokers, so the operator ignores them: the store retains the objects unchanged, and the cluster
continues. A deletion counts once the API server has shown that the kind is served
(:mod:`tidemark_operator.kube.definitions`).
"""

import asyncio
import logging
from collections.abc import Callable

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.definitions import Definition, look_at_definition
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import BROKER, BY_KIND, CLUSTER, TOPIC, Key, Kind
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
