"""One HTTP request on a connection of its own, for what ``obstore`` does not send.

Time and size of an answer are limited. Like ``obstore``, requests use the proxy that HTTPS_PROXY,
HTTP_PROXY, ALL_PROXY and NO_PROXY name.
"""

import base64
import contextlib
import functools
import http.client
import ipaddress
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field

from tidemark.tls.trust import trusting_context

_PIECE_BYTES = 64 << 10
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Status and body of an answer."""

    status: int
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request. ``url`` is sent as it is: path and query must be quoted.

    ``ca``: certificates (PEM) of authorities that are trusted, too; "" for none.
    ``proxied``: use the environment's proxy. Services on this machine are reached without one.
    """

    method: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    ca: str = ""
    proxied: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Limits of a request: of each wait, of the whole answer, and of its size."""

    wait_s: float
    answer_s: float
    answer_bytes: int


def exchange(request: HttpRequest, limits: HttpLimits) -> HttpResponse:
    """Send a request and return the answer, whatever its status is. Redirects are not followed.

    Blocks. Raises OSError, HTTPException, and ValueError for a header that HTTP does not allow.
    """
    url = urllib.parse.urlsplit(request.url)
    connection, target, headers = _connection(url, request, limits.wait_s)
    began_s = time.monotonic()
    try:
        connection.request(request.method, target, body=request.body or None, headers=headers)
        # The socket's time-out covers single reads, so the body has a deadline of its own.
        response = connection.getresponse()
        return HttpResponse(response.status, _body(response, began_s + limits.answer_s, limits))
    finally:
        connection.close()


def _connection(
    url: urllib.parse.SplitResult, request: HttpRequest, wait_s: float
) -> tuple[http.client.HTTPConnection, str, dict[str, str]]:
    """Return a connection that is not open yet, the request's target on it, and the headers."""
    proxy = _proxy(url) if request.proxied else None
    target = urllib.parse.urlunsplit(("", "", url.path or "/", url.query, ""))
    headers = dict(request.headers)
    if proxy is None:
        return _direct(url.scheme, url.netloc, wait_s, request.ca), target, headers
    credentials = _proxy_credentials(proxy)
    address = proxy.netloc.rpartition("@")[2]
    # A proxy forwards HTTP by the whole URL, and HTTPS through a tunnel that it cannot read.
    if url.scheme == "http":
        return _direct("http", address, wait_s, ""), request.url, {**headers, **credentials}
    connection = _direct("https", address, wait_s, request.ca)
    connection.set_tunnel(url.hostname or "", url.port or _PORTS[url.scheme], credentials)
    return connection, target, headers


def _direct(scheme: str, address: str, wait_s: float, ca: str) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(address, timeout=wait_s)
    return http.client.HTTPSConnection(address, timeout=wait_s, context=_trust(ca))


@functools.lru_cache(maxsize=8)
def _trust(ca: str) -> ssl.SSLContext:
    """Return the process's trust (the system's authorities, or SSL_CERT_FILE), and ``ca``."""
    context = trusting_context()
    if ca:
        context.load_verify_locations(cadata=ca)
    return context


def _proxy(url: urllib.parse.SplitResult) -> urllib.parse.SplitResult | None:
    """Return the environment's proxy for a URL, None for none."""
    proxies = urllib.request.getproxies()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address or _is_excluded(url.hostname or "", proxies.get("no", "")):
        return None
    return urllib.parse.urlsplit(address if "://" in address else f"http://{address}")


def _is_excluded(host: str, excluded: str) -> bool:
    """Return whether NO_PROXY names a host: by its name, its domain or a network of addresses."""
    if urllib.request.proxy_bypass(host):
        return True
    # Python compares names only. ``obstore`` also reads networks.
    with contextlib.suppress(ValueError):
        address = ipaddress.ip_address(host)
        for entry in excluded.split(","):
            with contextlib.suppress(ValueError):
                if address in ipaddress.ip_network(entry.strip(), strict=False):
                    return True
    return False


def _proxy_credentials(proxy: urllib.parse.SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{urllib.parse.unquote(proxy.username)}:{urllib.parse.unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode('ascii')}"}


def _body(response: http.client.HTTPResponse, until_s: float, limits: HttpLimits) -> bytes:
    """Read a response's body up to the size limit, until ``until_s`` (monotonic time).

    A body that ends early raises IncompleteRead, so that it does not look like the response of a
    server of another kind. Raises OSError, HTTPException.
    """
    # None: chunked, so the length is not known.
    expected, body = response.length, bytearray()
    most = limits.answer_bytes if expected is None else min(expected, limits.answer_bytes)
    while len(body) < most:
        piece = response.read1(min(_PIECE_BYTES, most - len(body)))
        if not piece:
            break
        body += piece
        # A server that sends single bytes would otherwise block the thread for hours.
        if time.monotonic() > until_s:
            raise TimeoutError(f"{len(body)} bytes of its answer came in {limits.answer_s:g} s")
    if expected is not None and len(body) < most:
        raise http.client.IncompleteRead(bytes(body), expected - len(body))
    return bytes(body)
