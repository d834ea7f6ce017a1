"""Connections to the brokers of a Kafka cluster: to any of them, or to one by its id.

Kafka forwards requests about the cluster to its controller (KIP-590), so most requests may be sent
to any broker. Requests that only one broker can answer (its view of a configuration, a leader's
data) are sent to that one. Nothing is retried here, except on another bootstrap address: callers
are level-based, and know whether a repetition is harmless. Errors are of two kinds: those that may
heal by themselves (:class:`Unreachable`), and those that need a person (:class:`ClusterRefused`).
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

from tidemark.backoff import Backoff
from tidemark.kafka_client.access import BrokerAddress, KafkaAccess, parse_address
from tidemark.kafka_client.dialing import dial
from tidemark.kafka_client.errors import ClusterRefused, KafkaError, Unreachable
from tidemark.wire.connection import ConnectionClosed, KafkaConnection
from tidemark.wire.framing import FrameError

logger = logging.getLogger(__name__)
R = TypeVar("R")

CLIENT_ID = "tidemark"
REQUEST_TIMEOUT_S = 30.0
#: Pauses between connection attempts to one address, shared by all callers.
RETRY = Backoff(first_s=0.5, most_s=4.0)
#: Part of a login's lifetime after which it is renewed: brokers close the connection at its end
#: (KIP-368).
_LOGIN_MARGIN = 0.85
#: Requests that a broker forwards, and answers only once a controller has (KIP-590).
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
#: Requests that may wait for other processes than the broker that receives them, or for records.
_SLOW = _FORWARDED | {"DeleteRecordsRequest", "FetchRequest", "ProduceRequest"}


#: Key of a connection: the address, and whether the connection is for slow requests. A client has
#: two connections to each address. Brokers answer one connection's requests in order, and reads
#: must not wait for a change that waits for a controller or a follower.
_ConnectionKey: TypeAlias = tuple[BrokerAddress, bool]


class _Broker:
    """Connection to one address; ``good_until_s`` (monotonic): end of its login."""

    def __init__(self, connection: KafkaConnection, good_until_s: float) -> None:
        self.connection = connection
        self.good_until_s = good_until_s

    @property
    def usable(self) -> bool:
        return not self.connection.closed and time.monotonic() < self.good_until_s


class _FailedAddress(NamedTuple):
    """Failed connection attempt: its error, and the pause before the next one."""

    error: KafkaError
    pause: Backoff


class KafkaClient:
    """Client that belongs to one loop; close it. Many requests may be in flight at once."""

    def __init__(self, access: KafkaAccess, *, client_id: str = CLIENT_ID) -> None:
        self._access = access
        self._client_id = client_id
        self._open: dict[_ConnectionKey, _Broker] = {}
        #: Locks that limit connection attempts to one at a time for each address.
        self._dialing: dict[BrokerAddress, asyncio.Lock] = {}
        self._failed: dict[BrokerAddress, _FailedAddress] = {}
        self._nodes: dict[int, BrokerAddress] = {}
        #: Address that answered a request for any broker most recently.
        self._last: BrokerAddress | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def use(self, access: KafkaAccess) -> None:
        """Use another access to the cluster from now on."""
        if access != self._access:
            self._access = access
            self._failed.clear()
            await self.close()

    async def close(self) -> None:
        """Close every connection of this client."""
        # Taken first, so that no caller uses a connection that is being closed.
        ended, self._open = list(self._open.values()), {}
        await asyncio.gather(*(broker.connection.close() for broker in ended))

    def set_nodes(self, nodes: Mapping[int, BrokerAddress]) -> None:
        """Set the addresses of all brokers, as the cluster reports them."""
        self._nodes = dict(nodes)

    async def request_any(
        self, request: Any, answer: type[R], timeout_s: float = REQUEST_TIMEOUT_S
    ) -> R:
        """Send a request to any broker that accepts a connection; return its answer.

        Addresses are tried in order, the last used one first. Raises :class:`KafkaError`.
        """
        problems: list[str] = []
        for address in self._candidates():
            key = _connection_key(address, request)
            # Only a failed connection attempt moves on to the next address. A request that was sent
            # may have been executed, so it is not repeated.
            try:
                broker = await self._connected_broker(key)
            except Unreachable as error:
                problems.append(str(error))
                continue
            self._last = address
            return await self._send(key, broker, request, answer, timeout_s)
        raise Unreachable("; ".join(problems) or "no bootstrap server was given")

    async def request_node(
        self, node_id: int, request: Any, answer: type[R], timeout_s: float = REQUEST_TIMEOUT_S
    ) -> R:
        """Return the answer of one broker. Raises :class:`KafkaError`."""
        address = self._nodes.get(node_id)
        if address is None:
            raise Unreachable(f"broker {node_id} is not known to the cluster")
        key = _connection_key(address, request)
        broker = await self._connected_broker(key)
        return await self._send(key, broker, request, answer, timeout_s)

    # ------------------------------------------------------------ connections

    def _candidates(self) -> Iterable[BrokerAddress]:
        """Return the last used address, then connected ones, then all that are known."""
        # The last used broker first: it has just answered, and its connection is warm.
        connected = [address for (address, _), broker in self._open.items() if broker.usable]
        bootstrap = [parse_address(text) for text in self._access.bootstrap]
        last = [self._last] if self._last in connected else []
        return dict.fromkeys([*last, *connected, *bootstrap, *self._nodes.values()])

    async def _connected_broker(self, key: _ConnectionKey) -> _Broker:
        """Return the open connection of that key, or open one."""
        address, _ = key
        lock = self._dialing.setdefault(address, asyncio.Lock())
        # One attempt at a time for each address: other callers wait for its result.
        async with lock:
            broker = self._open.get(key)
            if broker is not None and broker.usable:
                return broker
            # The connection has ended, or its login expires soon.
            if broker is not None:
                await self._drop(key, broker)
            broker = self._open[key] = await self._connect(address)
            return broker

    async def _connect(self, address: BrokerAddress) -> _Broker:
        """Connect to a broker and log in, unless an attempt has just failed.

        Raises the error of the last attempt during the pause after it (:data:`RETRY`), without
        trying again.
        """
        failed = self._failed.get(address)
        # A new exception of the same type, so that tracebacks of several callers do not mix.
        if failed is not None and not failed.pause.ready(time.monotonic()):
            raise type(failed.error)(str(failed.error)) from failed.error
        logger.debug("dialing %s", address)
        access = self._access
        try:
            connection, lifetime_s = await dial(address, access, self._client_id)
        except KafkaError as error:
            pause = RETRY if failed is None else failed.pause
            self._failed[address] = _FailedAddress(error, pause.failed(time.monotonic()))
            raise
        # ``use`` was called meanwhile, so this connection has the former credentials.
        if access is not self._access:
            connection.abort()
            raise Unreachable(f"{address}: the access to the cluster has changed meanwhile")
        self._failed.pop(address, None)
        # Log in again before the broker closes the connection. A lifetime of 0 means no limit.
        good_s = lifetime_s * _LOGIN_MARGIN if lifetime_s else float("inf")
        return _Broker(connection, time.monotonic() + good_s)

    async def _send(
        self, key: _ConnectionKey, broker: _Broker, request: Any, answer: type[R], timeout_s: float
    ) -> R:
        """Send one request on a connection and return its answer. Any error closes the connection.

        Raises Unreachable, or ClusterRefused if the answer is not of Kafka's protocol.
        """
        address, _ = key
        logger.debug("request to %s: %s", address, type(request).__name__)
        try:
            return await broker.connection.request(request, answer, timeout_s)
        # A broker answers in order, so the missing answer would delay all later ones.
        except TimeoutError as error:
            await self._drop(key, broker)
            raise Unreachable(_timeout_text(address, type(request).__name__, timeout_s)) from error
        except ConnectionClosed as error:
            await self._drop(key, broker)
            raise Unreachable(f"{address}: {error}") from error
        except FrameError as error:
            await self._drop(key, broker)
            raise ClusterRefused(f"{address} does not speak Kafka's protocol: {error}") from error

    async def _drop(self, key: _ConnectionKey, broker: _Broker) -> None:
        # Another caller may have opened a new connection under this key already.
        if self._open.get(key) is broker:
            del self._open[key]
        with contextlib.suppress(OSError):
            await broker.connection.close()


def _connection_key(address: BrokerAddress, request: Any) -> _ConnectionKey:
    return address, type(request).__name__ in _SLOW


def _timeout_text(address: BrokerAddress, request: str, timeout_s: float) -> str:
    """Describe a time-out; for forwarded requests the likely cause is the controller."""
    text = f"{address} did not answer {request.removesuffix('Request')} in {timeout_s:.0f} s"
    if request not in _FORWARDED:
        return text
    return (
        f"{text}: brokers forward it to the active controller of the Kafka cluster. Check that a "
        "majority of its controllers runs"
    )
