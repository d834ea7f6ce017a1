"""Limits on large responses that are made at the same time, per client and in total."""

import asyncio
import dataclasses
from typing import Any

from tests.answers import room
from tests.loop_turns import many_turns
from tests.services import services
from tests.unit.api import api_requests as kafka
from tidemark.wire.framing import encode_request
from tidemark_broker.api.client import Client
from tidemark_broker.api.serving.dispatcher import RESPONSES_AT_ONCE, Dispatcher
from tidemark_broker.api.topics import metadata
from tidemark_broker.replication.metadata import MetadataCache

FRAME = memoryview(encode_request(kafka.metadata(9, None), 5, "client")[4:])


class GatedMetadata:
    """Metadata API whose responses are finished only when the test allows it."""

    def __init__(self) -> None:
        self.dispatcher = Dispatcher(services(MetadataCache("c")))
        api = dataclasses.replace(metadata.API, handler=self._made)
        self.dispatcher._table = {api.key: api}
        self.making: list[str] = []
        self.may_end = asyncio.Event()

    async def _made(
        self, request: metadata.MetadataRequest, call: Any
    ) -> metadata.MetadataResponse:
        self.making.append(call.client.peer)
        await self.may_end.wait()
        return metadata.MetadataResponse(topics=())

    def request(self, peer: str) -> asyncio.Task[Any]:
        client = Client(peer, "PLAINTEXT")
        return asyncio.create_task(self.dispatcher.serve(FRAME, room(), client))


async def test_one_client_has_at_most_half_of_the_large_responses() -> None:
    """A response may take tens of megabytes while it is made."""
    gated = GatedMetadata()
    # 100 connections of one address request all topics. Ports do not make them different clients.
    tasks = [gated.request(f"10.0.0.1:{port}") for port in range(100)]
    await many_turns()
    assert len(gated.making) == RESPONSES_AT_ONCE // 2
    # Other addresses share the second half.
    tasks += [gated.request(f"10.0.0.{other}:1") for other in range(2, 30)]
    await many_turns()
    assert len(gated.making) == RESPONSES_AT_ONCE
    assert "10.0.0.2:1" in gated.making
    gated.may_end.set()
    assert all(await asyncio.gather(*tasks))
    assert len(gated.making) == 128
