"""HTTP requests to an API server, with the access that a kubeconfig describes.

:class:`DirectTransport` needs urllib3 only: the ``kubernetes`` package takes longer to import than
``tidemark status`` takes for all its requests. :class:`LibraryTransport` is that package, for the
features of kubeconfigs that the other one lacks.
"""

import base64
import datetime as dt
import json
import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlencode, urlsplit

from tidemark_kube.kubeconfig import (
    ContextEntry,
    KubeconfigEntry,
    KubeconfigError,
    UnsupportedFeature,
    load_context,
    require_supported,
)

if TYPE_CHECKING:
    import ssl

CALL_TIMEOUT_S = 10
_EXEC_VERSIONS = tuple(f"client.authentication.k8s.io/{name}" for name in ("v1", "v1beta1"))
#: Longest run of a credential plugin, which may wait for a login in a browser.
_EXEC_TIMEOUT_S = 300
#: A credential is renewed this long before it expires.
_EXPIRY_MARGIN = dt.timedelta(seconds=10)
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_UNAUTHORIZED = 401


class UnreachableError(Exception):
    """No response of the API server; the message is the cause."""


class ApiRequest(NamedTuple):
    """Request: ``path`` starts with a slash, ``timeout_s`` is for the whole request."""

    method: str
    path: str
    query: Sequence[tuple[str, str]] = ()
    body: Mapping[str, Any] | None = None
    content_type: str = "application/json"
    timeout_s: float = CALL_TIMEOUT_S


class ApiResponse(NamedTuple):
    """Response. ``date``: the header of that name, "" without one."""

    status: int
    data: bytes
    date: str


def connect(files: str, context: str = "") -> "DirectTransport | LibraryTransport":
    """Return a transport for a context, "" for the current one; nothing is sent yet.

    Several threads may use it at once. ``files``: as in ``KUBECONFIG``. Raises
    :class:`KubeconfigError` and OSError.
    """
    entry = load_context(files, context)
    try:
        require_supported(entry)
        _require_no_proxy_variables(entry)
    except UnsupportedFeature:
        return LibraryTransport(files, context)
    return DirectTransport(entry)


def _require_no_proxy_variables(entry: ContextEntry) -> None:
    """Raise :class:`UnsupportedFeature` if the environment may name a proxy for the server.

    Its rules (``NO_PROXY`` with networks and ports) are those of the package. As in kubectl, a
    server on this machine needs no proxy.
    """
    if entry.cluster.fields.get("proxy-url"):
        return
    if urlsplit(str(entry.cluster.fields["server"])).hostname in _LOOPBACK:
        return
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        if os.environ.get(name) or os.environ.get(name.upper()):
            raise UnsupportedFeature(name)


class ApiCredential(NamedTuple):
    """Authentication of requests: a header, or a client certificate with its key (PEM)."""

    authorization: str = ""
    certificate: bytes = b""
    expires_at: dt.datetime | None = None


class DirectTransport:
    """Transport over urllib3, for the usual features of kubeconfigs; ``server`` is the URL."""

    def __init__(self, entry: ContextEntry) -> None:
        """Check the server's URL; raises :class:`KubeconfigError`."""
        self._entry = entry
        self.server = str(entry.cluster.fields["server"]).rstrip("/")
        if not self.server.startswith(("http://", "https://")):
            raise KubeconfigError(f"the server {self.server} has no http:// or https://")
        # The pool and the credential that it was made with; other threads wait for both.
        self._lock = threading.Lock()
        self._credential: ApiCredential | None = None
        self._pool: Any = None
        self._pool_certificate = b""

    def send(self, request: ApiRequest) -> ApiResponse:
        """Return the response; a credential that the server refuses is renewed once.

        Raises :class:`UnreachableError` without a response.
        """
        pool, credential = self._ready(refused=None)
        response = self._send(pool, credential, request)
        if response.status == _UNAUTHORIZED and self._entry.user.fields.get("exec"):
            pool, credential = self._ready(refused=credential)
            response = self._send(pool, credential, request)
        return response

    def close(self) -> None:
        if self._pool is not None:
            self._pool.clear()

    def _ready(self, refused: ApiCredential | None) -> tuple[Any, ApiCredential]:
        """Return the connection pool and a credential other than the refused one."""
        with self._lock:
            try:
                credential = self._credential
                if credential is None or credential is refused or _is_expired(credential):
                    credential = self._credential = credential_of(self._entry)
                # A certificate belongs to the connections, so a new one needs new connections.
                if self._pool is None or credential.certificate != self._pool_certificate:
                    self._pool = _pool(self._entry.cluster, self.server, credential)
                    self._pool_certificate = credential.certificate
            except (KubeconfigError, OSError) as error:
                raise UnreachableError(str(error)) from error
            # A file with a token is replaced before the token expires, so it is read each time.
            if self._entry.user.fields.get("tokenFile"):
                self._credential = None
            return self._pool, credential

    def _send(self, pool: Any, credential: ApiCredential, request: ApiRequest) -> ApiResponse:
        from urllib3.exceptions import HTTPError
        from urllib3.util import Retry, Timeout

        headers = {"Accept": "application/json", "User-Agent": "tidemark"}
        if credential.authorization:
            headers["Authorization"] = credential.authorization
        body = None
        if request.body is not None:
            headers["Content-Type"] = request.content_type
            body = json.dumps(request.body).encode()
        url = self.server + request.path
        if request.query:
            url += "?" + urlencode(request.query)
        try:
            answer = pool.request(
                request.method,
                url,
                body=body,
                headers=headers,
                timeout=Timeout(total=request.timeout_s),
                # Once more, as the server may just have closed an idle connection. API servers do
                # not redirect; a token must not follow another server's redirection.
                retries=Retry(total=1, redirect=0, raise_on_redirect=False, raise_on_status=False),
                redirect=False,
            )
        except (HTTPError, OSError) as error:
            raise UnreachableError(innermost(error)) from error
        return ApiResponse(answer.status, answer.data, answer.headers.get("Date") or "")


def innermost(error: BaseException) -> str:
    """Return the innermost reason; the outer ones only describe the libraries' retries."""
    while isinstance(getattr(error, "reason", None), BaseException):
        error = error.reason  # type: ignore[attr-defined]
    return str(error)


def _pool(cluster: KubeconfigEntry, server: str, credential: ApiCredential) -> Any:
    """Return a pool of connections with the cluster's TLS settings and proxy."""
    import urllib3

    settings: dict[str, Any] = {"maxsize": 16}
    if server.startswith("https://"):
        settings["ssl_context"] = tls_context(cluster, credential.certificate)
        name = cluster.fields.get("tls-server-name")
        if name:
            settings["server_hostname"] = name
        if cluster.fields.get("insecure-skip-tls-verify"):
            settings |= {"cert_reqs": "CERT_NONE", "assert_hostname": False}
            # The user chose it in the kubeconfig; kubectl does not warn either.
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)
        elif name:
            settings["assert_hostname"] = name
    proxy = str(cluster.fields.get("proxy-url") or "")
    if not proxy:
        return urllib3.PoolManager(**settings)
    auth = urlsplit(proxy).netloc.rpartition("@")[0]
    headers = urllib3.make_headers(proxy_basic_auth=auth) if auth else None
    return urllib3.ProxyManager(proxy, proxy_headers=headers, **settings)


def tls_context(cluster: KubeconfigEntry, certificate: bytes) -> "ssl.SSLContext":
    """Return the TLS settings: the cluster's authority, else those of the system."""
    # Imported only here, as commands that only print their help need neither.
    import ssl

    from tidemark.scratch import ScratchFolder
    from tidemark.tls.trust import trusting_context

    authority = cluster.pem("certificate-authority")
    try:
        context = trusting_context(cadata=authority.decode() if authority else None)
        if cluster.fields.get("insecure-skip-tls-verify"):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate:
            # Python loads certificates from files only. It is private, and deleted at once.
            with ScratchFolder("key") as folder:
                path = folder / "client.pem"
                path.touch(mode=0o600)
                path.write_bytes(certificate)
                context.load_cert_chain(path)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"a certificate of the kubeconfig cannot be used: {error}") from error
    return context


# ---------------------------------------------------------------- credentials


def credential_of(entry: ContextEntry) -> ApiCredential:
    """Return the credential of a context's user, with the precedence of kubectl.

    Raises KubeconfigError and OSError.
    """
    user = entry.user
    # A certificate without its key proves nothing.
    certificate, key = user.pem("client-certificate"), user.pem("client-key")
    pem = certificate + b"\n" + key if certificate and key else b""
    # A token comes before the plugin, and a plugin before a password.
    token_file = user.path("tokenFile")
    token = token_file.read_text("utf-8").strip() if token_file else user.fields.get("token")
    if token:
        return ApiCredential(f"Bearer {token}", pem)
    if user.fields.get("exec"):
        return _run_plugin(entry, pem)
    if user.fields.get("username"):
        from urllib3.util import make_headers

        login = f"{user.fields['username']}:{user.fields.get('password') or ''}"
        return ApiCredential(make_headers(basic_auth=login)["authorization"], pem)
    return ApiCredential("", pem)


def _is_expired(credential: ApiCredential) -> bool:
    expires_at = credential.expires_at
    return expires_at is not None and dt.datetime.now(dt.UTC) >= expires_at - _EXPIRY_MARGIN


def _run_plugin(entry: ContextEntry, pem: bytes) -> ApiCredential:
    """Run the user's credential plugin (client-go credential plugins, ``exec``).

    ``pem``: the user's own certificate, which the plugin's replaces. Raises KubeconfigError.
    """
    import subprocess

    plugin = entry.user.fields["exec"]
    version, command = str(plugin.get("apiVersion")), str(plugin.get("command") or "")
    if version not in _EXEC_VERSIONS:
        raise KubeconfigError(f"credential plugin {command}: apiVersion {version} is not supported")
    mode = plugin.get("interactiveMode") or "IfAvailable"
    is_interactive = mode != "Never" and sys.stdin is not None and sys.stdin.isatty()
    if mode == "Always" and not is_interactive:
        raise KubeconfigError(f"credential plugin {command} needs a terminal")
    spec: dict[str, Any] = {"interactive": is_interactive}
    if plugin.get("provideClusterInfo"):
        spec["cluster"] = _cluster_info(entry.cluster)
    variables = {str(item["name"]): str(item["value"]) for item in plugin.get("env") or ()}
    info = {"apiVersion": version, "kind": "ExecCredential", "spec": spec}
    # A command with a slash is relative to the kubeconfig, others are found on the PATH.
    program = str(entry.user.folder / command) if os.sep in command else command
    try:
        finished = subprocess.run(
            [program, *map(str, plugin.get("args") or ())],
            stdin=None if is_interactive else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables, "KUBERNETES_EXEC_INFO": json.dumps(info)},
            timeout=_EXEC_TIMEOUT_S,
            check=False,
        )
    except FileNotFoundError as error:
        hint = str(plugin.get("installHint") or "").strip()
        raise KubeconfigError(
            f"credential plugin {command} is not installed" + (f": {hint}" if hint else "")
        ) from error
    except subprocess.TimeoutExpired as error:
        raise KubeconfigError(
            f"credential plugin {command} did not end within {_EXEC_TIMEOUT_S} s"
        ) from error
    # Its standard error is the terminal's, so the user has already seen the reason.
    if finished.returncode:
        raise KubeconfigError(
            f"credential plugin {command} failed with exit status {finished.returncode}"
        )
    return _credential_in(finished.stdout, command, pem)


def _cluster_info(cluster: KubeconfigEntry) -> dict[str, Any]:
    """Return the cluster as a plugin receives it, without paths."""
    names = ("server", "tls-server-name", "insecure-skip-tls-verify", "proxy-url")
    info = {name: cluster.fields[name] for name in names if name in cluster.fields}
    authority = cluster.pem("certificate-authority")
    if authority:
        info["certificate-authority-data"] = base64.b64encode(authority).decode()
    for extension in cluster.fields.get("extensions") or ():
        if extension.get("name") == "client.authentication.k8s.io/exec":
            info["config"] = extension.get("extension")
    return info


def _credential_in(output: bytes, command: str, pem: bytes) -> ApiCredential:
    """Return the credential that a plugin printed."""
    try:
        status = json.loads(output)["status"]
        token = status.get("token")
        certificate, key = status.get("clientCertificateData"), status.get("clientKeyData")
        expiry = status.get("expirationTimestamp")
        expires_at = dt.datetime.fromisoformat(expiry).astimezone(dt.UTC) if expiry else None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KubeconfigError(
            f"credential plugin {command} printed no ExecCredential: {error}"
        ) from error
    if certificate and key:
        pem = f"{certificate}\n{key}".encode()
    elif not token:
        raise KubeconfigError(f"credential plugin {command} returned neither token nor certificate")
    return ApiCredential(f"Bearer {token}" if token else "", pem, expires_at)


# ---------------------------------------------------------------- the kubernetes package


class LibraryTransport:
    """Transport over the ``kubernetes`` package, with the interface of :class:`DirectTransport`."""

    def __init__(self, files: str, context: str) -> None:
        """Load a kubeconfig; raises :class:`KubeconfigError`."""
        from kubernetes import config  # costs 0.3 s

        try:
            self._api: Any = config.new_client_from_config(  # type: ignore[no-untyped-call]
                config_file=files, context=context or None
            )
        except config.ConfigException as error:
            raise KubeconfigError(f"{files} cannot be used: {error}") from error
        self.server = str(self._api.configuration.host)

    def send(self, request: ApiRequest) -> ApiResponse:
        from kubernetes.client import ApiException
        from urllib3.exceptions import HTTPError

        # Serialised and called separately: the generated methods would decode the body into models.
        serialised = self._api.param_serialize(
            request.method,
            request.path,
            query_params=request.query,
            header_params={"Accept": "application/json", "Content-Type": request.content_type},
            body=dict(request.body) if request.body is not None else None,
            auth_settings=["BearerToken"],
        )
        try:
            answer = self._api.call_api(*serialised, _request_timeout=request.timeout_s)
            answer.read()
        except (HTTPError, ApiException, OSError) as error:
            raise UnreachableError(innermost(error)) from error
        return ApiResponse(answer.status, answer.data, answer.getheader("Date") or "")

    def close(self) -> None:
        self._api.close()
