"""Connections to the brokers of a Kafka cluster: to any of them, or to one by its id.

Kafka forwards what concerns the cluster to its controller (KIP-590), so most requests may go to any
broker; what is a broker's own to say (its view of a configuration) or a leader's to do goes to the
one that is named. Nothing is tried again here, but on another bootstrap address: whoever asks is
level-based, and knows best whether asking again does harm. Errors say which of two kinds they are:
what may heal by itself (:class:`Unreachable`), and what a person has to mend (:class:`Refused`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self, TypeVar

from tidemark.backoff import Backoff
from tidemark.kafka_client.access import Access, Address, parse_address
from tidemark.kafka_client.dialing import dial
from tidemark.kafka_client.errors import KafkaError, Refused, Unreachable
from tidemark.wire.connection import ConnectionClosed, KafkaConnection
from tidemark.wire.framing import FrameError

logger = logging.getLogger(__name__)
R = TypeVar("R")

CLIENT_ID = "tidemark"
REQUEST_TIMEOUT_S = 30.0
#: Between tries of an address that could not be connected to, whoever asks for it.
RETRY = Backoff(first_s=0.5, most_s=4.0)
#: A login ends so long before brokers say that it does (KIP-368: then they end the connection).
_LOGIN_MARGIN = 0.85
#: What a broker hands on, and answers only once a controller has (KIP-590).
_FORWARDED = frozenset(
    {
        "CreateTopicsRequest",
        "CreatePartitionsRequest",
        "DeleteTopicsRequest",
        "IncrementalAlterConfigsRequest",
        "AlterPartitionReassignmentsRequest",
        "ListPartitionReassignmentsRequest",
    }
)


class _Broker:
    """A connection to one address; ``good_until_s`` (monotonic) is the end of its login."""

    def __init__(self, connection: KafkaConnection, good_until_s: float) -> None:
        self.connection = connection
        self.good_until_s = good_until_s

    @property
    def usable(self) -> bool:
        return not self.connection.closed and time.monotonic() < self.good_until_s


class _Failed(NamedTuple):
    """Why an address could not be connected to, and when that may be tried again."""

    error: KafkaError
    pause: Backoff


class KafkaClient:
    """Belongs to the loop it is used on; close it. Many requests may be under way at once."""

    def __init__(self, access: Access, *, client_id: str = CLIENT_ID) -> None:
        self._access = access
        self._client_id = client_id
        self._open: dict[Address, _Broker] = {}
        self._dialing: dict[Address, asyncio.Lock] = {}
        self._failed: dict[Address, _Failed] = {}
        self._nodes: dict[int, Address] = {}
        self._last: Address | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def use(self, access: Access) -> None:
        """Reach the cluster in another way from now on."""
        if access != self._access:
            self._access = access
            self._failed.clear()
            await self.close()

    async def close(self) -> None:
        """End all connections."""
        ended, self._open = list(self._open.values()), {}
        await asyncio.gather(*(broker.connection.close() for broker in ended))

    def know(self, nodes: Mapping[int, Address]) -> None:
        """Where each broker listens, as the cluster says: of all of them."""
        self._nodes = dict(nodes)

    async def any(self, request: Any, answer: type[R], timeout_s: float = REQUEST_TIMEOUT_S) -> R:
        """The answer of whichever broker takes a connection. Raises :class:`KafkaError`."""
        problems: list[str] = []
        for address in self._candidates():
            try:
                broker = await self._broker(address)
            except Unreachable as error:
                problems.append(str(error))
                continue
            self._last = address
            return await self._ask(address, broker, request, answer, timeout_s)
        raise Unreachable("; ".join(problems) or "no bootstrap server was given")

    async def node(
        self, node_id: int, request: Any, answer: type[R], timeout_s: float = REQUEST_TIMEOUT_S
    ) -> R:
        """The answer of one broker. Raises :class:`KafkaError`."""
        address = self._nodes.get(node_id)
        if address is None:
            raise Unreachable(f"broker {node_id} is not known to the cluster")
        broker = await self._broker(address)
        return await self._ask(address, broker, request, answer, timeout_s)

    # ------------------------------------------------------------ connections

    def _candidates(self) -> Iterable[Address]:
        """Who was asked last, then those that are connected, then all that are known."""
        connected = [address for address, broker in self._open.items() if broker.usable]
        bootstrap = [parse_address(text) for text in self._access.bootstrap]
        last = [self._last] if self._last in connected else []
        return dict.fromkeys([*last, *connected, *bootstrap, *self._nodes.values()])

    async def _broker(self, address: Address) -> _Broker:
        lock = self._dialing.setdefault(address, asyncio.Lock())
        async with lock:
            broker = self._open.get(address)
            if broker is not None and broker.usable:
                return broker
            if broker is not None:
                await self._drop(address, broker)
            broker = self._open[address] = await self._connect(address)
            return broker

    async def _connect(self, address: Address) -> _Broker:
        """Dial it, unless that has failed a moment ago: however many ask, an address is tried a few
        times a minute."""
        failed = self._failed.get(address)
        if failed is not None and not failed.pause.ready(time.monotonic()):
            raise type(failed.error)(str(failed.error)) from failed.error
        logger.debug("dialing %s", address)
        access = self._access
        try:
            connection, lifetime_s = await dial(address, access, self._client_id)
        except KafkaError as error:
            pause = RETRY if failed is None else failed.pause
            self._failed[address] = _Failed(error, pause.failed(time.monotonic()))
            raise
        if access is not self._access:
            connection.abort()
            raise Unreachable(f"{address} is reached in another way by now")
        self._failed.pop(address, None)
        good_s = lifetime_s * _LOGIN_MARGIN if lifetime_s else float("inf")
        return _Broker(connection, time.monotonic() + good_s)

    async def _ask(
        self, address: Address, broker: _Broker, request: Any, answer: type[R], timeout_s: float
    ) -> R:
        logger.debug("asked %s: %s", address, type(request).__name__)
        try:
            return await broker.connection.request(request, answer, timeout_s)
        except TimeoutError as error:
            await self._drop(address, broker)
            raise Unreachable(_unanswered(address, type(request).__name__, timeout_s)) from error
        except ConnectionClosed as error:
            await self._drop(address, broker)
            raise Unreachable(f"{address}: {error}") from error
        except FrameError as error:
            await self._drop(address, broker)
            raise Refused(f"{address} does not speak Kafka as we do: {error}") from error

    async def _drop(self, address: Address, broker: _Broker) -> None:
        if self._open.get(address) is broker:
            del self._open[address]
        with contextlib.suppress(OSError):
            await broker.connection.close()


def _unanswered(address: Address, request: str, timeout_s: float) -> str:
    text = f"{address} did not answer {request.removesuffix('Request')} in {timeout_s:.0f} s"
    if request not in _FORWARDED:
        return text
    return (
        f"{text}: brokers hand that on to the active controller of the Kafka cluster, see whether "
        "most of its controllers run"
    )
