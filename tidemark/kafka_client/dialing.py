"""Connection to one broker, up to where requests can be sent: TLS, API versions, login.

Errors name the remedy. With TLS 1.3 a broker verifies the client certificate after the client's
part of the handshake, so a refusal looks like a connection that ends at once. The alert names the
cause; without an alert, an expired client certificate does.
"""

import asyncio
import datetime as dt
import ssl
import time
from collections.abc import Callable
from typing import TypeVar

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.api_versions.v3.response import ApiVersionsResponse

from tidemark.kafka_client.access import BrokerAddress, KafkaAccess, Login, Tls
from tidemark.kafka_client.errors import ClusterRefused, Unreachable
from tidemark.kafka_client.sasl import LoginFailed, exchange
from tidemark.wire.connection import ConnectionClosed, KafkaConnection
from tidemark.wire.framing import FrameError

P = TypeVar("P", bound=asyncio.BaseProtocol)

CONNECT_TIMEOUT_S = 10.0
SOFTWARE = "tidemark"
_FRAME_BYTES_MAX = 256 * 1024 * 1024
#: OpenSSL's codes for a broker's certificate that has expired, or is not valid yet.
_OUT_OF_TIME = {9, 10}


class _Dialer:
    """TLS of a client that checks the broker's name."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._context = context

    async def connect(self, factory: Callable[[], P], host: str, port: int) -> P:
        _, protocol = await asyncio.get_running_loop().create_connection(
            factory, host, port, ssl=self._context, server_hostname=host
        )
        return protocol


async def dial(
    address: BrokerAddress, access: KafkaAccess, client_id: str
) -> tuple[KafkaConnection, float]:
    """Return a usable connection, and the seconds for which its login is valid (0.0: for ever).

    Raises :class:`~tidemark.kafka_client.errors.KafkaError`.
    """
    connection = await _connect(address, access, client_id)
    try:
        return connection, await _check_and_log_in(address, access, connection)
    except BaseException:
        connection.abort()
        raise


async def _connect(address: BrokerAddress, access: KafkaAccess, client_id: str) -> KafkaConnection:
    """Open a TCP or TLS connection to a broker.

    Raises Unreachable if another attempt may succeed, else ClusterRefused. Both name the remedy.
    """
    tls = access.tls
    dialer = None if tls is None else _Dialer(_context(tls))
    try:
        return await KafkaConnection.connect(
            *address,
            client_id=client_id,
            timeout_s=CONNECT_TIMEOUT_S,
            frame_bytes_max=_FRAME_BYTES_MAX,
            dialer=dialer,
        )
    # The client does not trust the broker's certificate.
    except ssl.SSLCertVerificationError as error:
        raise ClusterRefused(_not_trusted(address, tls, error)) from error
    # An alert of the broker, or bytes that are no TLS at all.
    except ssl.SSLError as error:
        if tls is not None:
            _check_certificate_refusal(address, tls, error)
        text = f"no TLS with {address}: {error.reason or error} (is it a listener with TLS?)"
        raise ClusterRefused(text) from error
    except TimeoutError as error:
        text = f"{address} did not answer in {CONNECT_TIMEOUT_S:.0f} s"
        raise Unreachable(text) from error
    # A refused client certificate may show only as a connection that ends: check for that first.
    except OSError as error:
        ended = isinstance(error, ConnectionError) and tls is not None
        if ended and tls is not None:
            _check_certificate_refusal(address, tls, error)
        text = error.strerror or str(error) or type(error).__name__
        hint = " (is it a listener with TLS?)" if ended else ""
        raise Unreachable(f"{address}: {text}{hint}") from error


async def _check_and_log_in(
    address: BrokerAddress, access: KafkaAccess, connection: KafkaConnection
) -> float:
    """Check that the peer speaks Kafka with known versions, and log in.

    Returns the seconds for which the login is valid, 0.0 for as long as the connection. Raises
    Unreachable, ClusterRefused.
    """
    try:
        # The first request decides whether anything else of this client can be understood.
        versions = await connection.request(
            ApiVersionsRequest(client_software_name=SOFTWARE, client_software_version="1"),
            ApiVersionsResponse,
            CONNECT_TIMEOUT_S,
        )
        check_versions(address, versions)
        if access.login is None:
            return 0.0
        return await _log_in(connection, access.login)
    except LoginFailed as error:
        raise ClusterRefused(f"{address}: {error}{_where(access.login)}") from error
    except TimeoutError as error:
        raise Unreachable(f"{address} did not answer in {CONNECT_TIMEOUT_S:.0f} s") from error
    # Some other server listens on that port.
    except FrameError as error:
        raise ClusterRefused(f"{address} does not speak Kafka's protocol: {error}") from error
    # With TLS 1.3 a refused client certificate shows only now, after the handshake.
    except ConnectionClosed as error:
        if access.tls is not None:
            _check_certificate_refusal(address, access.tls, connection.failure or error)
        hint = "" if access.tls else " (is it a listener with TLS?)"
        raise Unreachable(f"{address} ended the connection at once{hint}: {error}") from error


async def _log_in(connection: KafkaConnection, login: Login) -> float:
    """Run the SASL exchange; return the seconds for which the login is valid."""
    steps = exchange(login)
    # The generator returns the lifetime of the login, which arrives as StopIteration.
    try:
        request, answer_type = next(steps)
        while True:
            answer = await connection.request(request, answer_type, CONNECT_TIMEOUT_S)
            request, answer_type = steps.send(answer)
    except StopIteration as ended:
        return float(ended.value)


# ---------------------------------------------------------------- error messages


def _context(tls: Tls) -> ssl.SSLContext:
    try:
        return tls.context()
    except OSError as error:
        why = (error.reason if isinstance(error, ssl.SSLError) else error.strerror) or error
        places = " and ".join(dict.fromkeys(filter(None, (tls.ca_source, tls.own_source))))
        remedy = f": fix {places}" if places else ""
        raise ClusterRefused(f"the certificates cannot be used: {why}{remedy}") from error


def _not_trusted(
    address: BrokerAddress, tls: Tls | None, error: ssl.SSLCertVerificationError
) -> str:
    text = f"the certificate of {address} is not trusted: {error.verify_message}"
    if error.verify_code in _OUT_OF_TIME:
        return f"{text}: renew it at the broker"
    source = "" if tls is None else tls.ca_source
    return f"{text}: put the authority of the brokers into {source}" if source else text


def _check_certificate_refusal(address: BrokerAddress, tls: Tls, error: Exception) -> None:
    """Raise :class:`ClusterRefused` if the failure means that the client certificate is refused.

    Returns if the failure has another cause. ``error``: the failed handshake, or the end of the
    connection after it.
    """
    # Prepare the advice, which names the certificate's origin if it is known.
    alert = (error.reason or "") if isinstance(error, ssl.SSLError) else ""
    place = f" into {tls.own_source}" if tls.own_source else ""
    remedy = f"put one that its authorities have issued, and its key,{place or ' in its place'}"
    # An expired certificate explains the refusal, even if the broker sent no alert.
    if tls.ends_s is not None and tls.ends_s <= time.time():
        ended = dt.datetime.fromtimestamp(tls.ends_s, dt.UTC).isoformat(timespec="seconds")
        text = f"{address} refuses the client certificate, which expired at {ended}: {remedy}"
        raise ClusterRefused(text) from error
    if not _is_of_certificate(alert):
        return
    # Without a configured certificate the alert means that one is required.
    if not tls.certificate:
        text = f"{address} requires a client certificate, and none is configured ({alert})"
        raise ClusterRefused(f"{text}: {remedy}") from error
    raise ClusterRefused(f"{address} refuses the client certificate ({alert}): {remedy}") from error


def _is_of_certificate(alert: str) -> bool:
    """Return whether the alert concerns a certificate, by OpenSSL's names (RFC 8446, 6.2)."""
    return "ALERT" in alert and any(
        word in alert for word in ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
    )


def _where(login: Login | None) -> str:
    if login is None or not login.source:
        return ""
    return f" (its credentials are read from {login.source}: fix them, or the user at the brokers)"


#: Requests that administration needs: api key -> version in use, and name.
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


def check_versions(address: BrokerAddress, answer: ApiVersionsResponse) -> None:
    """Check that a broker serves the versions in use here. Raises :class:`ClusterRefused`."""
    if answer.error_code:
        raise ClusterRefused(f"{address} answers ApiVersions with {answer.error_code.name}")
    served = {int(api.api_key): api for api in answer.api_keys}
    # Fail at the start, with a clear message, rather than in the middle of a change.
    for key, (version, name) in SPOKEN.items():
        versions = served.get(key)
        if versions is None or not versions.min_version <= version <= versions.max_version:
            raise ClusterRefused(
                f"{address} does not serve {name} in version {version}: Apache Kafka 4.0 or newer "
                "does"
            )
