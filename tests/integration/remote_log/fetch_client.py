"""A client that fetches and looks up offsets over a socket, as consumers do."""

import asyncio
from typing import Any

from kio.schema.errors import ErrorCode

from tests.integration.remote_log.tiered_host import TOPIC, TieredHost
from tests.unit.api import api_requests as kafka
from tidemark.records.batch import iter_headers
from tidemark.wire.connection import KafkaConnection

# Fetch version 12 still names topics; from version 13 on a request carries topic ids.
FETCH_VERSION = 12


class TierClient:
    def __init__(self, host: TieredHost, connection: KafkaConnection) -> None:
        self.host = host
        self._connection = connection

    async def fetch(self, *offsets: int, **values: Any) -> list[Any]:
        """Fetch partitions 0, 1, ... at these offsets; return their part of the answer."""
        request = kafka.fetch(FETCH_VERSION, TOPIC, *offsets, **values)
        answer: Any = await self._connection.request(
            request, kafka.answer_type(kafka.FETCH, FETCH_VERSION), 20
        )
        assert answer.error_code is ErrorCode.none
        return list(answer.responses[0].partitions)

    async def repaired(self, offset: int) -> Any:
        """Fetch from a repaired segment of partition 0 once the pause of its failure is over."""
        async with asyncio.timeout(10):
            (part,) = await self.fetch(offset)
            while part.error_code is not ErrorCode.none:
                (part,) = await self.fetch(offset)
                await asyncio.sleep(0.02)
        return part

    async def introduce(self, software: str) -> None:
        """Name the client's library, as clients do first."""
        request = kafka.request(18, 3, client_software_name=software, client_software_version="1")
        answer: Any = await self._connection.request(request, kafka.answer_type(18, 3), 20)
        assert answer.error_code is ErrorCode.none

    async def replicas(self) -> list[int]:
        """Return the replicas of partition 0 in the metadata."""
        request = kafka.metadata(9, ((TOPIC, None),))
        answer: Any = await self._connection.request(request, kafka.answer_type(3, 9), 20)
        return list(answer.topics[0].partitions[0].replica_nodes)

    async def list_offset(self, timestamp: int) -> Any:
        answer: Any = await self._connection.request(
            kafka.list_offsets(7, TOPIC, timestamp), kafka.answer_type(kafka.LIST_OFFSETS, 7), 20
        )
        return answer.topics[0].partitions[0]


def offsets_of(part: Any) -> list[int]:
    """Return the first offset of each batch."""
    return [header.base_offset for _, header in iter_headers(bytes(part.records))]
