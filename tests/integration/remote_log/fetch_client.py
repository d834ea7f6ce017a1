"""A client that fetches and looks up offsets over the socket, as consumers do."""

from typing import Any

from kio.schema.errors import ErrorCode

from tests.integration.remote_log.tiered_host import TOPIC, TieredHost
from tests.unit.api import api_requests as kafka
from tidemark.records.batch import iter_headers
from tidemark.wire.connection import KafkaConnection

FETCH_VERSION = 12


class Client:
    def __init__(self, host: TieredHost, connection: KafkaConnection) -> None:
        self.host = host
        self._connection = connection

    async def fetch(self, *offsets: int, **values: Any) -> list[Any]:
        """The answers of partitions 0, 1, ..."""
        request = kafka.fetch(FETCH_VERSION, TOPIC, *offsets, **values)
        answer: Any = await self._connection.request(
            request, kafka.answer_type(kafka.FETCH, FETCH_VERSION), 20
        )
        assert answer.error_code is ErrorCode.none
        return list(answer.responses[0].partitions)

    async def list_offset(self, timestamp: int) -> Any:
        answer: Any = await self._connection.request(
            kafka.list_offsets(7, TOPIC, timestamp), kafka.answer_type(kafka.LIST_OFFSETS, 7), 20
        )
        return answer.topics[0].partitions[0]


def offsets_of(part: Any) -> list[int]:
    """First offset of each batch."""
    return [header.base_offset for _, header in iter_headers(bytes(part.records))]
