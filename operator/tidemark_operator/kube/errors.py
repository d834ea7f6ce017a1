"""What a call to the API server can come back with, as types small enough to decide on.

The rule: a caller catches exactly the outcome it can handle. ``Unavailable`` says that the effect
of the call is *unknown* (a time-out, a reset, a 5xx): whoever wrote must read before going on.
"""

import json
import math


class KubeError(Exception):
    """A refusal or a failure of the API server; ``status`` is HTTP's, 0 when there was no
    answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.message = message

    @property
    def by_policy(self) -> bool:
        """Return whether admission refused the object: a ValidatingAdmissionPolicy, or a webhook
        such as Gatekeeper's or Kyverno's. A policy chooses its status, so any error class may."""
        return "denied request" in self.message or "denied the request" in self.message

    @property
    def said(self) -> str:
        """The server's own words, without the call that it answered."""
        return self.message.partition(_answered(self.status))[2] or self.message


class Conflict(KubeError):
    """409: another resourceVersion, another uid, or the object exists already."""


class FieldConflict(Conflict):
    """409 of a server-side apply: another manager holds a field that is to be otherwise."""


class NotFound(KubeError):
    """404: the object, or its kind, does not exist."""


class Forbidden(KubeError):
    """401 or 403: the operator's account may not do this."""


class Invalid(KubeError):
    """400, 413 or 422: the object was refused by the schema or a rule; trying again is useless."""


class Expired(KubeError):
    """410: a continue token or a resourceVersion is too old; list again."""


class Unavailable(KubeError):
    """No answer, or the server could not serve: whether a write took effect is unknown."""

    def __init__(self, status: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(status, message)
        self.retry_after_s = retry_after_s


#: What trying again does not mend by itself: a person has to.
REFUSALS = (Forbidden, Invalid, FieldConflict)

#: How apimachinery begins what it says of an apply whose body is not of its kind's schema; the API
#: server calls that a fault of its own (500).
_UNTYPED = "failed to create typed patch object"
#: The reason of a cause, as apimachinery names it.
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


def error_of(status: int, body: bytes, retry_after: str | None, what: str) -> KubeError:
    """The error for an HTTP answer outside 2xx; the message is the server's own."""
    said = _message_of(body)
    message = f"{what}{_answered(status)}{said}"
    kind = Invalid if status == 500 and said.startswith(_UNTYPED) else _TYPES.get(status)
    if kind is Conflict and _HELD in _causes_of(body):
        kind = FieldConflict
    if kind is not None:
        return kind(status, message)
    return Unavailable(status, message, _seconds(retry_after))


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
    """The reasons that the server's ``Status`` gives one by one."""
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
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), 30.0)
