"""Contexts, clusters and users of kubeconfig files, merged as kubectl merges them.

The files have more features than this reader: a context that needs another one raises
:class:`UnsupportedFeature`, and its caller uses the ``kubernetes`` package instead.
"""

import base64
import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]
#: Fields that this reader and the transport know, or that change nothing.
_CLUSTER_FIELDS = frozenset(
    {
        "server",
        "certificate-authority",
        "certificate-authority-data",
        "insecure-skip-tls-verify",
        "tls-server-name",
        "proxy-url",
        "disable-compression",
        "extensions",
    }
)
_USER_FIELDS = frozenset(
    {
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "token",
        "tokenFile",
        "username",
        "password",
        "exec",
        "extensions",
    }
)


class KubeconfigError(ValueError):
    """A kubeconfig that cannot be used; the message says why."""


class UnsupportedFeature(Exception):
    """A valid kubeconfig whose feature only the ``kubernetes`` package has."""


@dataclass(frozen=True, slots=True)
class KubeconfigEntry:
    """A cluster or user, and the folder of its file, to which its paths are relative."""

    fields: Json
    folder: Path

    def path(self, field: str) -> Path | None:
        """Return the path in a field, or None."""
        text = self.fields.get(field)
        return self.folder / Path(str(text)).expanduser() if text else None

    def pem(self, field: str) -> bytes | None:
        """Return the content of ``FIELD-data``, else that of the file in ``FIELD``, else None.

        Raises KubeconfigError and OSError.
        """
        data = self.fields.get(f"{field}-data")
        if data:
            try:
                return base64.b64decode(str(data), validate=True)
            except binascii.Error as error:
                raise KubeconfigError(f"{field}-data is not base64: {error}") from error
        path = self.path(field)
        return path.read_bytes() if path else None


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """Context with its cluster and user."""

    namespace: str
    cluster: KubeconfigEntry
    user: KubeconfigEntry


def load_context(files: str, name: str = "") -> ContextEntry:
    """Return a context, by default the current one.

    ``files``: paths as in ``KUBECONFIG``, of which those that do not exist are skipped. The first
    file that sets a name or the current context wins. Raises :class:`KubeconfigError`,
    :class:`UnsupportedFeature`, and OSError for a file that cannot be read.
    """
    entries: dict[tuple[str, str], KubeconfigEntry] = {}
    current = ""
    paths = [Path(text).expanduser() for text in files.split(os.pathsep) if text]
    existing = [path for path in paths if path.exists()]
    if not existing:
        raise KubeconfigError(f"{files} cannot be used: the file does not exist")
    for path in existing:
        config = _read(path)
        current = current or str(config.get("current-context") or "")
        for section, field in (("clusters", "cluster"), ("users", "user"), ("contexts", "context")):
            for item in config.get(section) or ():
                entry = KubeconfigEntry(item.get(field) or {}, path.parent.absolute())
                entries.setdefault((section, str(item.get("name"))), entry)
    wanted = name or current
    if not wanted:
        raise KubeconfigError(f"{files} has no current context: add --context NAME")
    context = entries.get(("contexts", wanted))
    if context is None:
        raise KubeconfigError(f"{files} has no context {wanted!r}")
    # A context may have no user, but it needs a cluster.
    cluster = entries.get(("clusters", str(context.fields.get("cluster"))))
    if cluster is None or not cluster.fields.get("server"):
        raise KubeconfigError(f"{files} has no server for the context {wanted!r}")
    anonymous = KubeconfigEntry({}, cluster.folder)
    user = entries.get(("users", str(context.fields.get("user"))), anonymous)
    namespace = str(context.fields.get("namespace") or "default")
    return ContextEntry(namespace, cluster, user)


def require_supported(context: ContextEntry) -> None:
    """Raise :class:`UnsupportedFeature` if the context has a field that the transport lacks."""
    for entry, known in ((context.cluster, _CLUSTER_FIELDS), (context.user, _USER_FIELDS)):
        for field, value in entry.fields.items():
            if value and field not in known:
                raise UnsupportedFeature(field)
    proxy = str(context.cluster.fields.get("proxy-url") or "")
    if proxy and not proxy.startswith(("http://", "https://")):
        raise UnsupportedFeature("proxy-url")


def _read(path: Path) -> Json:
    """Return the content of one file, which is YAML or JSON."""
    text = path.read_text("utf-8")
    try:
        # That of a local cluster is JSON, which does not pay for the start of the YAML parser.
        content = json.loads(text)
    except ValueError:
        import yaml

        try:
            content = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        except yaml.YAMLError as error:
            raise KubeconfigError(f"{path} cannot be used: {error}") from error
    if not isinstance(content, dict):
        raise KubeconfigError(f"{path} cannot be used: it is no kubeconfig")
    return content
