"""Settings of the operator: flags, or the same names in a JSON or YAML file."""

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tidemark_operator.leadership.lease import LeaseTimes

#: Longest timeout of brokers: the control protocol sends it in ms, as an int32.
_TIMEOUT_MAX_S = 86_400


class BadSettings(ValueError):
    """The operator cannot start with these settings; the message names one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BindAddress:
    """An address to listen on; port 0 picks a free one."""

    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> "BindAddress":
        """Parse ``host:port`` or ``[v6]:port``."""
        host, colon, port = text.rpartition(":")
        if not colon or not port.isdecimal() or int(port) > 65535:
            raise BadSettings(
                f"invalid address {text!r}. Write host:port, with port 0 for a free one"
            )
        return cls(host=host.strip("[]") or "127.0.0.1", port=int(port))

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Settings of the operator; times in seconds.

    ``kubeconfig`` None: the pod's account. ``certificates`` None: in Secrets. ``exports`` None: as
    Kubernetes Jobs. ``cluster`` "": the oldest Cluster of the namespace.
    """

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str = "default"
    cluster: str = ""
    control: BindAddress = BindAddress(host="127.0.0.1", port=0)
    metrics: BindAddress = BindAddress(host="127.0.0.1", port=0)
    lease_name: str = "tidemark-operator"
    lease_duration_s: float = 10.0
    session_timeout_s: float = 9.0
    suspect_timeout_s: float = 2.0
    resync_s: float = 300.0
    stand_still_s: float = 120.0
    allowed_endpoints: frozenset[str] = frozenset()
    controller_addresses: str = ""
    certificates: Path | None = None
    exports: Path | None = None
    export_image: str = ""
    export_service_account: str = ""
    spark_applications: bool = False
    log_level: str = "INFO"

    def __post_init__(self) -> None:
        if not self.namespace:
            raise BadSettings("namespace is missing. Set the namespace to manage")
        # Written so that NaN fails, too.
        if not 1 <= self.session_timeout_s <= _TIMEOUT_MAX_S:
            raise BadSettings(f"session-timeout-s must be 1 to {_TIMEOUT_MAX_S}")
        if self.suspect_timeout_s and not 1 <= self.suspect_timeout_s <= _TIMEOUT_MAX_S:
            raise BadSettings(f"suspect-timeout-s must be 0, or 1 to {_TIMEOUT_MAX_S}")
        try:
            LeaseTimes.of_duration(self.lease_duration_s)
        except ValueError as error:
            raise BadSettings(f"lease-duration-s: {error}") from error

    @property
    def lease_times(self) -> LeaseTimes:
        """Return the Lease's times, derived from its duration."""
        return LeaseTimes.of_duration(self.lease_duration_s)


_HELP = {
    "kubeconfig": "path of a kubeconfig file (default: the pod's service account)",
    "context": "context of the kubeconfig",
    "namespace": "namespace of the Cluster and its objects",
    "cluster": "name of the Cluster (default: the oldest one of the namespace)",
    "control": "host:port of the listener for brokers (port 0: a free one)",
    "metrics": "host:port of /metrics and /healthz (port 0: a free one)",
    "lease-name": "name of the Lease that elects the operator",
    "lease-duration-s": "seconds until another operator takes over from a dead one",
    "session-timeout-s": "seconds until a broker without heartbeats is fenced",
    "suspect-timeout-s": "seconds until a broker without heartbeats is fenced if another broker "
    "cannot fetch from it either (0: only session-timeout-s applies)",
    "resync-s": "seconds between complete relists and reconciliations",
    "stand-still-s": "seconds without a reconciliation after which /healthz fails",
    "allowed-endpoints": "comma-separated storage endpoint hosts that may be link-local or cloud "
    "metadata addresses (default: none)",
    "controller-addresses": "comma-separated host:port of each operator for broker pods; required "
    "for Brokers with workload Pod",
    "certificates": "directory for keys and certificates of a local cluster (default: Secrets)",
    "exports": "directory for Export jobs of a local cluster, which run as processes "
    "(default: Kubernetes Jobs)",
    "export-image": "default image of Export jobs",
    "export-service-account": "default ServiceAccount of Export jobs",
    "spark-applications": "true if Exports may use SparkApplications of the Spark operator "
    "(default: false)",
    "log-level": "DEBUG, INFO, WARNING or ERROR",
}


def parse_arguments(arguments: Sequence[str]) -> OperatorSettings:
    """Flags win over the file given by ``--config``; both over the defaults."""
    parser = argparse.ArgumentParser(prog="python -m tidemark_operator", description=__doc__)
    parser.add_argument("--config", type=Path, help="JSON or YAML file with these settings")
    for name, text in _HELP.items():
        # Flags have no defaults of their own, so that absent ones leave the file's values in force.
        parser.add_argument(f"--{name}", help=text)
    given = vars(parser.parse_args(arguments))
    config = given.pop("config")
    values = _read(config) if config is not None else {}
    values |= {name: value for name, value in given.items() if value is not None}
    return settings_of(values)


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text("utf-8")
        parsed = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise BadSettings(f"cannot read {path}: {error}") from error
    if not isinstance(parsed, dict):
        raise BadSettings(f"{path} must contain one object with settings")
    # A file may spell names with hyphens, like the flags.
    return {str(name).replace("-", "_"): value for name, value in parsed.items()}


def settings_of(values: dict[str, Any]) -> OperatorSettings:
    """Return settings from names and texts; an unknown name is refused."""
    known = {name.replace("-", "_") for name in _HELP}
    # A misspelt setting must not silently keep its default.
    unknown = sorted(set(values) - known)
    if unknown:
        raise BadSettings(f"unknown settings: {', '.join(unknown)}")
    return OperatorSettings(**{name: _convert(name, value) for name, value in values.items()})


def _boolean(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(f"{text!r} is neither true nor false")
    return text == "true"


def _convert(name: str, value: Any) -> Any:
    """Convert a setting's text to its type, by its name. Raises :class:`BadSettings`."""
    try:
        if name in ("control", "metrics"):
            return BindAddress.parse(str(value))
        if name in ("kubeconfig", "certificates", "exports"):
            return Path(str(value)).expanduser()
        if name == "allowed_endpoints":
            return frozenset(filter(None, map(str.strip, str(value).split(","))))
        if name == "controller_addresses":
            return ",".join(str(BindAddress.parse(text.strip())) for text in str(value).split(","))
        if name == "spark_applications":
            return _boolean(str(value).lower())
        if name.endswith("_s"):
            return float(value)
    except (TypeError, ValueError) as error:
        raise BadSettings(f"{name.replace('_', '-')}: {error}") from error
    return str(value)
