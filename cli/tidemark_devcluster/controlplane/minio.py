"""MinIO server on loopback, with random credentials that stay in its folder.

Its port stays the same if it is free, as the endpoint is part of a Cluster's spec. MinIO answers
``/minio/health/ready`` before it can serve, and tells early clients to retry after a minute. The
start therefore waits for ``/minio/health/cluster``.
"""

import json
import os
import secrets
import sys
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Self

from tidemark_devcluster.controlplane.process import (
    Server,
    ServerProcess,
    ServerStartError,
)
from tidemark_devcluster.layout import private_dir, write_private
from tidemark_devcluster.ports import HOST, free_port

START_TIMEOUT_S = 60.0
REQUEST_TIMEOUT_S = 5.0
START_TRIES = 3
_KEPT = "server.json"


@dataclass(frozen=True, slots=True)
class MinioSettings:
    """Credentials and port of a folder, in a file that only its owner can read."""

    access_key: str
    secret_key: str = field(repr=False)
    port: int

    @classmethod
    def of(cls, data_dir: Path) -> "MinioSettings":
        """Return the settings of the server in ``data_dir``, or new ones."""
        try:
            return cls(**json.loads((data_dir / _KEPT).read_text(encoding="utf-8")))
        except FileNotFoundError:
            return cls(secrets.token_hex(10), secrets.token_hex(20), 0)

    def environ(self, extra: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a server with these settings, and ``extra`` variables."""
        # Other MINIO_ variables of the user could change storage or credentials.
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("MINIO_")}
        return {
            **inherited,
            "MINIO_ROOT_USER": self.access_key,
            "MINIO_ROOT_PASSWORD": self.secret_key,
            "MINIO_BROWSER": "off",
            "MINIO_UPDATE": "off",
            **extra,
        }


@dataclass(slots=True, kw_only=True)
class MinioServer(Server):
    """Running MinIO; ``endpoint`` is its URL."""

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)

    @classmethod
    def start(
        cls,
        data_dir: Path,
        *,
        detached: bool = False,
        timeout_s: float = START_TIMEOUT_S,
        extra: Mapping[str, str] | None = None,
    ) -> Self:
        """Start MinIO in ``data_dir`` and wait until it can serve requests.

        It ends with this process, unless ``detached``. ``extra``: further variables. Raises
        ServerStartError, and ToolchainError if there is no program.
        """
        # Imported only here: other commands read the settings of a server that runs.
        from tidemark_devcluster.toolchain.build import ensure_minio

        binary = ensure_minio()
        folder = private_dir(data_dir)
        kept = folder / _KEPT
        settings = MinioSettings.of(folder)
        tries_left = START_TRIES
        while True:
            tries_left -= 1
            settings = replace(settings, port=free_port(settings.port))
            # Stored before the start, so that a later start uses the same credentials.
            write_private(kept, json.dumps(asdict(settings)))
            try:
                environ = settings.environ(extra or {})
                return cls._start(binary, folder, settings, environ, detached, timeout_s)
            except ServerStartError:
                # Between finding a free port and using it another process may take it.
                if tries_left == 0 or free_port(settings.port) == settings.port:
                    raise

    @classmethod
    def _start(
        cls,
        binary: Path,
        folder: Path,
        settings: MinioSettings,
        environ: dict[str, str],
        detached: bool,
        timeout_s: float,
    ) -> Self:
        """Start MinIO on the port of ``settings`` and wait until it can serve requests.

        Raises ServerStartError, for example if another process has taken the port.
        """
        endpoint = f"http://{HOST}:{settings.port}"
        command = [str(binary), "server", "--quiet", "--address", f"{HOST}:{settings.port}"]
        command += ["--certs-dir", str(private_dir(folder / "certs"))]
        command += [str(private_dir(folder / "data"))]
        # The supervisor ends MinIO if this process is killed.
        if not detached:
            command = [
                sys.executable,
                "-m",
                "tidemark_devcluster.controlplane.supervisor",
                *command,
            ]
        process = ServerProcess.spawn(
            "MinIO",
            command,
            errors=folder / "log" / "minio.log",
            detached=detached,
            environ=environ,
        )
        # MinIO opens its port before it can serve requests.
        process.await_ready(lambda: can_serve(endpoint), timeout_s=timeout_s)
        return cls(
            data_dir=folder,
            endpoint=endpoint,
            access_key=settings.access_key,
            secret_key=settings.secret_key,
            process=process,
        )


def can_serve(endpoint: str) -> bool:
    """Return whether the server accepts requests now."""
    try:
        with urllib.request.urlopen(
            f"{endpoint}/minio/health/cluster", timeout=REQUEST_TIMEOUT_S
        ) as response:
            return int(response.status) == 200
    except (OSError, urllib.error.URLError):
        return False
