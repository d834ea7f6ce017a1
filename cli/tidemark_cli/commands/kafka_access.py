"""How a command reaches the brokers of any Kafka cluster: an address, and where they ask for TLS or
SASL a file of properties as clients with PEM files have it (librdkafka's names)."""

import os
from pathlib import Path
from typing import Annotated

import typer

from tidemark.kafka_client.access import Access
from tidemark_cli.commands.common import fail
from tidemark_cli.top.login import properties
from tidemark_pipeline.security import SecurityError, parse_access

BootstrapOption = Annotated[
    str, typer.Option(metavar="HOST:PORT[,…]", help="Kafka's bootstrap.servers.")
]
ClientConfigOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Properties for a listener with TLS or SASL: security.protocol, ssl.ca.location, "
        "sasl.mechanism, sasl.username, sasl.password and so on.",
    ),
]
_BOOTSTRAP = "bootstrap.servers"
_KNOWN = frozenset(
    {
        *("security.protocol", "sasl.mechanism", "sasl.username", "sasl.password"),
        *("ssl.ca.location", "ssl.certificate.location", "ssl.key.location"),
    }
)
#: Of what is not understood here these would change who gets in.
_OURS = ("security.", "sasl.", "ssl.")


def open_access(bootstrap: str, client_config: Path | None) -> Access:
    """What the two options say. Ends with a hint where they cannot be used."""
    try:
        found = {} if client_config is None else properties(client_config.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        fail(f"{client_config} cannot be read: {error}")
    strange = [key for key in found if key.startswith(_OURS) and key not in _KNOWN]
    if strange:
        fail(f"{client_config}: {strange[0]} is not known; there are {', '.join(sorted(_KNOWN))}")
    try:
        access = parse_access({**found, _BOOTSTRAP: bootstrap}, os.environ, prefix="")
        if access is not None and access.tls is not None:
            access.tls.context()  # files that cannot be read are told before anybody is asked
    except SecurityError as error:
        fail(str(error))
    except (OSError, ValueError) as error:
        fail(f"certificates or keys of {client_config} cannot be read: {error}")
    if access is None:
        fail(f"--bootstrap {bootstrap!r} names no broker: give host:port")
    return access
