"""``python -m tidemark_operator.check``: whether an installation works, as a client inside sees it.

What ``helm test`` runs, in a pod of its own. Three things are looked at: each operator answers
``/healthz``, the Cluster is Ready with as many brokers as were asked for, and a Kafka client that
begins at a listener of the bootstrap Service is led to these brokers. An installation that has
just been made takes minutes until all of that holds, so each is looked at again until it does or
time is up, and then told with what was seen last. Nothing is changed, and nothing is produced.
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
from tidemark.wire.blocking import BlockingConnection
from tidemark.wire.framing import FrameError
from tidemark_operator.kube.access import Access, AccessError
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.kube.kinds import CLUSTER, Json
from tidemark_operator.resources.broker_pod import Protocol
from tidemark_operator.resources.conditions import READY
from tidemark_operator.settings import Address, BadSettings

EXIT_FAILED = 1
EXIT_USAGE = 2
TIMEOUT_S = 10.0
PAUSE_S = 2.0
_CLIENT_ID = "tidemark-check"
_BODY_BYTES_MAX = 4096
_ENCRYPTED = (Protocol.SSL, Protocol.SASL_SSL)


@dataclass(frozen=True, slots=True)
class Check:
    """``look``: "" where ``what`` holds, else why not."""

    what: str
    look: Callable[[], str]


# ------------------------------------------------------------ operators and the Cluster


def operator_complaint(address: Address) -> str:
    """What an operator's ``/healthz`` has against it."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        said = answer.read(_BODY_BYTES_MAX).decode("utf-8", "replace").strip()
    except (OSError, http.client.HTTPException) as error:
        return f"no answer: {error_text(error)}"
    finally:
        connection.close()
    return "" if answer.status == http.HTTPStatus.OK else f"{answer.status}: {said}"


def cluster_complaint(body: Json, brokers: int) -> str:
    """Why a Cluster object is not Ready with at least so many brokers; pure."""
    status = body.get("status", {})
    for found in status.get("conditions", ()):
        if found["type"] == READY:
            if found["status"] != "True":
                return f"{found['reason']}: {found['message']}"
            if found.get("observedGeneration", 0) < body["metadata"].get("generation", 0):
                return "the operator has not observed the latest change yet"
            counts = status.get("brokers", {})
            present = counts.get("registered", 0) - counts.get("fenced", 0)
            return "" if present >= brokers else f"{present} of {brokers} brokers are registered"
    return "no operator has observed it yet"


def _stored_cluster_complaint(access: Access, namespace: str, name: str, brokers: int) -> str:
    async def read() -> Json:
        async with await KubeApi.open(access, TIMEOUT_S) as api:
            return await api.get(CLUSTER, namespace, name)

    try:
        return cluster_complaint(asyncio.run(read()), brokers)
    except (KubeError, AccessError) as error:
        return str(error)


# ------------------------------------------------------------ brokers


def listener_complaint(protocol: Protocol, address: Address, brokers: int) -> str:
    """Why a client that begins there does not get to ``brokers`` brokers. Without credentials a
    client gets no further than the versions where SASL is wanted, and with TLS no further than the
    handshake; whose certificate it is, is no question of this one, which sends nothing."""
    try:
        if protocol in _ENCRYPTED:
            _shake_hands(address)
        elif protocol is Protocol.SASL_PLAINTEXT:
            _ask_versions(address)
        else:
            return _led_complaint(address, brokers)
    except (OSError, FrameError) as error:
        return f"{address}: {error_text(error)}"
    return ""


def _led_complaint(address: Address, brokers: int) -> str:
    missing = []
    led = _ask_brokers(address)
    for each in led:
        try:
            _ask_versions(each)
        except (OSError, FrameError) as error:
            missing.append(f"{each}: {error_text(error)}")
    found = len(led) - len(missing)
    return "" if found >= brokers else f"{found} of {brokers} brokers answer {'; '.join(missing)}"


def _ask_brokers(address: Address) -> list[Address]:
    """Of the brokers that Metadata names, where this listener is."""
    request = MetadataRequest(
        topics=(),
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=False,
        include_topic_authorized_operations=False,
    )
    with _connection(address) as connection:
        answer = connection.request(request, MetadataResponse, TIMEOUT_S)
    return [Address(host=each.host, port=int(each.port)) for each in answer.brokers]


def _ask_versions(address: Address) -> None:
    """The first thing that any client asks."""
    with _connection(address) as connection:
        answer = connection.request(ApiVersionsRequest(), ApiVersionsResponse, TIMEOUT_S)
    if answer.error_code != ErrorCode.none:
        raise FrameError(f"ApiVersions returned error {answer.error_code.name}")


def _connection(address: Address) -> BlockingConnection:
    return BlockingConnection(address.host, address.port, client_id=_CLIENT_ID, timeout_s=TIMEOUT_S)


def _shake_hands(address: Address) -> None:
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with (
        socket.create_connection((address.host, address.port), timeout=TIMEOUT_S) as plain,
        context.wrap_socket(plain, server_hostname=address.host),
    ):
        pass


# ------------------------------------------------------------ all of it


def run(checks: Sequence[Check], within_s: float, say: Callable[[str], None]) -> bool:
    """Whether all hold within that time, which is one for all of them; each is looked at at least
    once, so that what failed is told of all."""
    begun_s = time.monotonic()
    held = [_holds(check, begun_s + within_s, say) for check in checks]
    return all(held)


def _holds(check: Check, deadline_s: float, say: Callable[[str], None]) -> bool:
    while complaint := check.look():
        if time.monotonic() + PAUSE_S > deadline_s:
            say(f"FAILED: {check.what}: {complaint}")
            return False
        time.sleep(PAUSE_S)
    say(f"ok: {check.what}")
    return True


def checks(arguments: Sequence[str] | None) -> tuple[list[Check], float]:
    """What the arguments ask for, and within how many seconds. Raises BadSettings, SystemExit."""
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


def _checks(given: argparse.Namespace) -> Iterator[Check]:
    for address in map(Address.parse, given.operator):
        look = functools.partial(operator_complaint, address)
        yield Check(f"operator {address} answers /healthz", look)
    cluster, brokers = f"{given.namespace}/{given.cluster}", given.brokers
    access = Access(given.kubeconfig)
    look = functools.partial(
        _stored_cluster_complaint, access, given.namespace, given.cluster, brokers
    )
    yield Check(f"Cluster {cluster} is Ready with {brokers} brokers", look)
    for text in given.listener:
        word, _, rest = text.partition("://")
        try:
            protocol, address = Protocol(word), Address.parse(rest)
        except ValueError as error:
            raise BadSettings(f"--listener {text}: write PROTOCOL://host:port ({error})") from error
        look = functools.partial(listener_complaint, protocol, address, brokers)
        yield Check(f"a client with bootstrap server {text} can reach the brokers", look)


def main(arguments: Sequence[str] | None = None) -> int:
    """0 where all holds, 1 where something does not, 2 for arguments that cannot be."""
    try:
        wanted, within_s = checks(arguments)
    except BadSettings as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    return 0 if run(wanted, within_s, _say) else EXIT_FAILED


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
