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
from tidemark_broker.admission.time_slice import TimeSlice

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
async def test_changed_password_disconnects_despite_a_request_in_flight(
    broker: ApiBroker, monkeypatch: pytest.MonkeyPatch, authorize: bool
) -> None:
    """The handler yields in the middle, and checks the client's permissions afterwards."""
    # Logged in with the old password.
    broker.broker.users.apply(user_states(user("ann", ACL, password="old"), authorize=authorize))
    port = broker.broker.listeners.servers["OPEN"].port
    client = await KafkaConnection.connect("127.0.0.1", port, client_id="x")
    began, may_continue = asyncio.Event(), asyncio.Event()

    async def renew(_: TimeSlice) -> None:
        began.set()
        await may_continue.wait()

    # Every time slice is over, so the handler yields at each opportunity.
    monkeypatch.setattr(TimeSlice, "is_over", property(lambda _: True))
    monkeypatch.setattr(TimeSlice, "renew", renew)
    asking = kafka.metadata(9, (("orders", None), ("others", None)))
    may_continue.set()
    assert (await plain(client, "ann", "old")).error_code.name == "none"
    may_continue.clear()
    began.clear()
    # The request waits in the middle of its work.
    under_way = asyncio.create_task(client.request(asking, kafka.answer_type(3, 9), 10))
    await asyncio.wait_for(began.wait(), 10)
    # The password changes while the request is in flight.
    new = user("ann", ACL, password="new")
    broker.broker.users.apply(user_states(new, authorize=authorize))
    may_continue.set()
    # The request itself is completed, then the connection is closed.
    await under_way
    with pytest.raises(ConnectionClosed):
        await client.request(asking, kafka.answer_type(3, 9), 10)
    await client.close()
