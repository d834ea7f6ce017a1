"""Parsing of the fields of a remote store's configuration, with messages that name them."""

from collections.abc import Mapping


class InvalidConfig(ValueError):
    """The remote storage configuration cannot be used; the message names the field."""


def required_text(fields: Mapping[str, object], kind: str, name: str) -> str:
    """Return a text that must be present and not empty. Raises InvalidConfig."""
    value = fields.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidConfig(f"remoteStorage: {kind}.{name} is missing")
    return value


def optional_text(fields: Mapping[str, object], kind: str, name: str, default: str) -> str:
    """Return a text, ``default`` if the field is absent. Raises InvalidConfig."""
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise InvalidConfig(f"remoteStorage: {kind}.{name} must be a text")
    return value
