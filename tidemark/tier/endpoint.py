"""The address of an S3 service: http or https, a host, perhaps a port, and nothing else.

A manifest names an address that the operator and the brokers will talk to. What is no plain address
(user-info, a path, a query) is refused, so that what is shown is where requests go. Addresses under
which clouds hand out a machine's own credentials are known here; whether they may be used is up to
whoever asks.
"""

import ipaddress
import re
import socket
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import urlsplit

from tidemark.tier.config_fields import InvalidConfig

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_DEFAULT_PORTS = {"http": 80, "https": 443}
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
#: Outside the link-local ranges: AWS over IPv6, Alibaba Cloud, Oracle Cloud.
_METADATA = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "192.0.0.192"))
)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """``host`` without brackets."""

    scheme: str
    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        port = "" if self.port == _DEFAULT_PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}"

    def addresses(self) -> list[Address]:
        """Where the host is at present; empty if it has no address (blocks)."""
        try:
            found = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)
        except OSError:
            return []
        return [ipaddress.ip_address(str(place[0]).partition("%")[0]) for *_, place in found]


def parse_endpoint(text: str) -> Endpoint:
    """Raises InvalidConfig for all that is more, or less, than scheme, host and port."""
    what = "remoteStorage: s3.endpoint must be http://host:port or https://host:port"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InvalidConfig(f"{what}: {error}") from error
    if parts.scheme not in _DEFAULT_PORTS or text != text.strip():
        raise InvalidConfig(what)
    if "@" in parts.netloc:
        raise InvalidConfig(f"{what}; credentials stand in a Secret")
    if parts.path not in ("", "/") or parts.query or parts.fragment or "?" in text or "#" in text:
        raise InvalidConfig(f"{what}, without a path; a folder in the bucket is s3.prefix")
    host = parts.hostname or ""
    if not _is_host(host) or port == 0:
        raise InvalidConfig(what)
    return Endpoint(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme])


def hands_out_credentials(address: Address) -> bool:
    """Whether a cloud's metadata service may answer there: link-local addresses, and the few that
    are not."""
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
