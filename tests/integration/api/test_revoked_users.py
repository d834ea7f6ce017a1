"""A user that is deleted, or has another password, is disconnected, even with requests in
flight.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.integration.api.api_broker import ApiBroker, running
from tests.security.test_unauthenticated_clients import plain
from tests.unit.api import api_requests as kafka
from tests.user_states import user, user_states
from tidemark.wire.connection import ConnectionClosed, KafkaConnection
from tidemark_broker.api.time_slices import TimeSlices

ENTRIES = {
    "listeners": "127.0.0.1:0,OPEN://127.0.0.1:0",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,OPEN:SASL_PLAINTEXT",
    "sasl.enabled.mechanisms": "PLAIN",
    "tidemark.sasl.unencrypted.secrets": "true",
}
ACL = "ALLOW ALL TOPIC orders"


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[ApiBroker]:
    async with running(tmp_path, ENTRIES) as started:
        await started.create("orders")
        yield started


@pytest.mark.parametrize("authorize", [False, True])
async def test_request_that_sees_the_new_users_first_keeps_no_user_connected(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch, authorize: bool
) -> None:
    """The handler yields in the middle, and checks the client's permissions afterwards."""
    broker.broker.users.apply(user_states(user("ann", ACL, password="old"), authorize=authorize))
    port = broker.broker.listeners.servers["OPEN"].port
    client = await KafkaConnection.connect("127.0.0.1", port, client_id="x")
    began, may_go_on = asyncio.Event(), asyncio.Event()

    async def give(_: TimeSlices) -> None:
        began.set()
        await may_go_on.wait()

    monkeypatch.setattr(TimeSlices, "over", property(lambda _: True))
    monkeypatch.setattr(TimeSlices, "give", give)
    asking = kafka.metadata(9, (("orders", None), ("others", None)))
    may_go_on.set()
    assert (await plain(client, "ann", "old")).error_code.name == "none"
    may_go_on.clear()
    began.clear()
    under_way = asyncio.create_task(client.request(asking, kafka.answer_type(3, 9), 10))
    await asyncio.wait_for(began.wait(), 10)
    new = user("ann", ACL, password="new")
    broker.broker.users.apply(user_states(new, authorize=authorize))
    may_go_on.set()
    await under_way
    with pytest.raises(ConnectionClosed):
        await client.request(asking, kafka.answer_type(3, 9), 10)
    await client.close()
