"""The broker's configuration: Kafka's keys in one file, as JSON or as properties.

Keys that this module does not use are preserved: the log, the api and the remote log manager read
theirs from the same mapping, which also contains broker-wide defaults of topics. An environment
variable ``TIDEMARK_<KEY>`` (upper case, dots as underscores) overrides a key that differs between
brokers (``_OVERRIDABLE``).
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tidemark.tls import identity
from tidemark.tls.files import CERTIFICATE
from tidemark.wire.control import Endpoint
from tidemark_broker.config_entries import ConfigError, accepted, integer_of, number_of, text_of
from tidemark_broker.listeners import (
    REPLICATION,
    ClientListener,
    ListenerAddress,
    address_of,
    addresses_of,
    client_listeners,
)

ENVIRONMENT_PREFIX = "TIDEMARK_"

_REQUIRED = (
    "node.id",
    "cluster.id",
    "log.dir",
    "listeners",
    "controller.addresses",
    "tidemark.tls.directory",
)
_OVERRIDABLE = (
    *_REQUIRED,
    "rack",
    "advertised.listeners",
    "metrics.host",
    "metrics.port",
    "log.level",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """The parsed settings of a broker.

    ``listeners`` includes the replication listener, ``clients`` contains all others. ``entries``
    has every key as text.
    """

    node_id: int
    cluster_id: str
    rack: str | None
    log_dir: Path
    tls_directory: Path
    listeners: Mapping[str, ListenerAddress]
    clients: tuple[ClientListener, ...]
    advertised: Mapping[str, ListenerAddress]
    controllers: tuple[ListenerAddress, ...]
    metrics: ListenerAddress
    log_level: str
    entries: Mapping[str, str]

    @property
    def replicates_encrypted(self) -> bool:
        """True if brokers keep TLS on replication connections after the mutual authentication."""
        return text_of(self.entries, "tidemark.replication.encrypted") == "true"

    def advertised_endpoint(self, name: str, bound_port: int) -> Endpoint:
        """Return the endpoint that is advertised for a listener."""
        # A configured port of 0 is replaced by the port that the kernel picked.
        address = self.advertised.get(name, self.listeners[name])
        return Endpoint(name=name, host=address.host, port=address.port or bound_port)

    def integer(self, name: str) -> int:
        """Return a whole number. See :func:`integer_of`."""
        return integer_of(self.entries, name)

    def number(self, name: str) -> float:
        """Return a number that may have a fraction. See :func:`number_of`."""
        return number_of(self.entries, name)

    def boolean(self, name: str) -> bool:
        """Return the value of a key that is ``true`` or ``false``."""
        return accepted(self.entries, name).lower() == "true"

    def seconds(self, name: str) -> float:
        """Return a duration in seconds that the configuration gives in ms."""
        return self.integer(name) / 1000


def load(path: Path, environment: Mapping[str, str] | None = None) -> BrokerConfig:
    """Read a configuration file, apply the overrides of the environment, and return the result.

    The file is JSON if it begins with ``{``, else properties. ``environment`` defaults to that of
    the process. Raises :class:`ConfigError`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error}") from error
    entries = _parse_json(text, path) if text.lstrip().startswith("{") else _parse_lines(text, path)
    # The environment takes precedence. It contains what differs between brokers of one pod
    # template.
    entries |= _overrides(os.environ if environment is None else environment)
    # A pod template is written before the controller creates the cluster id. The certificate has
    # it.
    folder = entries.get("tidemark.tls.directory", "").strip()
    if folder and not entries.get("cluster.id", "").strip():
        entries["cluster.id"] = cluster_named_in(Path(folder), entries.get("node.id", "").strip())
    return parse(entries)


def parse(entries: Mapping[str, str]) -> BrokerConfig:
    """Return the broker configuration that the text ``entries`` describe.

    Raises :class:`ConfigError` for a missing key or an invalid value.
    """
    missing = [key for key in _REQUIRED if not entries.get(key, "").strip()]
    if missing:
        raise ConfigError(f"the configuration lacks required keys: {', '.join(missing)}")
    # Listeners are parsed in the order of the file. The first client listener is the ready address.
    listeners = addresses_of("listeners", entries["listeners"])
    clients = client_listeners(entries, listeners)
    if not clients:
        raise ConfigError(f"listeners={entries['listeners']!r}: no listener is for clients")
    # An advertised name without a listener would send clients to a port that is not open.
    advertised = addresses_of("advertised.listeners", entries.get("advertised.listeners", ""))
    unknown = sorted(advertised.keys() - listeners.keys() - {REPLICATION})
    if unknown:
        raise ConfigError(f"advertised.listeners: {', '.join(unknown)} is not in listeners")
    # The controller distributes the replication address, so a free port of the interface suffices.
    listeners.setdefault(REPLICATION, ListenerAddress(clients[0].address.host, 0))
    return BrokerConfig(
        node_id=integer_of(entries, "node.id"),
        cluster_id=entries["cluster.id"].strip(),
        # Kafka's own key for the rack is broker.rack. The short form takes precedence.
        rack=entries.get("rack", entries.get("broker.rack", "")).strip() or None,
        log_dir=Path(entries["log.dir"].strip()),
        tls_directory=Path(entries["tidemark.tls.directory"].strip()),
        listeners=MappingProxyType(listeners),
        clients=clients,
        advertised=MappingProxyType(advertised),
        controllers=tuple(
            address_of("controller.addresses", part)
            for part in entries["controller.addresses"].split(",")
            if part.strip()
        ),
        metrics=ListenerAddress(
            text_of(entries, "metrics.host"),
            integer_of(entries, "metrics.port"),
        ),
        log_level=text_of(entries, "log.level").upper(),
        entries=MappingProxyType(dict(entries)),
    )


def _parse_json(text: str, path: Path) -> dict[str, str]:
    try:
        data = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{path} is not valid JSON: {error}") from error
    entries: dict[str, str] = {}
    for key, value in data.items():
        entries[key] = _text(key, value, path)
    return entries


def _text(key: str, value: object, path: Path) -> str:
    # bool is a subclass of int, so it is tested before int.
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise ConfigError(
        f"{path}: {key} must be a string, a whole number, true, false or a list of strings"
    )


def _parse_lines(text: str, path: Path) -> dict[str, str]:
    # Only a newline ends a line. str.splitlines would also split at characters legal in a value.
    entries: dict[str, str] = {}
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, separator, value = stripped.partition("=")
        if not separator:
            raise ConfigError(f"{path}, line {number}: write key=value")
        entries[key.strip()] = value.strip()
    return entries


def _overrides(environment: Mapping[str, str]) -> dict[str, str]:
    found = {}
    for key in _OVERRIDABLE:
        name = ENVIRONMENT_PREFIX + key.replace(".", "_").upper()
        if name in environment:
            found[key] = environment[name]
    return found


# ------------------------------------------------------------ cluster id

# The cluster id exists only after a controller has created it. A pod template is written earlier,
# so the broker reads the id from the certificate that it receives.


def cluster_named_in(folder: Path, node_id: str) -> str:
    """Return the cluster id in the URI SAN of the certificate in ``folder``.

    ``node_id`` is the broker's configured id. Raises :class:`ConfigError` if the certificate cannot
    be read or is of another broker.
    """
    from cryptography import x509

    path = folder / CERTIFICATE
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        # The URI names of the certificate contain the cluster id and the node id of the broker.
        found = [
            identity.parse(uri) for uri in names.get_values_for_type(x509.UniformResourceIdentifier)
        ]
    except (OSError, ValueError, x509.ExtensionNotFound) as error:
        raise ConfigError(
            f"cluster.id is not set, and {path} does not contain it: {error}"
        ) from error
    # The certificate of another broker would authenticate this one under the wrong node id.
    me = found[0] if len(found) == 1 else None
    if me is None or str(me.node_id) != node_id:
        raise ConfigError(
            f"cluster.id is not set, and {path} is of {me or 'no broker'}, not of broker {node_id}"
        )
    return me.cluster_id
