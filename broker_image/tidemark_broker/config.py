"""The broker's configuration: Kafka's keys in one file, as JSON or as properties.

Keys this process does not use itself are kept: the log, the api and the remote log manager read
theirs from the same mapping, and broker-wide defaults of topics stand among them. An environment
variable ``TIDEMARK_<KEY>`` (upper case, dots as underscores) overrides one of a few keys of the
file (``_OVERRIDABLE``): those that differ from broker to broker.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tidemark.wire.control import Endpoint
from tidemark_broker.config_entries import ConfigError, accepted, integer_of, number_of, text_of
from tidemark_broker.listeners import (
    REPLICATION,
    Address,
    ClientListener,
    address_of,
    addresses_of,
    client_listeners,
)
from tidemark_broker.own_certificate import cluster_named_in

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
    """What the assembly needs; ``listeners`` has the one for other brokers among them, ``clients``
    are the others; ``entries`` has every key as text."""

    node_id: int
    cluster_id: str
    rack: str | None
    log_dir: Path
    tls_directory: Path
    listeners: Mapping[str, Address]
    clients: tuple[ClientListener, ...]
    advertised: Mapping[str, Address]
    controllers: tuple[Address, ...]
    metrics: Address
    log_level: str
    entries: Mapping[str, str]

    @property
    def replicates_encrypted(self) -> bool:
        """Do brokers stay in TLS once they have proven to each other who they are?"""
        return text_of(self.entries, "tidemark.replication.encrypted") == "true"

    def advertised_endpoint(self, name: str, bound_port: int) -> Endpoint:
        """What those are told to connect to whom that listener is for."""
        address = self.advertised.get(name, self.listeners[name])
        return Endpoint(name=name, host=address.host, port=address.port or bound_port)

    def integer(self, name: str) -> int:
        """See :func:`integer_of`."""
        return integer_of(self.entries, name)

    def number(self, name: str) -> float:
        """See :func:`number_of`."""
        return number_of(self.entries, name)

    def boolean(self, name: str) -> bool:
        """``true`` or ``false``."""
        return accepted(self.entries, name).lower() == "true"

    def seconds(self, name: str) -> float:
        """A duration given in ms, in seconds."""
        return self.integer(name) / 1000


def load(path: Path, environment: Mapping[str, str] | None = None) -> BrokerConfig:
    """Read a file (JSON if it begins with ``{``) and the environment."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the configuration {path} cannot be read: {error}") from error
    entries = _parse_json(text, path) if text.lstrip().startswith("{") else _parse_lines(text, path)
    entries |= _overrides(os.environ if environment is None else environment)
    folder = entries.get("tidemark.tls.directory", "").strip()
    if folder and not entries.get("cluster.id", "").strip():
        entries["cluster.id"] = cluster_named_in(Path(folder), entries.get("node.id", "").strip())
    return parse(entries)


def parse(entries: Mapping[str, str]) -> BrokerConfig:
    """From text entries; raises :class:`ConfigError`."""
    missing = [key for key in _REQUIRED if not entries.get(key, "").strip()]
    if missing:
        raise ConfigError(f"missing in the configuration: {', '.join(missing)}")
    listeners = addresses_of("listeners", entries["listeners"])
    clients = client_listeners(entries, listeners)
    if not clients:
        raise ConfigError(f"listeners={entries['listeners']!r}: none of them is for clients")
    advertised = addresses_of("advertised.listeners", entries.get("advertised.listeners", ""))
    unheard = sorted(advertised.keys() - listeners.keys() - {REPLICATION})
    if unheard:
        raise ConfigError(f"advertised.listeners: {', '.join(unheard)} is not in listeners")
    # Other brokers are told where: a free port of the same interface will do.
    listeners.setdefault(REPLICATION, Address(clients[0].address.host, 0))
    return BrokerConfig(
        node_id=integer_of(entries, "node.id"),
        cluster_id=entries["cluster.id"].strip(),
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
        metrics=Address(
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
        raise ConfigError(f"{path} is no JSON: {error}") from error
    entries: dict[str, str] = {}
    for key, value in data.items():
        entries[key] = _text(key, value, path)
    return entries


def _text(key: str, value: object, path: Path) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise ConfigError(f"{path}: {key} must be text, a whole number, true, false or a list of texts")


def _parse_lines(text: str, path: Path) -> dict[str, str]:
    # Only a newline ends a line: whatever else looks like one may stand in a value.
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
