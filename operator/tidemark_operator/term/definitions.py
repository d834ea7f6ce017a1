"""Check that deletions of our objects do not come from the deletion of their kind.

The deletion of a CustomResourceDefinition (``kubectl delete crd``, an uninstalled chart) makes
Kubernetes delete all objects of the kind. These deletions are no decisions about topics, users or
brokers, so the operator does not carry them out: the store keeps the objects unchanged, and the
cluster continues. A deletion counts once the API server has shown that the kind is served
(:mod:`tidemark_operator.kube.definitions`).
"""

import asyncio
import logging
from collections.abc import Callable

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.definitions import Definition, look_at_definition
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import BROKER, BY_KIND, CLUSTER, TOPIC, Key, Kind
from tidemark_operator.objects.store import ObjectStore

logger = logging.getLogger(__name__)

LOOK_AGAIN_S = 3.0
#: Kinds whose objects are kept while it is not known whether the kind stays. A deleted User loses
#: its access.
_WITH_DATA = (TOPIC.kind, BROKER.kind, CLUSTER.kind)


class DefinitionWatch:
    """Checks deletions in doubt, whether or not this operator leads.

    ``deliver``: called with an object whose deletion counts, and whether it is gone. ``changed``:
    called when other definitions than before are being deleted."""

    def __init__(
        self,
        objects: ObjectStore,
        namespace: str,
        deliver: Callable[[Key, bool], None],
        changed: Callable[[], None],
    ) -> None:
        self._objects = objects
        self._namespace = namespace
        self._deliver = deliver
        self._changed = changed
        self._wake = asyncio.Event()
        #: Plurals with the group, of definitions that are being deleted or are gone.
        self.leaving: frozenset[str] = frozenset()

    async def run(self, api: KubeApi) -> None:
        """Check deletions until cancelled."""
        self._objects.doubted = self._wake.set
        while True:
            pause_s = LOOK_AGAIN_S if self.leaving or self._objects.in_doubt() else None
            try:
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            await self._look(api)

    async def _look(self, api: KubeApi) -> None:
        leaving: set[str] = set()
        for kind in BY_KIND.values():
            name = f"{kind.plural}.{kind.group}"
            # Only an object that disappeared, or a known deletion, is worth a request.
            if kind.kind not in self._objects.in_doubt() and name not in self.leaving:
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
                self._objects.vanish(kind.kind)
            else:
                self._carry_out(kind, found)
        self._tell(frozenset(leaving))

    def _carry_out(self, kind: Kind, found: Definition) -> None:
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

    def _tell(self, leaving: frozenset[str]) -> None:
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
