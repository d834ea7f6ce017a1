"""Options with which a command reaches the brokers of any Kafka cluster."""

from pathlib import Path
from typing import Annotated

import typer

from tidemark.kafka_client.access import KafkaAccess
from tidemark_cli.client_properties import BadProperties, read_access
from tidemark_cli.common import fail

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
    try:
        return read_access(client_config, bootstrap)
    except BadProperties as error:
        fail(str(error))
