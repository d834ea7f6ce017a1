"""Producer ids, handed out to brokers in blocks of 1,000 (Kafka's ``ProducerIdControlManager``).

The first id that was never handed out stands in the Cluster's status. A block counts as given once
a write under the resourceVersion last seen has moved that on, so none is given twice, whoever
leads; where the API server does not say whether the write took place, the block is lost.
"""

import asyncio
import logging

from kio.schema.errors import ErrorCode

from tidemark.configuration.values import INT64_MAX
from tidemark.wire.control import AllocateProducerIdsResponse
from tidemark_operator.controller.topic_restore import first_producer_id
from tidemark_operator.kube.errors import Conflict, KubeError
from tidemark_operator.kube.kinds import CLUSTER
from tidemark_operator.reconcile.services import Services

logger = logging.getLogger(__name__)

BLOCK_IDS = 1_000
TRIES_MAX = 10


class ProducerIdBlocks:
    """Of one term."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._lock = asyncio.Lock()

    async def allocate(self, broker_id: int) -> AllocateProducerIdsResponse:
        """A block for that broker."""
        async with self._lock:
            for _ in range(TRIES_MAX):
                try:
                    first = await self._try()
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
        """The first id of a block that is given now; None where there is none any more."""
        services, key = self._services, self._services.cluster_key
        status = dict((services.objects.get(key) or {}).get("status") or {})
        first = max(int(status.get("nextProducerId", 0)), first_producer_id(services.state))
        if first > INT64_MAX - BLOCK_IDS:
            return None
        status["nextProducerId"] = first + BLOCK_IDS
        try:
            await services.statuses.write(CLUSTER, key, status)
        except KubeError:
            await services.client.refresh(key)
            raise
        return first
