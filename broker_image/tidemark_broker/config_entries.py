"""Values of a configuration file: text by key, with the defaults of the table of keys."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tidemark.configuration.table import BROKER, listener_key
from tidemark.configuration.values import Number


class ConfigError(ValueError):
    """An invalid configuration. The text names the key and the accepted values."""


def text_of(entries: Mapping[str, str], name: str) -> str:
    """Return the configured value, else the table's default, or "" without a default."""
    return entries.get(name, BROKER[name].default or "").strip()


def text_of_listener(entries: Mapping[str, str], listener: str, name: str) -> str:
    """Return the value of ``listener.name.<listener>.<name>``, else that of ``name`` (KIP-103)."""
    # An empty value is a value: it overrides the common one.
    own = entries.get(listener_key(listener, name))
    return text_of(entries, name) if own is None else own.strip()


def list_of(text: str) -> tuple[str, ...]:
    """Return the non-empty parts between the commas, without surrounding white space."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def accepted(entries: Mapping[str, str], name: str) -> str:
    """Return the value like :func:`text_of`.

    Raises :class:`ConfigError` if the key's type does not accept it.
    """
    text = text_of(entries, name)
    if text and not BROKER[name].type.accepts(text):
        raise ConfigError(f"{name}={text!r} {BROKER[name].type.requirement}")
    return text


def number_of(entries: Mapping[str, str], name: str) -> float:
    """Return a number that may have a fraction. Raises :class:`ConfigError`."""
    return float(accepted(entries, name))


def integer_of(entries: Mapping[str, str], name: str) -> int:
    """Return the whole number that is configured for the key ``name``, else the key's default.

    Raises :class:`ConfigError` if it is not a number or out of range, ``KeyError`` for a key
    outside the table of keys.
    """
    text, type_ = text_of(entries, name), BROKER[name].type
    # Checked in steps, so that the message says whether the form or the range is wrong.
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number") from None
    if isinstance(type_, Number) and value < type_.minimum:
        raise ConfigError(f"{name}={value} must be at least {type_.minimum}")
    if isinstance(type_, Number) and value > type_.maximum:
        raise ConfigError(f"{name}={value} must be at most {type_.maximum}")
    return value


def key_field(name: str) -> Any:
    """Declare a field of a dataclass for the whole number or the switch of the key ``name``.

    Its default is that of the key.
    """
    return dataclasses.field(default=BROKER[name].default_value, metadata={"key": name})


def seconds_field(name: str) -> Any:
    """Declare a field in seconds for the key ``name``, which is in milliseconds."""
    default: Any = BROKER[name].default_value
    return dataclasses.field(default=default / 1000, metadata={"key": name, "in_seconds": True})


def values_of(settings: type[Any], entries: Mapping[str, str]) -> dict[str, Any]:
    """Return the configured values of a dataclass's fields, as declared by the functions above.

    Raises :class:`ConfigError` with the key.
    """
    return {
        field.name: _value_of(entries, **field.metadata)
        for field in dataclasses.fields(settings)
        if "key" in field.metadata
    }


def _value_of(entries: Mapping[str, str], key: str, *, in_seconds: bool = False) -> float:
    if isinstance(BROKER[key].default_value, bool):
        return accepted(entries, key).lower() == "true"
    value = integer_of(entries, key)
    return value / 1000 if in_seconds else value
