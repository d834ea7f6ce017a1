"""Address of a store's service: http or https, a host, optionally a port, and nothing else.

A manifest names an address that the operator and the brokers connect to. Anything beyond a plain
address (user-info, a path, a query) is refused, so that the shown address is where requests are
sent. The addresses at which clouds issue a machine's own credentials are known here; the caller
decides whether they may be used.
"""

import ipaddress
import re
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from tidemark.tier.stores.config_fields import InvalidConfig

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
#: Metadata services outside the link-local ranges: AWS over IPv6, Alibaba Cloud, Oracle Cloud.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192"))
)


@dataclass(frozen=True, slots=True)
class S3Endpoint:
    """Scheme, host (without brackets) and port."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    def addresses(self) -> list[Address]:
        """Return the host's present addresses; empty if it has none (blocks)."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]


def parse_endpoint(text: str, kind: str = "s3") -> S3Endpoint:
    """Parse the endpoint of a kind of storage.

    Raises InvalidConfig unless it is scheme, host and optionally port.
    """
    what = f"remoteStorage: {kind}.endpoint must be http://host:port or https://host:port"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidConfig(f"{what}: {error}") from error
    # White space around the address would be shown as part of it, so it is refused.
    if parts.scheme not in _DEFAULT_PORTS or text != text.strip():
        raise InvalidConfig(what)
    if "@" in parts.netloc:
        raise InvalidConfig(f"{what}; credentials belong in a Secret")
    # urlsplit drops an empty query or fragment, so the text itself is checked for them.
    if parts.path not in ("", "/") or parts.query or parts.fragment or "?" in text or "#" in text:
        raise InvalidConfig(f"{what}, without a path; a folder in the bucket is {kind}.prefix")
    host = parts.hostname or ""
    if not _is_host(host) or port == 0:
        raise InvalidConfig(what)
    return S3Endpoint(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme])


def hands_out_credentials(address: Address) -> bool:
    """Return whether a cloud's metadata service may answer at the address.

    These are link-local addresses, and a few others.
    """
    mapped = getattr(address, "ipv4_mapped", None)
    if mapped is not None:
        address = mapped
    return address.is_link_local or address in _METADATA


def _is_host(host: str) -> bool:
    if ":" not in host:
        return _NAME.fullmatch(host) is not None
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def require_own_identity_host(endpoint: S3Endpoint, kind: str, suffixes: Sequence[str]) -> None:
    """Check that a token of the machine's own identity may be sent to an endpoint.

    A token that another server receives would give it access to the cloud. ``suffixes``: the
    cloud's own hosts. Raises InvalidConfig.
    """
    if endpoint.scheme == "https" and endpoint.host.lower().endswith(tuple(suffixes)):
        return
    raise InvalidConfig(
        f"remoteStorage: {kind}.endpoint: {endpoint} is not a host of the cloud, so it gets no "
        "token of the machine's own identity. Set credentialsSecretRef (in a job: credentials), "
        "or remove the endpoint"
    )
