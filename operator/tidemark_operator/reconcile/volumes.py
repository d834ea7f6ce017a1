"""Claim of a broker's volume: its growth, and the reason for a missing volume.

A pod continues with its volume if another size is refused. Only Events explain the problem of a
claim: StorageClasses cannot be read from within a namespace.
"""

import dataclasses

from tidemark_operator.controller.pod_state import PodState
from tidemark_operator.kube.errors import REFUSALS
from tidemark_operator.kube.kinds import VOLUME_CLAIM, Json
from tidemark_operator.kube.warnings import last_warning
from tidemark_operator.pods import volumes
from tidemark_operator.pods.identity import MANAGER
from tidemark_operator.reconcile.services import ReconcilerServices


class VolumeKeeper:
    """Claims of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services

    async def foreign(self, desired: Json) -> str:
        """Return why a claim of the name is not the Broker's; "" if it is, or if there is none."""
        live = await self._services.named(VOLUME_CLAIM, desired["metadata"]["name"])
        return "" if live is None else volumes.foreign(live, desired)

    async def keep(self, desired: Json, seen: PodState) -> PodState:
        """Apply the broker's PersistentVolumeClaim.

        Return ``seen`` with the claim's problem, if any.
        """
        name = desired["metadata"]["name"]
        try:
            live = await self._services.named(VOLUME_CLAIM, name)
            if live is None or not volumes.matches_manifest(live, desired):
                live = await self._apply(desired)
        except REFUSALS as error:
            return dataclasses.replace(seen, volume=f"claim {name}: {error.server_message}")
        if not volumes.is_pending(live):
            return seen
        # A pending claim: its last warning Event usually names the cause.
        services = self._services
        event = await last_warning(
            services.client.api, services.cluster_key.namespace, VOLUME_CLAIM, name
        )
        why = volumes.why_pending(live, event)
        return dataclasses.replace(seen, why=why and f"waits for its volume: {why}")

    async def _apply(self, desired: Json) -> Json:
        meta = desired["metadata"]
        return await self._services.client.api.apply(
            VOLUME_CLAIM,
            meta["namespace"],
            meta["name"],
            desired,
            manager=MANAGER,
            force=True,
            dry_run=False,
        )
