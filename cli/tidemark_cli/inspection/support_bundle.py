"""Support bundle: objects, Events, logs, metrics and versions in one bounded archive.

Secrets are read only to find their values in everything else. What cannot be read is listed with
the reason in ``index.json``, as the rest of a bundle is useful without it.
"""

import base64
import binascii
import io
import json
import platform
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from tidemark_cli.inspection.redaction import Redactor
from tidemark_cli.inspection.screens import ordered, print_screen
from tidemark_cli.inspection.snapshot import PODS, read_snapshot
from tidemark_cli.inspection.verdict import findings
from tidemark_kube.client import KubeClient, KubeRequestError
from tidemark_operator.resources.names import GROUP, PLURALS, VERSION

#: Bounds before compression: of one file (a longer log keeps its end), and of all.
FILE_BYTES_MAX = 1024 * 1024
BUNDLE_BYTES_MAX = 64 * 1024 * 1024
_METRICS_TIMEOUT_S = 5.0
_LOG_LINES = 5000
_SCREEN_COLUMNS = 120


class Bundle:
    """Archive that is being written; every text is redacted and bounded."""

    def __init__(self, archive: tarfile.TarFile, redactor: Redactor, folder: str) -> None:
        self._archive = archive
        self._redactor = redactor
        self._folder = folder
        self._bytes = 0
        #: By file name: bytes, or why it is missing or shortened.
        self.index: dict[str, str] = {}

    def add_json(self, name: str, value: Any) -> None:
        """Add a JSON value, its secret fields removed first."""
        text = json.dumps(self._redactor.value(value), indent=1, ensure_ascii=False)
        self._add_redacted(name, text)

    def add(self, name: str, text: str) -> None:
        """Add a text; if it is too long, its end."""
        # Redacted before it is cut: a cut could separate a secret from what reveals it.
        self._add_redacted(name, self._redactor.text(text))

    def _add_redacted(self, name: str, text: str) -> None:
        data = text.encode(errors="replace")
        note = f"{len(data)} bytes"
        if len(data) > FILE_BYTES_MAX:
            data = data[-FILE_BYTES_MAX:]
            note += f", the last {FILE_BYTES_MAX} are included"
        if self._bytes + len(data) > BUNDLE_BYTES_MAX:
            self.index[name] = f"left out: the bundle has reached {BUNDLE_BYTES_MAX} bytes"
            return
        self._write(name, data)
        self.index[name] = note

    def add_from(self, name: str, read: Callable[[], str]) -> None:
        """Add what a function returns, or the reason why it fails."""
        try:
            self.add(name, read())
        except (KubeRequestError, OSError, ValueError) as error:
            self.index[name] = f"left out: {self._redactor.text(str(error))}"

    def close(self) -> None:
        """Add ``index.json``, which explains what is missing or shortened."""
        self._write("index.json", json.dumps(self.index, indent=1).encode())

    def _write(self, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(f"{self._folder}/{name}")
        member.size, member.mode = len(data), 0o600
        self._archive.addfile(member, io.BytesIO(data))
        self._bytes += len(data)


def write_bundle(
    path: Path,
    kube: KubeClient,
    *,
    logs: Mapping[str, Path] | None = None,
    metrics: Mapping[str, str] | None = None,
    processes: Mapping[int, str] | None = None,
) -> dict[str, str]:
    """Write the bundle of the client's namespace to a ``.tar.gz``; return its index.

    ``logs`` and ``metrics`` are the files and addresses of a local cluster's processes; the address
    is "" for a process that has ended. Without them both are read from the pods. ``processes``: see
    :class:`ClusterSnapshot`. Raises OSError if the file cannot be written.
    """
    values, hint = _secret_values(kube)
    # Only for its owner: a bundle describes a cluster, even without secrets.
    path.touch(mode=0o600, exist_ok=False)
    with tarfile.open(path, "w:gz") as archive:
        bundle = Bundle(archive, Redactor(values), path.name.removesuffix(".tar.gz"))
        if hint:
            bundle.index["secrets"] = hint
        bundle.add_json("versions.json", _versions(kube))
        bundle.add_from("screen.txt", lambda: _screen(kube, processes))
        for kind, plural in PLURALS.items():
            resource = f"/apis/{GROUP}/{VERSION}/namespaces/{kube.namespace}/{plural}"
            _add_list(bundle, kube, f"objects/{kind}.json", resource)
        leases = f"/apis/coordination.k8s.io/v1/namespaces/{kube.namespace}/leases"
        _add_list(bundle, kube, "objects/Lease.json", leases)
        _add_list(bundle, kube, "events.json", f"/api/v1/namespaces/{kube.namespace}/events")
        if logs is None:
            _add_pods(bundle, kube)
        for name, log in (logs or {}).items():
            bundle.add_from(f"logs/{name}.log", lambda log=log: _end_of(log))  # type: ignore[misc]
        for name, address in (metrics or {}).items():
            bundle.add_from(f"metrics/{name}.txt", lambda at=address: _scrape(at))  # type: ignore[misc]
        bundle.close()
        return bundle.index


def _secret_values(kube: KubeClient) -> tuple[list[str], str]:
    """Return the values of the namespace's Secrets, and a note if they cannot be read."""
    try:
        items = kube.read_json(f"/api/v1/namespaces/{kube.namespace}/secrets")["items"]
    except KubeRequestError as error:
        return [], f"could not be read, so values are found by name and form only: {error}"
    return list(_decoded(items)), ""


def _decoded(secrets: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for secret in secrets:
        for encoded in (secret.get("data") or {}).values():
            try:
                yield base64.b64decode(encoded).decode()
            except (binascii.Error, UnicodeDecodeError):
                # Binary keystores occur in texts only in Base64.
                yield str(encoded)


def _versions(kube: KubeClient) -> dict[str, Any]:
    try:
        server: Any = kube.read_json("/version")
    except KubeRequestError as error:
        server = str(error)
    return {
        "tidemark": version("tidemark"),
        "python": sys.version,
        "platform": platform.platform(),
        "kubernetes": server,
    }


def _screen(kube: KubeClient, processes: Mapping[int, str] | None) -> str:
    snapshot = read_snapshot(kube, processes)
    found = findings(snapshot)
    out = io.StringIO()
    console = Console(file=out, width=_SCREEN_COLUMNS)
    # First of all the time: a reader compares it with those in logs and conditions.
    out.write(f"Collected at {snapshot.read_at:%Y-%m-%dT%H:%M:%SZ}\n")
    print_screen(console, snapshot, found, ordered(snapshot.topics, found), wide=True)
    return out.getvalue()


def _add_list(bundle: Bundle, kube: KubeClient, name: str, path: str) -> None:
    try:
        items = kube.read_json(path)["items"]
    except KubeRequestError as error:
        bundle.index[name] = f"left out: {error}"
        return
    for item in items:
        # These repeat the object, and with many objects would displace everything else.
        item.get("metadata", {}).pop("managedFields", None)
    bundle.add_json(name, items)


def _add_pods(bundle: Bundle, kube: KubeClient) -> None:
    """Add the operator's and the brokers' pods, with their logs and metrics, to the bundle."""
    pods = f"/api/v1/namespaces/{kube.namespace}/pods"
    try:
        items = kube.read_json(pods, query=[("labelSelector", PODS)])["items"]
    except KubeRequestError as error:
        bundle.index["pods.json"] = f"left out: {error}"
        return
    bundle.add_json("pods.json", items)
    for pod in items:
        name = pod["metadata"]["name"]
        # The log of the previous container often has the cause of a restart.
        for container in pod["spec"]["containers"]:
            inside = container["name"]
            for suffix, previous in (("", "false"), ("-previous", "true")):
                query = [
                    ("container", inside),
                    ("previous", previous),
                    ("tailLines", str(_LOG_LINES)),
                    ("limitBytes", str(FILE_BYTES_MAX)),
                ]
                bundle.add_from(
                    f"logs/{name}-{inside}{suffix}.log",
                    lambda name=name, query=query: kube.read_text(f"{pods}/{name}/log", query),  # type: ignore[misc]
                )
            ports = {port.get("name"): port["containerPort"] for port in container.get("ports", ())}
            if "metrics" in ports:
                at = f"{pods}/{name}:{ports['metrics']}/proxy/metrics"
                bundle.add_from(f"metrics/{name}.txt", lambda at=at: kube.read_text(at))  # type: ignore[misc]


def _end_of(log: Path) -> str:
    """Return the end of a log. A line that the limit cuts is left out, as half a secret is one."""
    with log.open("rb") as stream:
        size = stream.seek(0, io.SEEK_END)
        stream.seek(max(0, size - FILE_BYTES_MAX))
        data = stream.read()
    if size > FILE_BYTES_MAX:
        data = data.partition(b"\n")[2]
    return data.decode(errors="replace")


def _scrape(address: str) -> str:
    if not address:
        raise OSError("its process has ended")
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=_METRICS_TIMEOUT_S) as got:
            return str(got.read(FILE_BYTES_MAX).decode())
    except urllib.error.URLError as error:
        raise OSError(f"{address} does not respond: {error.reason}") from error
