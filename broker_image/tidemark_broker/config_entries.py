"""Values of a configuration file: text by key, the defaults of the table where nothing is given."""

from collections.abc import Mapping

from tidemark.configuration.table import BROKER, listener_key
from tidemark.configuration.values import Number


class ConfigError(ValueError):
    """A configuration that cannot work; the text names the key and what to write."""


def text_of(entries: Mapping[str, str], name: str) -> str:
    """What is given, else the default of the table, "" where it has none."""
    return entries.get(name, BROKER[name].default or "").strip()


def text_of_listener(entries: Mapping[str, str], listener: str, name: str) -> str:
    """What is given for that listener, else for all."""
    own = entries.get(listener_key(listener, name))
    return text_of(entries, name) if own is None else own.strip()


def list_of(text: str) -> tuple[str, ...]:
    """The parts between the commas."""
    return tuple(filter(None, map(str.strip, text.split(","))))


def accepted(entries: Mapping[str, str], name: str) -> str:
    """Like :func:`text_of`; raises :class:`ConfigError` for what the key's type does not accept."""
    text = text_of(entries, name)
    if text and not BROKER[name].type.accepts(text):
        raise ConfigError(f"{name}={text!r} {BROKER[name].type.requirement}")
    return text


def number_of(entries: Mapping[str, str], name: str) -> float:
    """A number that may have a fraction; raises :class:`ConfigError`."""
    return float(accepted(entries, name))


def integer_of(entries: Mapping[str, str], name: str) -> int:
    """A whole number of ``entries``, else the table's default; raises :class:`ConfigError` that
    names the key, KeyError for one that is not in the table."""
    text, type_ = text_of(entries, name), BROKER[name].type
    try:
        value = int(text)
    except ValueError:
        raise ConfigError(f"{name}={text!r} is not a whole number") from None
    if isinstance(type_, Number) and value < type_.minimum:
        raise ConfigError(f"{name}={value} must be at least {type_.minimum}")
    if isinstance(type_, Number) and value > type_.maximum:
        raise ConfigError(f"{name}={value} must be at most {type_.maximum}")
    return value
