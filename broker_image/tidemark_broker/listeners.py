"""Addresses and security protocols of a broker's listeners.

Each of Kafka's ``listeners`` has a name, and ``listener.security.protocol.map`` gives it a
protocol. Several listeners may have the same protocol (KIP-103). Settings of one listener are read
from ``listener.name.<name>.<key>``, the name in lower case. ``REPLICATION`` is not a client
listener: other brokers connect there, always with certificates of the cluster.
"""

import enum
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tidemark.configuration.table import listener_key
from tidemark_broker.config_entries import ConfigError, accepted, list_of, text_of, text_of_listener

#: Name of a listener that is given without one, and name of the listener for other brokers.
CLIENTS, REPLICATION = "PLAINTEXT", "REPLICATION"

_MAP = "listener.security.protocol.map"
_TLS_DIRECTORY = "tidemark.tls.directory"
_MECHANISMS = "sasl.enabled.mechanisms"
_CLIENT_AUTH = "ssl.client.auth"
_JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
_UNENCRYPTED = "tidemark.sasl.unencrypted.secrets"
_NAME = re.compile(r"[A-Z0-9][A-Z0-9_-]{0,62}")

PLAIN, OAUTHBEARER = "PLAIN", "OAUTHBEARER"
SCRAM_SHA_256, SCRAM_SHA_512 = "SCRAM-SHA-256", "SCRAM-SHA-512"
MECHANISMS = (PLAIN, SCRAM_SHA_256, SCRAM_SHA_512, OAUTHBEARER)
#: Mechanisms that send the client's secret itself, so an eavesdropper could reuse it.
_SHOWS_SECRET = frozenset({PLAIN, OAUTHBEARER})


@dataclass(frozen=True, slots=True)
class ListenerAddress:
    """A host and a port. Port 0 lets the kernel pick a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


class SecurityProtocol(enum.Enum):
    """Kafka's security protocols by name, with the values (uses TLS, uses SASL)."""

    PLAINTEXT = (False, False)
    SSL = (True, False)
    SASL_PLAINTEXT = (False, True)
    SASL_SSL = (True, True)

    @property
    def is_tls(self) -> bool:
        """True if traffic is encrypted."""
        return self.value[0]

    @property
    def is_sasl(self) -> bool:
        """True if clients authenticate by SASL."""
        return self.value[1]


class ClientAuth(enum.Enum):
    """Values of Kafka's ``ssl.client.auth``."""

    NONE = "none"
    REQUESTED = "requested"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientListener:
    """One listener for clients.

    ``tls_directory`` is None without TLS, ``mechanisms`` is empty without SASL.
    """

    name: str
    address: ListenerAddress
    protocol: SecurityProtocol
    tls_directory: Path | None = None
    client_auth: ClientAuth = ClientAuth.NONE
    mechanisms: tuple[str, ...] = ()

    @property
    def authenticates(self) -> bool:
        """True if at least some clients authenticate on this listener."""
        by_certificate = self.protocol is SecurityProtocol.SSL and self.client_auth is not (
            ClientAuth.NONE
        )
        return self.protocol.is_sasl or by_certificate

    @property
    def proof(self) -> str:
        """Required proof of a client's identity, for display.

        "" if anonymous clients are accepted.
        """
        if self.protocol.is_sasl:
            return ", ".join(self.mechanisms)
        # A requested certificate is optional, so it does not count as a requirement.
        required = self.protocol is SecurityProtocol.SSL and self.client_auth is ClientAuth.REQUIRED
        return "a certificate" if required else ""


def address_of(key: str, text: str) -> ListenerAddress:
    """Parse ``host:port``, IPv6 in brackets. Raises :class:`ConfigError`."""
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"{key}={text!r}: write host:port")
    # An empty host binds all interfaces, as in Kafka.
    return ListenerAddress(host.strip("[]") or "0.0.0.0", int(port))


def addresses_of(key: str, text: str) -> dict[str, ListenerAddress]:
    """Parse Kafka's ``listeners``: comma-separated ``NAME://host:port``, in their order.

    An entry without a name is :data:`CLIENTS`. ``key`` is named in errors. Raises
    :class:`ConfigError`, also if a name occurs twice.
    """
    found: dict[str, ListenerAddress] = {}
    for part in list_of(text):
        before, separator, rest = part.rpartition("://")
        name = before.upper() if separator else CLIENTS
        if not _NAME.fullmatch(name):
            raise ConfigError(f"{key}={text!r}: {before!r} is not a valid listener name")
        if name in found:
            raise ConfigError(f"{key}={text!r}: two listeners have the name {name}")
        found[name] = address_of(key, rest)
    return found


def client_listeners(
    entries: Mapping[str, str], addresses: Mapping[str, ListenerAddress]
) -> tuple[ClientListener, ...]:
    """Return the listeners of ``addresses`` that are for clients, in their order.

    Raises :class:`ConfigError`.
    """
    protocols = _protocols(entries)
    return tuple(
        _listener(entries, name, address, protocols)
        for name, address in addresses.items()
        if name != REPLICATION
    )


def _protocols(entries: Mapping[str, str]) -> dict[str, SecurityProtocol]:
    text = text_of(entries, _MAP)
    found = {}
    for part in list_of(text):
        name, _, protocol = (side.strip() for side in part.partition(":"))
        # Replication has a fixed protocol with mutual TLS, so the map cannot change it.
        if name.upper() == REPLICATION:
            raise ConfigError(f"{_MAP}={text!r}: {REPLICATION} is for brokers, leave it out")
        if protocol not in SecurityProtocol.__members__:
            known = ", ".join(SecurityProtocol.__members__)
            raise ConfigError(f"{_MAP}={text!r}: {protocol!r} is not one of {known}")
        found[name.upper()] = SecurityProtocol[protocol]
    return found


def _listener(
    entries: Mapping[str, str],
    name: str,
    address: ListenerAddress,
    protocols: Mapping[str, SecurityProtocol],
) -> ClientListener:
    """Return one client listener with the settings that its security protocol needs.

    Raises :class:`ConfigError` if ``listener.security.protocol.map`` does not contain it.
    """
    protocol = protocols.get(name)
    # Kafka's rule: a listener name that is not a protocol must be in the map.
    if protocol is None:
        raise ConfigError(f"listeners: {name} has no protocol; add {name}:SASL_SSL to {_MAP}")
    # TLS and SASL settings are only read, and required, if the protocol uses them.
    return ClientListener(
        name=name,
        address=address,
        protocol=protocol,
        tls_directory=_tls_directory(entries, name) if protocol.is_tls else None,
        client_auth=_client_auth(entries, name) if protocol.is_tls else ClientAuth.NONE,
        mechanisms=_mechanisms(entries, name, protocol) if protocol.is_sasl else (),
    )


def _tls_directory(entries: Mapping[str, str], name: str) -> Path:
    """Return the folder of the listener's own certificate.

    The broker's cluster certificate identifies it to brokers. Clients do not trust that CA.
    """
    key = listener_key(name, _TLS_DIRECTORY)
    text = entries.get(key, "").strip()
    if not text:
        raise ConfigError(f"the configuration lacks {key}, the folder of the certificate")
    return Path(text)


def _client_auth(entries: Mapping[str, str], name: str) -> ClientAuth:
    text = text_of_listener(entries, name, _CLIENT_AUTH)
    try:
        return ClientAuth(text)
    except ValueError:
        known = ", ".join(member.value for member in ClientAuth)
        raise ConfigError(f"{_CLIENT_AUTH}={text!r} of {name} is not one of {known}") from None


def _mechanisms(
    entries: Mapping[str, str], name: str, protocol: SecurityProtocol
) -> tuple[str, ...]:
    """Return the enabled SASL mechanisms of a listener, in the order of the configuration.

    Raises :class:`ConfigError` for an unsupported mechanism, one without its settings, or one that
    would send secrets in clear text.
    """
    found = list_of(text_of_listener(entries, name, _MECHANISMS))
    unknown = [mechanism for mechanism in found if mechanism not in MECHANISMS]
    if unknown or not found:
        raise ConfigError(
            f"{_MECHANISMS}={','.join(found)!r} of {name}: supported are {', '.join(MECHANISMS)}"
        )
    # SCRAM never sends the password, so it is safe without TLS. PLAIN and bearer tokens are not.
    shown = _SHOWS_SECRET.intersection(found)
    if shown and not protocol.is_tls and accepted(entries, _UNENCRYPTED) != "true":
        raise ConfigError(
            f"{name}: {' and '.join(sorted(shown))} would send secrets in clear text. Use "
            f"SASL_SSL, or set {_UNENCRYPTED}=true on a trusted network"
        )
    if OAUTHBEARER in found and not text_of(entries, _JWKS_URL):
        raise ConfigError(f"the configuration lacks {_JWKS_URL}, which {OAUTHBEARER} needs")
    return found
