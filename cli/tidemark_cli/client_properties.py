"""How the command line gets in at a listener that asks for TLS or SASL: from a file of properties.

The names are those of the clients that take PEM files (librdkafka's), so that the file of such a
client is good here. What else stands in it is not looked at.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tidemark.kafka_client.access import Access
from tidemark_pipeline.security import SecurityError, parse_bootstrap, parse_security

_NAMES = "ssl.endpoint.identification.algorithm"
_KNOWN = frozenset(
    {
        *("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password"),
        *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", _NAMES),
    }
)
#: Of what is not understood here these would change who gets in.
_OURS = ("security.", "sasl.", "ssl.")


class BadProperties(ValueError):
    """A file, or an address, cannot be used; the text says what to do."""


def read_access(path: Path | None, bootstrap: str = "") -> Access:
    """``path``: None: without TLS and SASL; ``bootstrap``: "" for who knows where brokers are.
    Raises :class:`BadProperties`."""
    try:
        addresses = parse_bootstrap(bootstrap)
        return Access(addresses) if path is None else access_of(_read(path), addresses)
    except (BadProperties, SecurityError) as error:
        raise BadProperties(f"{path}: {error}" if path else str(error)) from error


def access_of(found: Mapping[str, str], addresses: tuple[str, ...] = ()) -> Access:
    """Of properties. Files that cannot be read are told before anybody is asked. Raises
    :class:`BadProperties`, SecurityError."""
    strange = [key for key in found if key.startswith(_OURS) and key not in _KNOWN]
    if strange:
        raise BadProperties(f"{strange[0]} is not known; there are {', '.join(sorted(_KNOWN))}")
    tls, login = parse_security(found, os.environ, prefix="")
    if tls is None:
        return Access(addresses, login=login)
    tls = replace(tls, check_names=found.get(_NAMES, "https").lower() not in ("", "none"))
    try:
        tls.context()
    except (OSError, ValueError) as error:
        raise BadProperties(f"certificates or keys cannot be read: {error}") from error
    return Access(addresses, tls, login)


def _read(path: Path) -> dict[str, str]:
    try:
        return properties(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadProperties(f"it cannot be read: {error}") from error


def properties(text: str) -> dict[str, str]:
    """A line for each key; what begins with ``#`` is none."""
    lines = (line.strip() for line in text.splitlines())
    parts = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in parts}
