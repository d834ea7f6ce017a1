"""Client of a schema registry with Confluent's REST interface.

It reads schemas by id, by subject and by reference. Transient failures are retried at the next
address and after a pause: no connection, no answer in time, 429, and 500 and above. Permanent ones
are raised at once: an untrusted certificate, a refused user, an answer of another service. Answers
have a size limit. Redirections are not followed, because they would receive the password.
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
from tidemark.tls.trust import trusting_context
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
    """The registry does not answer, so no decision is made about any record."""


class RegistryRefused(ExportError):
    """The registry refuses the query, and a retry does not help."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Version of another subject, and the name by which a schema uses it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Registered:
    """A registered schema. ``kind``: AVRO, PROTOBUF or JSON. ``id``: 0 if the answer omits it."""

    text: str
    kind: str = "AVRO"
    references: tuple[Reference, ...] = ()
    id: int = 0
    version: int = 0


class SchemaNotFound(LookupError):
    """The registry answers that it does not have the schema, subject or version."""


@dataclass(slots=True)
class _AttemptFailed(Exception):
    """Failure of one attempt, which may be retried after ``after_s`` seconds."""

    why: str
    after_s: float = 0.0


@dataclass(slots=True)
class Registry:
    """Client of a registry, which uses one address at a time. ``stop``: ends a pause."""

    access: RegistryAccess
    stop: threading.Event = field(default_factory=threading.Event)
    now: Callable[[], float] = time.monotonic
    _turn: int = 0

    def schema(self, number: int) -> Registered:
        """Return a schema by id.

        Raises :class:`SchemaNotFound`, :class:`RegistryDown` or
        :class:`RegistryRefused`.
        """
        return _registered(self._ask(f"/schemas/ids/{number}?format=serialized"))

    def latest(self, subject: str) -> Registered:
        """Return the newest version of a subject. Raises the errors of :meth:`schema`."""
        name = quote(subject, safe="")
        return _registered(self._ask(f"/subjects/{name}/versions/latest?format=serialized"))

    def versions(self, subject: str) -> tuple[int, ...]:
        """Return a subject's versions, including deleted ones.

        Raises the errors of :meth:`schema`.
        """
        path = f"/subjects/{quote(subject, safe='')}/versions?deleted=true"
        versions = self._ask(path, list)
        if not all(type(version) is int for version in versions):
            raise RegistryRefused(f"the registry's answer to {path} has no versions")
        return tuple(versions)

    def version(self, reference: Reference) -> Registered:
        """Return a referenced version, even if its subject was deleted.

        Raises the errors of :meth:`schema`.
        """
        name = quote(reference.subject, safe="")
        return _registered(
            self._ask(
                f"/subjects/{name}/versions/{reference.version}?deleted=true&format=serialized"
            )
        )

    def _ask(self, path: str, kind: type = dict) -> Any:
        """Return the JSON at ``path`` from the first registry address that answers.

        ``kind``: expected Python type of the JSON. Transient failures are retried for
        ``patience_s``. Raises :class:`SchemaNotFound`, :class:`RegistryDown` or
        :class:`RegistryRefused`.
        """
        until = self.now() + self.access.patience_s
        failures = 0
        while True:
            # The address that worked last is used first.
            url = self.access.urls[self._turn % len(self.access.urls)]
            try:
                return self._once(url, path, kind)
            except _AttemptFailed as failed:
                failures += 1
                self._turn += 1
                pause = failed.after_s
                if failures % len(self.access.urls) == 0:
                    # The backoff grows only after every address has failed once more.
                    pause = max(pause, _PAUSE.pause_s(failures // len(self.access.urls)))
                # No attempt starts after the deadline. Setting ``stop`` ends the pause at once.
                if self.now() + pause >= until or self.stop.wait(pause):
                    raise RegistryDown(
                        f"the schema registry does not answer ({url}: {failed.why}, "
                        f"{failures} attempts): nothing is committed without it; start again when "
                        "it does"
                    ) from failed

    def _once(self, url: str, path: str, kind: type) -> Any:
        """Send one GET request to one address and return the parsed JSON.

        Raises :class:`_AttemptFailed` if a retry may help, otherwise SchemaNotFound or
        RegistryRefused.
        """
        parts = urlsplit(url)
        connection = self._connection(url)
        try:
            connection.request("GET", parts.path + path, headers=self._headers())
            answer = connection.getresponse()
            # One byte more than the limit shows that the answer is too long.
            body = answer.read(ANSWER_BYTES_MAX + 1)
            after = answer.getheader("Retry-After") or ""
        # An untrusted certificate is permanent, unlike other connection errors.
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
        # The size is checked before the status, as a body of any status may be too long.
        if len(body) > ANSWER_BYTES_MAX:
            raise RegistryRefused(f"{url}{path}: the answer has more than {ANSWER_BYTES_MAX} bytes")
        # The registry may request a longer pause than the backoff, up to a limit.
        if status == _TOO_MANY or status >= 500:
            pause = min(float(after), _PAUSE_MOST_S) if after.isdecimal() else 0.0
            raise _AttemptFailed(f"HTTP {status}", pause)
        return _understood(url + path, status, body, kind)

    def _connection(self, url: str) -> HTTPConnection:
        """Return a connection to one address that is not open yet.

        Raises RegistryRefused if the certificate files cannot be read.
        """
        parts = urlsplit(url)
        host = parts.hostname or ""
        if parts.scheme == "http":
            return HTTPConnection(host, parts.port, timeout=self.access.timeout_s)
        try:
            context = trusting_context(cafile=self.access.ca or None)
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
    """Return the parsed JSON of a response; raise SchemaNotFound or RegistryRefused otherwise.

    ``kind``: expected Python type of the JSON.
    """
    if status in {401, 403}:
        raise RegistryRefused(
            f"{url}: the registry refuses (HTTP {status}): give it a user and a password, or a "
            "token, who may read the subject"
        )
    try:
        parsed = json.loads(body)
    # A proxy may answer with a page instead of JSON.
    except (ValueError, RecursionError):
        parsed = None
    code = parsed.get("error_code") if isinstance(parsed, dict) else None
    # A plain 404 without the registry's own code comes from another service or a wrong path.
    if status == 404 and code in {_NO_SUBJECT, _NO_VERSION, _NO_SCHEMA}:
        raise SchemaNotFound(f"{url}: {parsed.get('message', '')}" if parsed else url)
    if status != 200 or not isinstance(parsed, kind):
        raise RegistryRefused(
            f"{url}: HTTP {status}, and nothing that a schema registry says: is the address right, "
            "with its path?"
        )
    return parsed


def _registered(parsed: dict[str, Any]) -> Registered:
    """Return the schema in the JSON of a registry's response.

    Raises RegistryRefused if it has none.
    """
    try:
        references = tuple(
            Reference(str(reference["name"]), str(reference["subject"]), int(reference["version"]))
            for reference in parsed.get("references") or ()
        )
        return Registered(
            _text(parsed["schema"]),
            # The registry omits the type of Avro schemas.
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
