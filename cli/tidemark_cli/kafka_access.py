"""Options and client properties with which a command reaches the brokers of any Kafka cluster.

The property names are librdkafka's, which takes PEM files, so that an existing client file works
unchanged. Properties of other areas are ignored.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.security_options import SecurityError, parse_bootstrap, parse_security
from tidemark_cli.common import fail_on

_NAMES = "ssl.endpoint.identification.algorithm"
_KNOWN = frozenset(
    {
        *("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password"),
        *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location", _NAMES),
    }
)
# An unknown property with such a prefix is refused: ignoring it could weaken security.
_OURS = ("security.", "sasl.", "ssl.")


class BadProperties(ValueError):
    """Client properties or an address that cannot be used; the text says what to do."""


def read_access(path: Path | None, bootstrap: str = "") -> KafkaAccess:
    """Return the access that a file of client properties and bootstrap addresses describe.

    ``path`` None means without TLS and SASL. ``bootstrap`` is "" where the caller has the
    addresses. Raises :class:`BadProperties`.
    """
    try:
        addresses = parse_bootstrap(bootstrap)
        return KafkaAccess(addresses) if path is None else access_of(_read(path), addresses)
    except (BadProperties, SecurityError) as error:
        raise BadProperties(f"{path}: {error}" if path else str(error)) from error


def access_of(values: Mapping[str, str], addresses: tuple[str, ...] = ()) -> KafkaAccess:
    """Return the Kafka access that client properties describe.

    ``addresses``: bootstrap addresses, if known here. Reads the certificate files, so that a wrong
    path fails before any connection. Raises :class:`BadProperties`, SecurityError.
    """
    unknown = [key for key in values if key.startswith(_OURS) and key not in _KNOWN]
    if unknown:
        known = ", ".join(sorted(_KNOWN))
        raise BadProperties(f"unknown property {unknown[0]}; the supported ones are {known}")
    tls, login = parse_security(values, os.environ, prefix="")
    if tls is None:
        return KafkaAccess(addresses, login=login)
    # Kafka's default is https: host names are verified unless the property says none.
    tls = replace(tls, check_names=values.get(_NAMES, "https").lower() not in ("", "none"))
    try:
        tls.context()
    except (OSError, ValueError) as error:
        raise BadProperties(f"certificates or keys cannot be read: {error}") from error
    return KafkaAccess(addresses, tls, login)


def _read(path: Path) -> dict[str, str]:
    try:
        return properties(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadProperties(f"the file cannot be read: {error}") from error


def properties(text: str) -> dict[str, str]:
    """Parse ``key=value`` lines; lines that start with ``#`` are comments."""
    lines = (line.strip() for line in text.splitlines())
    parts = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in parts}


BootstrapOption = Annotated[
    str, typer.Option(metavar="HOST:PORT[,…]", help="Addresses of Kafka brokers.")
]
ClientConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--client-config",
        "--command-config",
        metavar="FILE",
        help="File of client properties for a listener with TLS or SASL: security.protocol, "
        "ssl.ca.location, sasl.mechanism, sasl.username, sasl.password and others.",
    ),
]


def open_access(bootstrap: str, client_config: Path | None) -> KafkaAccess:
    """Return the access that the two options describe; exit with a hint if they cannot be used."""
    with fail_on(BadProperties):
        return read_access(client_config, bootstrap)
