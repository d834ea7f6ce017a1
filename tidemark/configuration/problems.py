"""Problems of a configuration map in a manifest, with the texts of the CRD's rules."""

from collections.abc import Iterable, Mapping

from tidemark.configuration.key import ConfigKey

PAGE = "docs/reference/configuration.md"
#: End of the message for an unknown key, or a key of another kind of object.
UNKNOWN = f"is not a configuration key of this object. See {PAGE}."


def served_names(keys: Mapping[str, ConfigKey]) -> tuple[str, ...]:
    """Return the keys that may be set in the map, in order."""
    return tuple(sorted(name for name, key in keys.items() if key.served and not key.field))


def field_names(keys: Mapping[str, ConfigKey]) -> Mapping[str, str]:
    """Return the keys that the manifest replaces by a field, with that field."""
    return {name: key.field for name, key in keys.items() if key.field}


def not_served(keys: Mapping[str, ConfigKey]) -> Mapping[str, ConfigKey]:
    """Return the keys of Kafka that Tidemark does not implement."""
    return {name: key for name, key in sorted(keys.items()) if not key.served}


def advice(keys: Mapping[str, ConfigKey]) -> str:
    """Return the end of a refusal: the keys that are supported."""
    return f". Supported keys: {', '.join(served_names(keys))}. See {PAGE}."


def problems(config: Mapping[str, str], keys: Mapping[str, ConfigKey]) -> tuple[str, ...]:
    """Return one sentence for each key that is rejected. ``keys``: by their names in the map."""
    return tuple(_problems(config, keys))


def _problems(config: Mapping[str, str], keys: Mapping[str, ConfigKey]) -> Iterable[str]:
    for name, value in config.items():
        key = keys.get(name)
        if key is None:
            yield f"{name} {UNKNOWN}"
        elif key.field:
            yield f"{name} cannot be set in spec.config. Set {key.field} instead."
        # The one value that describes the actual behaviour is accepted.
        elif not key.served:
            if not key.only or value != key.only:
                yield f"{name} {key.reason}{advice(keys)}"
        elif not key.type.accepts(value):
            yield f"{name} {key.type.requirement}"
