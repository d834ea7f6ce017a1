"""``python -m tidemark_operator.check``: check an installation from inside the cluster.

``helm test`` runs it in a pod. It checks three things: each operator answers ``/healthz``, the
Cluster is Ready with the required number of brokers, and a Kafka client that connects to a listener
of the bootstrap Service reaches these brokers. A new installation needs minutes for that, so each
check is repeated until it passes or the time is up, and then its last result is printed. Nothing is
changed, and nothing is produced.
"""

import argparse
import asyncio
import functools
import http.client
import socket
import ssl
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kio.schema.api_versions.v0.request import ApiVersionsRequest
from kio.schema.api_versions.v0.response import ApiVersionsResponse
from kio.schema.errors import ErrorCode
from kio.schema.metadata.v8.request import MetadataRequest
from kio.schema.metadata.v8.response import MetadataResponse

from tidemark.error_text import error_text
from tidemark.message_text import count
from tidemark.tls.trust import trusting_context
from tidemark.wire.blocking import BlockingConnection
from tidemark.wire.framing import FrameError
from tidemark_operator.kube.access import AccessError, KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import CLUSTER, Json
from tidemark_operator.resources.broker_pod import ListenerProtocol
from tidemark_operator.resources.conditions import READY
from tidemark_operator.settings import BadSettings, BindAddress

EXIT_FAILED = 1
EXIT_USAGE = 2
TIMEOUT_S = 10.0
PAUSE_S = 2.0
_CLIENT_ID = "tidemark-check"
_BODY_BYTES_MAX = 4096
_ENCRYPTED = (ListenerProtocol.SSL, ListenerProtocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class InstallationCheck:
    """A check; ``look`` returns "" if ``what`` is true, else the cause."""

    what: str
    look: Callable[[], str]


# ------------------------------------------------------------ operators and the Cluster


def operator_complaint(address: BindAddress) -> str:
    """Return why an operator's ``/healthz`` fails, "" if it does not."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        text = answer.read(_BODY_BYTES_MAX).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error_text(error)}"
    finally:
        connection.close()
    return "" if answer.status == http.HTTPStatus.OK else f"{answer.status}: {text}"


def cluster_complaint(body: Json, brokers: int) -> str:
    """Return why a Cluster is not Ready with a number of brokers, "" if it is. Pure."""
    status = body.get("status", {})
    for found in status.get("conditions", ()):
        if found["type"] == READY:
            if found["status"] != "True":
                return f"{found['reason']}: {found['message']}"
            # Ready of an earlier generation says nothing about the latest change.
            if found.get("observedGeneration", 0) < body["metadata"].get("generation", 0):
                return "the operator has not observed the latest change yet"
            counts = status.get("brokers", {})
            present = counts.get("registered", 0) - counts.get("fenced", 0)
            return (
                ""
                if present >= brokers
                else f"{present} of {count(brokers, 'broker', 'is')} registered"
            )
    return "no operator has observed it yet"


def _stored_cluster_complaint(
    access: KubernetesAccess, namespace: str, name: str, brokers: int
) -> str:
    """Return why the stored Cluster is not as expected, "" if it is."""

    async def read() -> Json:
        async with await KubeApi.open(access, TIMEOUT_S) as api:
            return await api.get(CLUSTER, namespace, name)

    try:
        return cluster_complaint(asyncio.run(read()), brokers)
    except (KubeError, AccessError) as error:
        return str(error)


# ------------------------------------------------------------ brokers


def listener_complaint(protocol: ListenerProtocol, address: BindAddress, brokers: int) -> str:
    """Return why a client cannot reach ``brokers`` brokers through a listener, "" if it can.

    Without credentials, a client gets as far as ApiVersions with SASL, and as far as the handshake
    with TLS. The certificate is not verified, because nothing is sent.
    """
    try:
        if protocol in _ENCRYPTED:
            _shake_hands(address)
        elif protocol is ListenerProtocol.SASL_PLAINTEXT:
            _ask_versions(address)
        else:
            return _led_complaint(address, brokers)
    except (OSError, FrameError) as error:
        return f"{address}: {error_text(error)}"
    return ""


def _led_complaint(address: BindAddress, brokers: int) -> str:
    """Return why fewer than ``brokers`` brokers in the metadata respond, "" if enough do."""
    missing = []
    led = _ask_brokers(address)
    for broker in led:
        try:
            _ask_versions(broker)
        except (OSError, FrameError) as error:
            missing.append(f"{broker}: {error_text(error)}")
    found = len(led) - len(missing)
    return (
        ""
        if found >= brokers
        else f"{found} of {count(brokers, 'broker', 'answers')} {'; '.join(missing)}"
    )


def _ask_brokers(address: BindAddress) -> list[BindAddress]:
    """Return the brokers of a Metadata answer, with their addresses on this listener."""
    request = MetadataRequest(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    with _connection(address) as connection:
        answer = connection.request(request, MetadataResponse, TIMEOUT_S)
    return [BindAddress(host=broker.host, port=int(broker.port)) for broker in answer.brokers]


def _ask_versions(address: BindAddress) -> None:
    """Send ApiVersions, the first request of any client."""
    with _connection(address) as connection:
        answer = connection.request(ApiVersionsRequest(), ApiVersionsResponse, TIMEOUT_S)
    if answer.error_code != ErrorCode.none:
        raise FrameError(f"ApiVersions returned error {answer.error_code.name}")


def _connection(address: BindAddress) -> BlockingConnection:
    return BlockingConnection(address.host, address.port, client_id=_CLIENT_ID, timeout_s=TIMEOUT_S)


def _shake_hands(address: BindAddress) -> None:
    context = trusting_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((address.host, address.port), timeout=TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=address.host),
    ):
        pass


# ------------------------------------------------------------ all of it


def run(checks: Sequence[InstallationCheck], within_s: float, say: Callable[[str], None]) -> bool:
    """Return whether all checks pass within one time limit.

    Each runs at least once, so that every failure is reported.
    """
    begun_s = time.monotonic()
    results = [_holds(check, begun_s + within_s, say) for check in checks]
    return all(results)


def _holds(check: InstallationCheck, deadline_s: float, say: Callable[[str], None]) -> bool:
    while complaint := check.look():
        if time.monotonic() + PAUSE_S > deadline_s:
            say(f"FAILED: {check.what}: {complaint}")
            return False
        time.sleep(PAUSE_S)
    say(f"ok: {check.what}")
    return True


def checks(arguments: Sequence[str] | None) -> tuple[list[InstallationCheck], float]:
    """Parse the command line; return the checks and their time limit in seconds.

    Raises :class:`BadSettings` or ``SystemExit``.
    """
    parser = argparse.ArgumentParser(
        prog="python -m tidemark_operator.check", description="Check an installation."
    )
    parser.add_argument("--namespace", required=True)
    parser.add_argument("--cluster", required=True, help="name of the Cluster")
    parser.add_argument("--operator", action="append", default=[], help="host:port of /healthz")
    parser.add_argument("--brokers", type=int, default=0, help="minimum number of brokers")
    parser.add_argument("--listener", action="append", default=[], help="PROTOCOL://host:port")
    parser.add_argument("--within-s", type=float, default=240.0, help="time limit for retries")
    parser.add_argument("--kubeconfig", type=Path, help="default: the pod's service account")
    given = parser.parse_args(arguments)
    return list(_checks(given)), given.within_s


def _checks(given: argparse.Namespace) -> Iterator[InstallationCheck]:
    """Yield the checks that the command line requests, in the order in which they are run."""
    for address in map(BindAddress.parse, given.operator):
        look = functools.partial(operator_complaint, address)
        yield InstallationCheck(f"operator {address} answers /healthz", look)
    cluster, brokers = f"{given.namespace}/{given.cluster}", given.brokers
    # Each check is a function without parameters, which is repeated until the time limit.
    access = KubernetesAccess(given.kubeconfig)
    look = functools.partial(
        _stored_cluster_complaint, access, given.namespace, given.cluster, brokers
    )
    yield InstallationCheck(f"Cluster {cluster} is Ready with {count(brokers, 'broker')}", look)
    for text in given.listener:
        word, _, rest = text.partition("://")
        try:
            protocol, address = ListenerProtocol(word), BindAddress.parse(rest)
        except ValueError as error:
            raise BadSettings(f"--listener {text}: write PROTOCOL://host:port ({error})") from error
        look = functools.partial(listener_complaint, protocol, address, brokers)
        yield InstallationCheck(
            f"a client with bootstrap server {text} can reach the brokers", look
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0 if all checks pass, 1 if one fails, 2 for invalid arguments."""
    try:
        requested, within_s = checks(arguments)
    except BadSettings as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    return 0 if run(requested, within_s, _say) else EXIT_FAILED


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
