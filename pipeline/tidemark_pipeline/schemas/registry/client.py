"""Asks a schema registry, by the REST interface that Confluent's and those like it have.

Three questions: a schema by its id, the latest of a subject, a version that another schema refers
to. What can heal is asked again, at the next address and after a pause: no connection, no answer
in time, 429, 500 and what is above it. What cannot is said at once: a certificate that nobody
trusts, a refused user, an answer that is none of a registry's. Answers are bounded, and
redirections are not followed, for the password would go along.
"""

import base64
import json
import ssl
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import Any
from urllib.parse import quote, urlsplit

from tidemark.backoff import Backoff
from tidemark_pipeline.errors import DependencyUnavailable, ExportError
from tidemark_pipeline.schemas.registry.access import RegistryAccess

ANSWER_BYTES_MAX = 4 * 1024 * 1024
_TYPE = "application/vnd.schemaregistry.v1+json"
#: The registry's own numbers: no such subject, version, schema.
_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA = 40401, 40402, 40403
_PAUSE = Backoff(first_s=0.2, most_s=5.0)
_TOO_MANY = 429
_PAUSE_MOST_S = 30.0


class RegistryDown(DependencyUnavailable):
    """It does not answer: whatever is known may change, so nothing is decided."""


class RegistryRefused(ExportError):
    """It answers, and will not answer this; asking again changes nothing."""


@dataclass(frozen=True, slots=True)
class Reference:
    """By which name a schema uses a version of another subject."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Registered:
    """A schema as it is registered. ``kind``: AVRO, PROTOBUF or JSON. ``id``: 0 where the answer
    did not name it."""

    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()
    id: int = 0
    version: int = 0


class NotThere(LookupError):
    """The registry says that it has no such thing."""


@dataclass(slots=True)
class _AttemptFailed(Exception):
    """One attempt, which may be made again."""

    why: str
    after_s: float = 0.0


@dataclass(slots=True)
class Registry:
    """One of several addresses is asked at a time. ``stop``: ends the waiting."""

    access: RegistryAccess
    stop: threading.Event = field(default_factory=threading.Event)
    now: Callable[[], float] = time.monotonic
    _turn: int = 0

    def schema(self, number: int) -> Registered:
        """By its id. Raises :class:`NotThere`, :class:`RegistryDown`, :class:`RegistryRefused`."""
        return _registered(self._ask(f"/schemas/ids/{number}?format=serialized"))

    def latest(self, subject: str) -> Registered:
        """The newest version of a subject. Raises the same."""
        name = quote(subject, safe="")
        return _registered(self._ask(f"/subjects/{name}/versions/latest?format=serialized"))

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return a subject's versions, deleted ones included. Raises RegistryDown,
        RegistryRefused and NotThere."""
        path = f"/subjects/{quote(subject, safe='')}/versions?deleted=true"
        found = self._ask(path, list)
        if not all(type(version) is int for version in found):
            raise RegistryRefused(f"the registry's answer to {path} has no versions")
        return tuple(found)

    def version(self, reference: Reference) -> Registered:
        """One that a schema refers to, also where its subject was deleted since. Raises the
        same."""
        name = quote(reference.subject, safe="")
        return _registered(
            self._ask(
                f"/subjects/{name}/versions/{reference.version}?deleted=true&format=serialized"
            )
        )

    def _ask(self, path: str, kind: type = dict) -> Any:
        until = self.now() + self.access.patience_s
        failures = 0
        while True:
            url = self.access.urls[self._turn % len(self.access.urls)]
            try:
                return self._once(url, path, kind)
            except _AttemptFailed as failed:
                failures += 1
                self._turn += 1
                pause = failed.after_s
                if failures % len(self.access.urls) == 0:
                    pause = max(pause, _PAUSE.pause_s(failures // len(self.access.urls)))
                if self.now() + pause >= until or self.stop.wait(pause):
                    raise RegistryDown(
                        f"the schema registry does not answer ({url}: {failed.why}, "
                        f"{failures} attempts): nothing is committed without it; start again when "
                        "it does"
                    ) from failed

    def _once(self, url: str, path: str, kind: type) -> Any:
        parts = urlsplit(url)
        connection = self._connection(url)
        try:
            connection.request("GET", parts.path + path, headers=self._headers())
            answer = connection.getresponse()
            body = answer.read(ANSWER_BYTES_MAX + 1)
            after = answer.getheader("Retry-After") or ""
        except ssl.SSLCertVerificationError as error:
            raise RegistryRefused(
                f"{url}: its certificate is not trusted ({error.verify_message}): name who signs "
                "it by the option ca"
            ) from error
        except (OSError, HTTPException) as error:
            raise _AttemptFailed(f"{type(error).__name__}: {error}") from error
        finally:
            connection.close()
        status = answer.status
        if len(body) > ANSWER_BYTES_MAX:
            raise RegistryRefused(f"{url}{path}: the answer has more than {ANSWER_BYTES_MAX} bytes")
        if status == _TOO_MANY or status >= 500:
            pause = min(float(after), _PAUSE_MOST_S) if after.isdecimal() else 0.0
            raise _AttemptFailed(f"HTTP {status}", pause)
        return _understood(url + path, status, body, kind)

    def _connection(self, url: str) -> HTTPConnection:
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return HTTPConnection(host, parts.port, timeout=self.access.timeout_s)
        try:
            context = ssl.create_default_context(cafile=self.access.ca or None)
            if self.access.certificate:
                context.load_cert_chain(self.access.certificate, self.access.key)
        except OSError as error:
            raise RegistryRefused(
                f"the registry's ca, certificate or key cannot be read: {error}"
            ) from error
        return HTTPSConnection(host, parts.port, timeout=self.access.timeout_s, context=context)

    def _headers(self) -> dict[str, str]:
        headers = {"Accept": f"{_TYPE}, application/json"}
        if self.access.user:
            pair = f"{self.access.user}:{self.access.password}".encode()
            headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        elif self.access.token:
            headers["Authorization"] = f"Bearer {self.access.token}"
        return headers


def _understood(url: str, status: int, body: bytes, kind: type) -> Any:
    if status in {401, 403}:
        raise RegistryRefused(
            f"{url}: the registry refuses (HTTP {status}): give it a user and a password, or a "
            "token, who may read the subject"
        )
    try:
        parsed = json.loads(body)
    except (ValueError, RecursionError):
        parsed = None
    code = parsed.get("error_code") if isinstance(parsed, dict) else None
    if status == 404 and code in {_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA}:
        raise NotThere(f"{url}: {parsed.get('message', '')}" if parsed else url)
    if status != 200 or not isinstance(parsed, kind):
        raise RegistryRefused(
            f"{url}: HTTP {status}, and nothing that a schema registry says: is the address right, "
            "with its path?"
        )
    return parsed


def _registered(parsed: dict[str, Any]) -> Registered:
    try:
        references = tuple(
            Reference(str(reference["name"]), str(reference["subject"]), int(reference["version"]))
            for reference in parsed.get("references") or ()
        )
        return Registered(
            _text(parsed["schema"]),
            str(parsed.get("schemaType") or "AVRO"),
            references,
            int(parsed.get("id") or 0),
            int(parsed.get("version") or 0),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise RegistryRefused("the registry's answer has no schema") from error


def _text(given: object) -> str:
    if not isinstance(given, str):
        raise TypeError(given)
    return given
