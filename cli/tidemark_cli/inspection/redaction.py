"""Removal of secrets from text that leaves the cluster.

Three nets, because each has holes: values that the namespace's Secrets contain, values whose name
says that they are secret, and texts that have the form of a credential.
"""

import base64
import json
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from tidemark.reasons import Reason

REDACTED = "[redacted]"
#: Shorter values, such as ``true`` or a port, would redact unrelated text.
_VALUE_CHARS_MIN = 6
#: Part of the name of a field, variable or option whose value is secret.
_SECRET_NAME = (
    r"(?:pass(?:word|wd|phrase)?|secret|token|api[_.-]?key|access[_.-]?key(?:[_.-]?id)?|"
    r"private[_.-]?key|credentials?|jaas|signature|authorization|cookie)"
)
#: Names of which only the end looks like that: references and figures are needed in a report.
_HARMLESS = re.compile(
    r"(?:ref|refs|name|names|count|ms|bytes|seconds|id)$|^secrets?$", re.IGNORECASE
)
#: Reasons of conditions such as PasswordUnusable stand before messages in logs.
_REASONS = frozenset(reason.value for reason in Reason)
_NAME = re.compile(_SECRET_NAME, re.IGNORECASE)
_ASSIGNMENT = re.compile(
    # name, separator, value: in YAML, JSON, properties, command lines and query strings
    rf"""(?P<name>[\w.-]*{_SECRET_NAME}[\w.-]*)
        (?P<between>\\?["']?\s*[:=]\s*|\s+(?=\\?["']))
        (?P<value>\\?"[^"]*"|'[^']*'|(?:Basic|Bearer|AWS4-HMAC-SHA256)\s[^\n]*|[^\s,;&}}\])"']+)""",
    re.IGNORECASE | re.VERBOSE,
)
_FORMS = (
    # Private keys in PEM, also with line ends written as \n; a cut one ends with the text.
    re.compile(
        r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL
    ),
    # Access key ids of AWS, GitHub's tokens, JSON Web Tokens.
    re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    re.compile(r"\bgh[pousr]_[A-Za-z0-9]{20,}\b"),
    re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
)
_URL_USER = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.-]*://)[^\s/@\"']+@", re.IGNORECASE)


class Redactor:
    """Replaces secrets in text by :data:`REDACTED`.

    ``values`` are known secrets: decoded values of Secrets.
    """

    def __init__(self, values: Iterable[str] = ()) -> None:
        forms = {form for value in values for form in _written_forms(value)}
        # Longer ones first: a value may be a part of another.
        ordered = sorted(forms, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, ordered))) if ordered else None

    def text(self, text: str) -> str:
        """Return the text without secrets."""
        if self._known is not None:
            text = self._known.sub(REDACTED, text)
        for form in _FORMS:
            text = form.sub(REDACTED, text)
        text = _URL_USER.sub(rf"\g<scheme>{REDACTED}@", text)
        return _ASSIGNMENT.sub(_assignment, text)

    def value(self, value: Any) -> Any:
        """Return a JSON value without secrets: by the names of its fields, then as text.

        Its JSON text needs no further redaction, which would destroy the form.
        """
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(item) for item in value]
        if not isinstance(value, dict):
            return value
        # In a container's ``env``, the name that marks a secret is a field beside the value.
        named = str(value.get("name", ""))
        return {
            self.text(key): REDACTED
            if isinstance(item, str | int | float)
            and not isinstance(item, bool)
            and (is_secret(key) or (key == "value" and is_secret(named)))
            else self.value(item)
            for key, item in value.items()
        }


def is_secret(name: str) -> bool:
    """Return whether a field or variable of this name has a secret value."""
    if name in _REASONS:
        return False
    return _NAME.search(name) is not None and _HARMLESS.search(name) is None


def _assignment(match: re.Match[str]) -> str:
    name = match["name"]
    if not is_secret(name) or REDACTED in match["value"]:
        return match[0]
    quoted = re.match(r"\\?[\"']", match["value"])
    mark = quoted[0] if quoted else ""
    return f"{name}{match['between']}{mark}{REDACTED}{mark}"


def _written_forms(value: str) -> Iterable[str]:
    """Yield the value as it may occur: plain, each line, in JSON, in a URL and in Base64."""
    for text in {value, *value.splitlines()}:
        if len(text.strip()) >= _VALUE_CHARS_MIN:
            yield text.strip()
            yield json.dumps(text.strip())[1:-1]
            yield quote(text.strip(), safe="")
            yield base64.b64encode(text.strip().encode()).decode()
