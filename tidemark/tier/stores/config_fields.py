"""Parsing of the fields of a remote store's configuration, with messages that name them."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast


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


def prefix_text(fields: Mapping[str, object], kind: str) -> str:
    """Return the folder of all objects, without slashes around it. Raises InvalidConfig."""
    text = optional_text(fields, kind, "prefix", "").strip("/")
    if {".", ".."} & set(text.split("/")):
        raise InvalidConfig(f"remoteStorage: {kind}.prefix must not contain . or .. as a folder")
    return text


def place_names(
    fields: Mapping[str, object],
    kind: str,
    name: str,
    *,
    place: str,
    is_allowed: Callable[[str], bool],
    allowed: str,
) -> tuple[str, ...]:
    """Return the names of buckets or containers, at least one and each once.

    ``name``: field. ``place``: a bucket or a container. ``allowed``: rule for a name in words.
    Raises InvalidConfig.
    """
    # A list of texts, each once: a repeated bucket would get twice its share of segments.
    value = fields.get(name)
    if not isinstance(value, list) or not value or not all(_is_name(item) for item in value):
        raise InvalidConfig(f"remoteStorage: {kind}.{name} must name at least one {place}")
    if len(set(value)) != len(value):
        raise InvalidConfig(f"remoteStorage: {kind}.{name} names a {place} twice")
    # Names become part of URLs, so they must match the cloud's rules.
    for item in value:
        if not is_allowed(item):
            raise InvalidConfig(
                f"remoteStorage: {kind}.{name}: {item!r} is no name of a {place}: {allowed}"
            )
    return tuple(value)


def moved_places(
    kind: str,
    old: Mapping[str, object],
    new: Mapping[str, object],
    *,
    same: Sequence[str],
    places: str,
    place: str,
) -> str:
    """Return why the location ``new`` is another store than ``old``, "" if it is the same.

    ``same``: fields that must not change. ``places``: field with the buckets. Adding buckets is
    allowed. Removing one, or changing the first one, would lose objects.
    """
    for name in same:
        if old.get(name) != new.get(name):
            return f"{kind}.{name} changed"
    # Segments are in any of the buckets, metadata only in the first one.
    kept = cast("Sequence[str]", old[places])
    present = cast("Sequence[str]", new[places])
    dropped = sorted(set(kept) - set(present))
    if dropped:
        return f"{place} {dropped[0]} was dropped"
    if kept[0] != present[0]:
        return f"{place} {kept[0]} holds the metadata and has to stay the first"
    return ""


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)
