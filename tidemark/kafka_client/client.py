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
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Self, TypeVar

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse

from tidemark.kafka_client.access import Access, Address, Login, Tls, parse_address
from tidemark.kafka_client.sasl import LoginFailed, exchange
from tidemark.wire.connection import ConnectionClosed, KafkaConnection
from tidemark.wire.framing import FrameError

logger = logging.getLogger(__name__)
R = TypeVar("R")
P = TypeVar("P", bound=asyncio.BaseProtocol)

CLIENT_ID = "tidemark"
CONNECT_TIMEOUT_S = 10.0
REQUEST_TIMEOUT_S = 30.0
_FRAME_BYTES_MAX = 256 * 1024 * 1024
#: A login ends so long before brokers say that it does (KIP-368: then they end the connection).
_LOGIN_MARGIN = 0.85


class KafkaError(Exception):
    """A cluster did not do what was asked; the text says what to do where anybody can."""


class Unreachable(KafkaError):
    """No answer: ask again later. What was asked may have been done."""


class Refused(KafkaError):
    """The cluster cannot be spoken to as it was said: nothing heals that but a person."""


class _Dialer:
    """TLS as a client that checks the broker's name."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        _, protocol = await asyncio.get_running_loop().create_connection(
            factory, host, port, ssl=self._tls.context(), server_hostname=host
        )
        return protocol


class _Broker:
    """A connection to one address; ``good_until_s`` (monotonic) is the end of its login."""

    def __init__(self, connection: KafkaConnection, good_until_s: float) -> None:
        self.connection = connection
        self.good_until_s = good_until_s

    @property
    def usable(self) -> bool:
        return not self.connection.closed and time.monotonic() < self.good_until_s


class KafkaClient:
    """Belongs to the loop it is used on; close it. Many requests may be under way at once."""

    def __init__(self, access: Access, *, client_id: str = CLIENT_ID) -> None:
        self._access = access
        self._client_id = client_id
        self._open: dict[Address, _Broker] = {}
        self._dialling: dict[Address, asyncio.Lock] = {}
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
        lock = self._dialling.setdefault(address, asyncio.Lock())
        async with lock:
            broker = self._open.get(address)
            if broker is not None and broker.usable:
                return broker
            if broker is not None:
                await self._drop(address, broker)
            broker = self._open[address] = await self._connect(address)
            return broker

    async def _connect(self, address: Address) -> _Broker:
        dialer = None if self._access.tls is None else _Dialer(self._access.tls)
        try:
            connection = await KafkaConnection.connect(
                *address,
                client_id=self._client_id,
                timeout_s=CONNECT_TIMEOUT_S,
                frame_bytes_max=_FRAME_BYTES_MAX,
                dialer=dialer,
            )
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of {address} is not trusted: {error.verify_message}"
            raise Refused(text) from error
        except ssl.SSLError as error:
            text = f"no TLS with {address}: {error.reason or error} (is it a listener with TLS?)"
            raise Refused(text) from error
        except TimeoutError as error:
            text = f"{address} did not answer in {CONNECT_TIMEOUT_S:.0f} s"
            raise Unreachable(text) from error
        except OSError as error:
            ended = isinstance(error, ConnectionError) and dialer is not None
            text = error.strerror or str(error) or type(error).__name__
            hint = " (is it a listener with TLS?)" if ended else ""
            raise Unreachable(f"{address}: {text}{hint}") from error
        try:
            lifetime_s = await self._begin(address, connection)
        except BaseException:
            connection.abort()
            raise
        good_s = lifetime_s * _LOGIN_MARGIN if lifetime_s else float("inf")
        return _Broker(connection, time.monotonic() + good_s)

    async def _begin(self, address: Address, connection: KafkaConnection) -> float:
        """See that it speaks Kafka, and log in; for how long that is good."""
        try:
            versions = await connection.request(
                ApiVersionsRequest(client_software_name=CLIENT_ID, client_software_version="1"),
                ApiVersionsResponse,
                CONNECT_TIMEOUT_S,
            )
            check_versions(address, versions)
            if self._access.login is None:
                return 0.0
            return await _log_in(connection, self._access.login)
        except LoginFailed as error:
            raise Refused(f"{address}: {error}") from error
        except TimeoutError as error:
            raise Unreachable(f"{address} did not answer in {CONNECT_TIMEOUT_S:.0f} s") from error
        except FrameError as error:
            raise Refused(f"{address} does not speak Kafka as we do: {error}") from error
        except ConnectionClosed as error:
            hint = "" if self._access.tls else " (is it a listener with TLS?)"
            raise Unreachable(f"{address} ended the connection at once{hint}: {error}") from error

    async def _ask(
        self, address: Address, broker: _Broker, request: Any, answer: type[R], timeout_s: float
    ) -> R:
        logger.debug("asked %s: %s", address, type(request).__name__)
        try:
            return await broker.connection.request(request, answer, timeout_s)
        except TimeoutError as error:
            await self._drop(address, broker)
            raise Unreachable(f"{address} did not answer in {timeout_s:.0f} s") from error
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


async def _log_in(connection: KafkaConnection, login: Login) -> float:
    steps = exchange(login)
    try:
        request, answer_type = next(steps)
        while True:
            answer = await connection.request(request, answer_type, CONNECT_TIMEOUT_S)
            request, answer_type = steps.send(answer)
    except StopIteration as ended:
        return float(ended.value)


#: What administration needs: api key -> the version that is spoken, and its name.
SPOKEN = {
    3: (12, "Metadata"),
    2: (9, "ListOffsets"),
    19: (7, "CreateTopics"),
    20: (6, "DeleteTopics"),
    21: (2, "DeleteRecords"),
    32: (4, "DescribeConfigs"),
    37: (3, "CreatePartitions"),
    44: (1, "IncrementalAlterConfigs"),
    45: (0, "AlterPartitionReassignments"),
    46: (0, "ListPartitionReassignments"),
    60: (2, "DescribeCluster"),
}


def check_versions(address: Address, answer: ApiVersionsResponse) -> None:
    """That a broker serves what is spoken here. Raises :class:`Refused`."""
    if answer.error_code:
        raise Refused(f"{address} answers ApiVersions with {answer.error_code.name}")
    served = {int(each.api_key): each for each in answer.api_keys}
    for key, (version, name) in SPOKEN.items():
        found = served.get(key)
        if found is None or not found.min_version <= version <= found.max_version:
            raise Refused(
                f"{address} does not serve {name} in version {version}: Apache Kafka does from 4.0 "
                "on"
            )
