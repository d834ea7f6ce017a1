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

from tidemark.configuration.table import BROKER
from tidemark.configuration.values import Number
from tidemark.wire.control import Endpoint

ENVIRONMENT_PREFIX = "TIDEMARK_"
LISTENER_NAME = "PLAINTEXT"

_REQUIRED = ("node.id", "cluster.id", "log.dir", "listeners", "controller.addresses")
_OVERRIDABLE = (
    *_REQUIRED,
    "rack",
    "advertised.listeners",
    "metrics.host",
    "metrics.port",
    "log.level",
)


class ConfigError(ValueError):
    """A configuration that cannot work; the text names the key and what to write."""


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port; port 0 where a free one may be picked."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What the assembly needs; ``entries`` has every key as text."""

    node_id: int
    cluster_id: str
    rack: str | None
    log_dir: Path
    listener: Address
    advertised: Address | None
    controllers: tuple[Address, ...]
    metrics: Address
    log_level: str
    entries: Mapping[str, str]

    def advertised_endpoint(self, bound_port: int) -> Endpoint:
        """What clients and other brokers are told to connect to."""
        address = self.advertised or self.listener
        return Endpoint(name=LISTENER_NAME, host=address.host, port=address.port or bound_port)

    def integer(self, name: str) -> int:
        """See :func:`integer_of`."""
        return integer_of(self.entries, name)

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
    return parse(entries)


def parse(entries: Mapping[str, str]) -> BrokerConfig:
    """From text entries; raises :class:`ConfigError`."""
    missing = [key for key in _REQUIRED if not entries.get(key, "").strip()]
    if missing:
        raise ConfigError(f"missing in the configuration: {', '.join(missing)}")
    advertised = entries.get("advertised.listeners", "").strip()
    return BrokerConfig(
        node_id=integer_of(entries, "node.id"),
        cluster_id=entries["cluster.id"].strip(),
        rack=entries.get("rack", entries.get("broker.rack", "")).strip() or None,
        log_dir=Path(entries["log.dir"].strip()),
        listener=address_of("listeners", entries["listeners"]),
        advertised=address_of("advertised.listeners", advertised) if advertised else None,
        controllers=tuple(
            address_of("controller.addresses", part)
            for part in entries["controller.addresses"].split(",")
            if part.strip()
        ),
        metrics=Address(
            _text_of(entries, "metrics.host"),
            integer_of(entries, "metrics.port"),
        ),
        log_level=_text_of(entries, "log.level").upper(),
        entries=MappingProxyType(dict(entries)),
    )


def address_of(key: str, text: str) -> Address:
    """``host:port``, with or without ``PLAINTEXT://`` before it, IPv6 in brackets."""
    given = text.strip()
    scheme, separator, rest = given.rpartition("://")
    if separator and scheme != LISTENER_NAME:
        raise ConfigError(f"{key}={text!r}: only {LISTENER_NAME} listeners are served")
    if "," in rest:
        raise ConfigError(f"{key}={text!r}: one listener is served; write one host:port")
    host, colon, port = rest.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not 0 <= int(port) <= 65535:
        raise ConfigError(f"{key}={text!r}: write host:port")
    return Address(host.strip("[]") or "0.0.0.0", int(port))


def _text_of(entries: Mapping[str, str], name: str) -> str:
    """What is given, else the default of the table, "" where it has none."""
    return entries.get(name, BROKER[name].default or "").strip()


def integer_of(entries: Mapping[str, str], name: str) -> int:
    """A whole number of ``entries``, else the table's default; raises :class:`ConfigError` that
    names the key, KeyError for one that is not in the table."""
    text, type_ = _text_of(entries, name), BROKER[name].type
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number") from None
    if isinstance(type_, Number) and value < type_.minimum:
        raise ConfigError(f"{name}={value} must be at least {type_.minimum}")
    if isinstance(type_, Number) and value > type_.maximum:
        raise ConfigError(f"{name}={value} must be at most {type_.maximum}")
    return value


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
    entries: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
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
