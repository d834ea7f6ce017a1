"""Allocation of producer ids to brokers in blocks of 1,000 (Kafka's ``ProducerIdControlManager``).

The Cluster's status contains the first id that was never allocated. A block counts as allocated
once a write under the last seen resourceVersion has advanced it. No block is therefore allocated
twice, by any leader. If the API server does not answer whether the write took effect, the block is
lost.
"""

import asyncio
import logging

from kio.schema.errors import ErrorCode

from tidemark.configuration.values import INT64_MAX
from tidemark.wire.control import AllocateProducerIdsResponse
from tidemark_operator.controller.topic_restore import first_producer_id
from tidemark_operator.kube.errors import Conflict, KubeError
from tidemark_operator.kube.kinds import CLUSTER
from tidemark_operator.reconcile.services import ReconcilerServices

logger = logging.getLogger(__name__)

BLOCK_IDS = 1_000
TRIES_MAX = 10


class ProducerIdBlocks:
    """Allocator of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._lock = asyncio.Lock()

    async def allocate(self, broker_id: int) -> AllocateProducerIdsResponse:
        """Return a block of producer ids for a broker (KIP-730), or an error code.

        The block is reserved in the Cluster's status first, so that no id is handed out twice.
        """
        # Two requests at once would conflict with each other in the status.
        async with self._lock:
            for _ in range(TRIES_MAX):
                try:
                    first = await self._try()
                # Another field of the status changed: the cache is fresh again, so try again.
                except Conflict:
                    continue
                except KubeError as error:
                    logger.warning("no producer ids for broker %d: %s", broker_id, error)
                    break
                if first is None:
                    logger.error("all producer ids are allocated")
                    break
                logger.info("broker %d has the producer ids from %d on", broker_id, first)
                return AllocateProducerIdsResponse(
                    error_code=0, producer_id_start=first, producer_id_len=BLOCK_IDS
                )
        return AllocateProducerIdsResponse(
            error_code=int(ErrorCode.unknown_server_error), producer_id_start=-1, producer_id_len=0
        )

    async def _try(self) -> int | None:
        """Reserve the next block in the Cluster's status.

        Return its first id, None if none is left.
        """
        services, key = self._services, self._services.cluster_key
        status = dict((services.objects.get(key) or {}).get("status") or {})
        # A restored status may be behind the ids that brokers have reported.
        first = max(int(status.get("nextProducerId", 0)), first_producer_id(services.state))
        if first > INT64_MAX - BLOCK_IDS:
            return None
        status["nextProducerId"] = first + BLOCK_IDS
        try:
            await services.statuses.write(CLUSTER, key, status)
        except KubeError:
            # The cached status no longer matches; without a fresh one every retry would conflict.
            await services.client.refresh(key)
            raise
        return first
