"""Tasks of fetchers end completely before the logs are closed."""

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from tests.unit.replication.replica_nodes import ReplicaNode
from tidemark.tls.dialing import Dialer
from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark.wire.control import Endpoint
from tidemark_broker.listeners import REPLICATION
from tidemark_broker.replication.following.fetcher import FetcherContext, FetchLimits
from tidemark_broker.replication.following.fetchers import Fetchers
from tidemark_broker.replication.threads import in_role_thread

P = TypeVar("P", bound=asyncio.BaseProtocol)


async def test_close_waits_for_the_thread_of_a_fetcher_that_is_ending(
    node: Callable[[int], ReplicaNode],
) -> None:
    one = node(1)
    await one.lead(0)
    begun, over = asyncio.Event(), threading.Event()

    class InThread(Dialer):
        """Dialer that works in a thread, as a fetcher does that truncates a log."""

        async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
            begun.set()
            await in_role_thread(over.wait)
            raise ConnectionError

    metadata = one.context.metadata
    address = Endpoint(name=REPLICATION, host="127.0.0.1", port=1)
    leader = replace(metadata.brokers[2], listeners=(address,))
    metadata.brokers = {**metadata.brokers, 2: leader}
    dialer = InThread(files=TlsFiles(Path("none")), expected=TlsIdentity("c", 2))
    fetchers = Fetchers(FetcherContext(one.context, FetchLimits(), lambda _: dialer, lambda: 1))
    fetchers.follow(one.partition, 2)
    await begun.wait()
    # The replica is no longer followed. Its fetcher is cancelled and waits for the thread.
    fetchers.unfollow(one.partition.tp)
    await asyncio.sleep(0.01)
    closing = asyncio.create_task(fetchers.close())
    await asyncio.sleep(0.05)
    try:
        assert not closing.done()
    finally:
        over.set()
    await asyncio.wait_for(closing, 5)
