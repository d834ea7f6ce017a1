"""Where a local cluster keeps what it needs: one folder, so that a second ``up`` finds its data.

<dir>/control-plane/   etcd, certificates, kubeconfig
<dir>/operator.json    settings of the operator
<dir>/brokers/N.json   settings of broker N;  <dir>/brokers/N/  its log directory
<dir>/tier/            the remote tier (``--tier directory``), <dir>/minio/ (``--tier s3``)
<dir>/run/NAME.json    a process that was started;  <dir>/logs/NAME.log  what it said
"""

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Layout:
    """The paths of one local cluster under ``root``."""

    root: Path

    @classmethod
    def at(cls, root: Path) -> "Layout":
        """The layout at an absolute path; nothing is created."""
        return cls(root.expanduser().resolve())

    @property
    def control_plane(self) -> Path:
        return self.root / "control-plane"

    @property
    def settings(self) -> Path:
        return self.root / "cluster.json"

    @property
    def tier(self) -> Path:
        return self.root / "tier"

    @property
    def minio(self) -> Path:
        return self.root / "minio"

    @property
    def run(self) -> Path:
        return self.root / "run"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def ready(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.ready"

    def broker_config(self, node_id: int) -> Path:
        return self.root / "brokers" / f"{node_id}.json"

    def broker_data(self, node_id: int) -> Path:
        return self.root / "brokers" / str(node_id)

    def broker_ids(self) -> list[int]:
        """The brokers that were ever added here, ascending."""
        folder = self.root / "brokers"
        names = [p.name for p in folder.glob("*.json")] if folder.exists() else []
        return sorted(int(m[1]) for m in (re.fullmatch(r"(\d+)\.json", n) for n in names) if m)

    def create(self) -> None:
        """Make the folders, private to the user: they hold keys and tokens."""
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name in ("run", "logs", "brokers"):
            (self.root / name).mkdir(exist_ok=True, mode=0o700)


def write_json(path: Path, value: Any) -> None:
    """Replace a file by ``value`` as JSON, readable by its owner only."""
    temporary = path.with_name(path.name + ".tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        json.dump(value, stream, indent=2, sort_keys=True)
    temporary.replace(path)


def read_json(path: Path) -> Any:
    """The content of a JSON file, or None where there is no such file."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
