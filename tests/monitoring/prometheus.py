"""A test's own Prometheus server on the loopback, which scrapes its targets every second."""

import json
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.monitoring.programs import ensure_prometheus
from tidemark_devcluster.ports import free_port

_START_S = 30
_STOP_S = 20


@dataclass(frozen=True, slots=True)
class ScrapeTarget:
    """An address, the path of its page, and the labels that the Prometheus operator would add."""

    address: str
    path: str
    labels: Mapping[str, str]


class QueryRefused(ValueError):
    """Prometheus does not take the query; the text is what it says."""


@dataclass(frozen=True, slots=True)
class LocalPrometheus:
    """A running Prometheus."""

    url: str

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of this moment. Raises :class:`QueryRefused`."""
        asked = urllib.parse.urlencode({"query": expression})
        found: list[dict[str, Any]] = self.get(f"/api/v1/query?{asked}")["result"]
        return found

    def get(self, path: str) -> dict[str, Any]:
        """Return the API's response. Raises :class:`QueryRefused`."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=10) as answer:
                body: dict[str, Any] = json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise QueryRefused(f"{path}: {error.read().decode()}") from error
        return body


@contextmanager
def run_prometheus(
    folder: Path, targets: Sequence[ScrapeTarget], rules: Sequence[Path] = ()
) -> Iterator[LocalPrometheus]:
    """Start it with its files in ``folder``; it ends with the block."""
    program, port = ensure_prometheus(), free_port()
    config, log = folder / "prometheus.json", folder / "prometheus.log"
    # Prometheus reads YAML, of which JSON is a part.
    config.write_text(json.dumps(_config(targets, rules)))
    command = [
        str(program),
        f"--config.file={config}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with log.open("wb") as said, subprocess.Popen(command, stdout=said, stderr=said) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            _await_ready(url, process, log)
            yield LocalPrometheus(url)
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()


def _config(targets: Sequence[ScrapeTarget], rules: Sequence[Path]) -> dict[str, Any]:
    """JSON is YAML. A job for each path: they have it in common."""
    return {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(file) for file in rules],
        "scrape_configs": [
            {
                "job_name": path,
                "metrics_path": path,
                "static_configs": [
                    {"targets": [target.address], "labels": dict(target.labels)}
                    for target in targets
                    if target.path == path
                ],
            }
            for path in sorted({target.path for target in targets})
        ],
    }


def _await_ready(url: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
                return
        except OSError:
            ended = process.poll()
            assert ended is None, f"it ended with status {ended}:\n{log.read_text()[-3000:]}"
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.05)
