"""Discovery of the Cluster that this operator manages, and of obstacles shown in its status."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.status.conditions import ConditionValue, render, summary
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError, NotFound
from tidemark_operator.kube.kinds import CLUSTER, Json
from tidemark_operator.leadership.elector import release_lease
from tidemark_operator.leadership.terms import NotLeading, TermEnded
from tidemark_operator.settings import OperatorSettings

logger = logging.getLogger(__name__)

LOOK_FOR_CLUSTER_S = 10.0


class ClusterDiscovery:
    """Finds the Cluster: the one that the settings name, otherwise the oldest of the namespace."""

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        leads: Callable[[], bool],
        changed: asyncio.Event,
        excuse: Callable[[str], None],
    ) -> None:
        """Prepare the search.

        ``leads``: whether this process holds the Lease. ``changed`` is set when a Cluster may have
        changed. ``excuse`` receives what the search waits for, for /healthz.
        """
        self._settings = settings
        self._leads = leads
        self._changed = changed
        self._excuse = excuse

    async def find(self, api: KubeApi) -> str:
        """Wait until there is a Cluster to manage; return its name.

        Raises ``NotLeading`` if the Lease is lost meanwhile.
        """
        while True:
            if not self._leads():
                raise NotLeading("the Lease was lost before a Cluster was found")
            # Cleared before the list: a Cluster that is created meanwhile sets it again.
            self._changed.clear()
            found = await self._clusters(api)
            # Among several, the oldest.
            name = self._settings.cluster
            named = [body for body in found or () if name in ("", body["metadata"]["name"])]
            if named:
                return str(min(named, key=_age)["metadata"]["name"])
            # The last Cluster is deleted, so the namespace may delete the Lease.
            if found == []:
                await release_lease(api, self._settings.namespace, self._settings.lease_name)
            why = (
                f"waiting for a Cluster in namespace {self._settings.namespace}"
                if found is not None
                else (
                    "the API server does not serve clusters.tidemark.dev yet. "
                    "Install the resource definitions (crds/)"
                )
            )
            self._excuse(why)
            logger.info("%s", why)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_FOR_CLUSTER_S):
                    await self._changed.wait()

    async def name(self, api: KubeApi) -> str:
        """Return the name of the Cluster without waiting, "" if there is none."""
        if self._settings.cluster:
            return self._settings.cluster
        found = await api.list_all(CLUSTER, self._settings.namespace)
        return str(min(found, key=_age)["metadata"]["name"]) if found else ""

    async def report_stalled(self, api: KubeApi, reason: str, message: str) -> None:
        """Show in the Cluster's conditions why no term can start; failures are ignored."""
        with contextlib.suppress(KubeError, TermEnded):
            body = await api.get(CLUSTER, self._settings.namespace, await self.find(api))
            conditions = summary(ready=False, reason=reason, message=message, stalled=True)
            await write_cluster_conditions(api, body, conditions)

    async def _clusters(self, api: KubeApi) -> list[Json] | None:
        """Return the Clusters of the namespace, None while the API server knows no such kind.

        The watches report when it does, like the creation of a Cluster.
        """
        try:
            return await api.list_all(CLUSTER, self._settings.namespace)
        except NotFound:
            return None


async def write_cluster_conditions(
    api: KubeApi, body: Json, conditions: list[ConditionValue]
) -> None:
    """Write conditions to the Cluster's status between terms, when no other part writes it."""
    former: Json = body.get("status") or {}
    generation = int(body["metadata"]["generation"])
    rendered = render(conditions, former, generation=generation, now_ms=wall_ms())
    # An unchanged status is not written: this runs on every retry.
    if former.get("conditions") != rendered:
        status = {**former, "observedGeneration": generation, "conditions": rendered}
        await api.replace_status(CLUSTER, {**body, "status": status})


def _age(body: Json) -> tuple[str, str]:
    meta = body["metadata"]
    return str(meta["creationTimestamp"]), str(meta["name"])
