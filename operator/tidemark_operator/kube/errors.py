"""Outcomes of a call to the API server, as few types as callers decide on.

A caller catches exactly the outcome that it can handle. After ``ApiServerUnavailable`` (a timeout,
a reset, a 5xx) the effect of the call is *unknown*: the writer must read before it continues.
"""

import json
import math


class KubeError(Exception):
    """Refusal or failure of the API server; ``status`` is HTTP's, 0 without an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def by_policy(self) -> bool:
        """Return whether admission refused the object.

        Admission is a ValidatingAdmissionPolicy, or a webhook such as Gatekeeper's or Kyverno's. A
        policy chooses its status, so this applies to any error class.
        """
        return "denied request" in self.message or "denied the request" in self.message

    @property
    def server_message(self) -> str:
        """Server's message, without the call that it answered."""
        return self.message.partition(_answered(self.status))[2] or self.message


class Conflict(KubeError):
    """409: another resourceVersion, another uid, or the object exists."""


class FieldConflict(Conflict):
    """409 of a server-side apply: another manager owns a field with a different value."""


class NotFound(KubeError):
    """404: the object, or its kind, does not exist."""


class Forbidden(KubeError):
    """401 or 403: the operator's account lacks the right."""


class Invalid(KubeError):
    """400, 413 or 422: a schema or rule rejects the object; a retry cannot help."""


class Expired(KubeError):
    """410: a continue token or a resourceVersion is too old; list again."""


class ApiServerUnavailable(KubeError):
    """No answer, or the server could not serve: whether a write took effect is unknown."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(status, message)
        self.retry_after_s = retry_after_s


#: Errors that a retry does not fix: a person has to act.
REFUSALS = (Forbidden, Invalid, FieldConflict)

#: Start of apimachinery's message about an apply whose body violates its kind's schema. The API
#: server reports it as an internal error (500).
_UNTYPED = "failed to create typed patch object"
#: Reason of a cause in apimachinery.
_HELD = "FieldManagerConflict"

_TYPES: dict[int, type[KubeError]] = {
    400: Invalid,
    401: Forbidden,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    410: Expired,
    413: Invalid,
    422: Invalid,
}


def error_of(status: int, body: bytes, retry_after: str | None, call: str) -> KubeError:
    """Return the error for an HTTP status outside 2xx; the message is the server's own."""
    server_message = _message_of(body)
    message = f"{call}{_answered(status)}{server_message}"
    # A schema violation in an apply is not the server's fault, so it must not be retried.
    kind = Invalid if status == 500 and server_message.startswith(_UNTYPED) else _TYPES.get(status)
    if kind is Conflict and _HELD in _causes_of(body):
        kind = FieldConflict
    if kind is not None:
        return kind(status, message)
    # Everything else, 429 and 5xx above all, may succeed later.
    return ApiServerUnavailable(status, message, _seconds(retry_after))


def _answered(status: int) -> str:
    return f": HTTP {status}: "


def _message_of(body: bytes) -> str:
    try:
        parsed = json.loads(body)
    except ValueError:
        return body[:500].decode("utf-8", "replace")
    if isinstance(parsed, dict):
        return str(parsed.get("message", parsed))
    return str(parsed)


def _causes_of(body: bytes) -> frozenset[str]:
    """Return the reasons of the causes in the server's ``Status``."""
    try:
        causes = json.loads(body)["details"]["causes"]
        return frozenset(str(cause["reason"]) for cause in causes)
    except (ValueError, KeyError, TypeError):
        return frozenset()


def _seconds(retry_after: str | None) -> float:
    try:
        seconds = float(retry_after or 0)
    except ValueError:
        return 0.0
    # A bound, so that one header cannot stop the operator for long.
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), 30.0)
