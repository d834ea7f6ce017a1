"""Program in the impostor's pod: one attempt to be accepted by a private listener.

Arguments: control or replication, the listener's address, the cluster's id, the node id of the
listener (-1 for a controller), the claimed node id, and the folder of the certificate to show,
whose name ends with the node id in it ("" for no certificate). Requests are built with the broker's
own code, which is in that image. It prints one line: the answer, or how the connection ended.
"""

import asyncio
import dataclasses
import ssl
import sys
import uuid
from pathlib import Path
from typing import Any

from tidemark.tls.dialing import Dialer
from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark_broker.replication.following.wire import ReplicaFetchRequest, ReplicaFetchResponse

TIMEOUT_S = 15
NOBODY = uuid.UUID(int=1)


def registration(cluster: str, claimed: int) -> control.BrokerRegistrationRequest:
    """Return a registration that would replace the broker, if it were accepted."""
    return control.BrokerRegistrationRequest(
        broker_id=claimed,
        cluster_id=cluster,
        incarnation_id=NOBODY,
        directory_id=NOBODY,
        previous_broker_epoch=-1,
        highest_controller_epoch=0,
        rack=None,
        listeners=(),
    )


def heartbeat(claimed: int) -> control.BrokerHeartbeatRequest:
    """Without the session's secret: it is heard, and refused."""
    return control.BrokerHeartbeatRequest(
        broker_id=claimed,
        broker_epoch=1,
        snapshot_controller_epoch=-1,
        loop_age_ms=0,
        want_shut_down=False,
    )


def fetch(claimed: int) -> ReplicaFetchRequest:
    """Return a Fetch with an epoch that no broker has."""
    return ReplicaFetchRequest(
        replica_id=claimed,
        broker_epoch=0,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        partitions=(),
    )


async def without_certificate(host: str, port: int) -> str:
    """Connect over TLS without a certificate; an accepted connection stays open until it sends
    a request.
    """
    # The server's certificate is not checked: an impostor would not care.
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection(host, port, ssl=context)
    # TLS 1.3 reports a missing certificate only with the first read after the handshake.
    writer.write(bytes(4))
    said = await reader.read(1)
    return "a word" if said else ""


async def with_certificate(
    host: str, port: int, dialer: Dialer, request: Any, kind: type[Any]
) -> str:
    """The answer to one request."""
    connection = await KafkaConnection.connect(
        host, port, client_id="impostor", dialer=dialer, timeout_s=TIMEOUT_S
    )
    try:
        return str(dataclasses.asdict(await connection.request(request, kind, TIMEOUT_S)))
    finally:
        await connection.close()


def question(listener: str, cluster: str, shown: int, claimed: int) -> tuple[Any, type[Any]]:
    """A request and the type of its answer."""
    # A registration for another id has to fail on the certificate, and a heartbeat for its own on
    # the session.
    if listener == "replication":
        return fetch(claimed), ReplicaFetchResponse
    if claimed == shown:
        return heartbeat(claimed), control.BrokerHeartbeatResponse
    return registration(cluster, claimed), control.BrokerRegistrationResponse


async def answered(
    listener: str, address: str, cluster: str, other: int, claimed: int, folder: str
) -> str:
    """Return the listener's answer, or "" if it closes the connection in order.

    Raises ``OSError``.
    """
    host, _, port = address.rpartition(":")
    if not folder:
        return await without_certificate(host, int(port))
    expected = TlsIdentity(cluster, None if other < 0 else other)
    dialer = Dialer(files=TlsFiles(Path(folder)), expected=expected)
    asked = question(listener, cluster, int(folder.rpartition("-")[2]), claimed)
    return await with_certificate(host, int(port), dialer, *asked)


async def main(
    listener: str, address: str, cluster: str, other: str, claimed: str, folder: str
) -> None:
    """Print what came of it."""
    try:
        async with asyncio.timeout(2 * TIMEOUT_S):
            answer = await answered(listener, address, cluster, int(other), int(claimed), folder)
    except TimeoutError:
        print("left waiting")
    except OSError as error:
        print(f"refused: {type(error).__name__}: {error}")
    else:
        print(f"answered: {answer}" if answer else "refused: it ended")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
