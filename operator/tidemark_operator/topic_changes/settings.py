"""Kafka's configuration keys in a Topic's spec.

A client's settings become ``spec.config``, and, for keys with fields of their own,
``spec.tiering``. Kafka has two sets of keys for tiering. KIP-950's draft, which the fields follow,
has ``remote.storage.enable`` and ``remote.log.disable.policy``. Kafka's releases have
``remote.log.copy.disable`` (data in the tier stays readable: disabled with policy Retain here) and
``remote.log.delete.on.disable`` (policy Delete).
"""

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.configuration.key import ConfigKey
from tidemark.configuration.problems import PAGE, problems
from tidemark.configuration.table import BROKER, CLUSTER, CLUSTER_DEFAULTS, DYNAMIC, TOPIC
from tidemark.configuration.topic_keys import COPY_PAUSED, MAX_LAG_BYTES, MAX_LAG_MS
from tidemark.wire.topics import Setting, SettingOperation
from tidemark_operator.kube.kinds import Json
from tidemark_operator.resources.topic_config import TYPED
from tidemark_operator.topic_changes.refusal import refused

ENABLE = "remote.storage.enable"
POLICY = "remote.log.disable.policy"
COPY_DISABLE = "remote.log.copy.disable"
DELETE_ON_DISABLE = "remote.log.delete.on.disable"
LOCAL_MS = "local.retention.ms"
LOCAL_BYTES = "local.retention.bytes"

_AS_TOTAL = "-2"
_RETAIN, _DELETE = "Retain", "Delete"


@dataclasses.dataclass(frozen=True, slots=True)
class TopicSettings:
    """``spec.config`` and ``spec.tiering`` (None: no such block)."""

    config: Mapping[str, str]
    tiering: Mapping[str, Any] | None

    @classmethod
    def of(cls, spec: Json) -> "TopicSettings":
        """Return the two blocks of a spec."""
        config = {name: str(value) for name, value in (spec.get("config") or {}).items()}
        return cls(config, spec.get("tiering"))

    @property
    def is_tiered(self) -> bool:
        """Whether the spec enables tiering."""
        return self.tiering is not None and bool(self.tiering.get("enabled"))


def changed(
    before: TopicSettings, settings: Sequence[Setting], *, replaces_all: bool
) -> TopicSettings:
    """Return ``spec.config`` and ``spec.tiering`` after a client's configuration change.

    ``replaces_all``: AlterConfigs, which resets all keys that it does not name. Raises
    :class:`ChangeRefusal`.
    """
    check_names(settings, TOPIC, ErrorCode.invalid_config, "Unknown topic config name")
    if replaces_all:
        before = _emptied(before, settings)
    # Keys with fields of their own go to `spec.tiering`, all others to `spec.config`.
    values = {setting.name: new_value(before.config, setting, TOPIC) for setting in settings}
    plain = {name: value for name, value in values.items() if name not in TYPED}
    typed = {name: value for name, value in values.items() if name in TYPED}
    # Existing keys keep their place, so that the manifest's order stays.
    config = {name: plain.get(name, value) for name, value in {**before.config, **plain}.items()}
    kept = {name: value for name, value in config.items() if value is not None}
    _check_values(plain, typed)
    return TopicSettings(kept, _tiering(before.tiering, typed))


def _emptied(before: TopicSettings, settings: Iterable[Setting]) -> TopicSettings:
    """Return the empty blocks; a missing key must not switch tiering off by accident."""
    if before.is_tiered and all(setting.name != ENABLE for setting in settings):
        text = f"AlterConfigs replaces the whole configuration. Include {ENABLE}"
        raise refused(ErrorCode.invalid_config, text)
    return TopicSettings({}, None if before.tiering is None else {"enabled": before.is_tiered})


def check_names(
    settings: Iterable[Setting], keys: Mapping[str, ConfigKey], code: ErrorCode, unknown: str
) -> None:
    """Check that each setting has a known key and is named once. Raises :class:`ChangeRefusal`.

    Kafka checks the resulting configuration, so a DELETE of an unknown key is allowed. ``code`` and
    ``unknown``: Kafka's error code and message for an unknown key.
    """
    seen: set[str] = set()
    for setting in settings:
        if setting.name in seen:
            raise refused(ErrorCode.invalid_request, f"{setting.name} is set twice")
        seen.add(setting.name)
        if setting.name not in keys and setting.operation != SettingOperation.DELETE:
            raise refused(code, f"{unknown}: {setting.name}; {_where_instead(setting.name)}")


def _where_instead(name: str) -> str:
    """Return the place or name that sets this key, or where the keys are documented."""
    if name in TOPIC and TOPIC[name].synonyms:
        return f"the default for all topics is {TOPIC[name].synonyms[0].name}"
    if name in DYNAMIC:
        return (
            f"that is the default for all topics, and {CLUSTER_DEFAULTS[name].name} "
            "is the key of one topic"
        )
    if name in CLUSTER:
        return f"set it in spec.config of the Cluster object (see {PAGE})"
    if name in BROKER:
        return f"set it in each broker's file, which is read at startup (see {PAGE})"
    return f"supported keys are in {PAGE}"


def new_value(
    before: Mapping[str, str], setting: Setting, keys: Mapping[str, ConfigKey]
) -> str | None:
    """Return a key's value after one setting, None for the default. Raises :class:`ChangeRefusal`.

    Operations are those of IncrementalAlterConfigs (KIP-339): SET, DELETE, APPEND and SUBTRACT.
    """
    name = setting.name
    try:
        operation = SettingOperation(setting.operation)
    except ValueError:
        text = f"{name}: {setting.operation} is not a configuration operation"
        raise refused(ErrorCode.invalid_request, text) from None
    if operation is SettingOperation.DELETE:
        return None
    if setting.value is None:
        raise refused(ErrorCode.invalid_request, f"{name} has no value")
    if operation is SettingOperation.SET:
        return setting.value
    # APPEND and SUBTRACT apply to lists only; the order of the entries is kept.
    if keys[name].type.name != "list":
        text = f"{name} is not a list, so values cannot be appended or subtracted"
        raise refused(ErrorCode.invalid_config, text)
    present = _parts(before.get(name, keys[name].default or ""))
    given = _parts(setting.value)
    added = given if operation is SettingOperation.APPEND else []
    taken = given if operation is SettingOperation.SUBTRACT else []
    return ",".join(part for part in dict.fromkeys([*present, *added]) if part not in taken)


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _check_values(plain: Mapping[str, str | None], typed: Mapping[str, str | None]) -> None:
    given = {name: value for name, value in plain.items() if value is not None}
    for problem in problems(given, TOPIC):
        raise refused(ErrorCode.invalid_config, problem)
    for name, value in typed.items():
        if value is not None and not TOPIC[name].type.accepts(value):
            text = f"{name} {TOPIC[name].type.requirement}"
            # KIP-950 ("Exceptions") specifies INVALID_REQUEST for an unsupported policy.
            code = ErrorCode.invalid_request if name == POLICY else ErrorCode.invalid_config
            raise refused(code, text)


# ---------------------------------------------------------------- spec.tiering


def _tiering(
    before: Mapping[str, Any] | None, typed: Mapping[str, str | None]
) -> Mapping[str, Any] | None:
    """Return ``spec.tiering`` after a client's settings; None if the spec has no such block.

    ``typed``: keys with fields of their own in the block; None resets one to its default.
    """
    if not typed:
        return before
    # A change keeps fields of the block that no Kafka key covers.
    block = dict(before or {"enabled": False})
    block["enabled"], policy = _switched(block, typed)
    _put(block, "disablePolicy", policy)
    for field, time_key, size_key in (
        ("localRetention", LOCAL_MS, LOCAL_BYTES),
        ("maxLag", MAX_LAG_MS, MAX_LAG_BYTES),
    ):
        limits = dict(block.get(field) or {})
        if time_key in typed:
            _put(limits, "time", _limit(time_key, typed[time_key], "ms"))
        if size_key in typed:
            _put(limits, "size", _limit(size_key, typed[size_key], ""))
        _put(block, field, limits or None)
    if COPY_PAUSED in typed:
        _put(block, "paused", typed[COPY_PAUSED] == "true" or None)
    # An empty block says the same as none, and is not written.
    return None if before is None and block == {"enabled": False} else block


def _put(block: dict[str, Any], name: str, value: object) -> None:
    if value is None:
        block.pop(name, None)
    else:
        block[name] = value


def _limit(name: str, value: str | None, unit: str) -> str | None:
    """Return the value as the field has it; None means the key's default: the topic's own
    retention, or no maximum lag.
    """
    if value is None or value == TOPIC[name].default:
        return None
    if value.startswith("-"):
        text = f"invalid {name} {value}. Use a number, or {_AS_TOTAL} for the topic's own retention"
        raise refused(ErrorCode.invalid_config, text)
    return value + unit


def _switched(
    block: Mapping[str, Any], typed: Mapping[str, str | None]
) -> tuple[bool, object | None]:
    """Return whether tiering is enabled after a change, and the policy of a disablement.

    ``block`` is the present ``spec.tiering``. Two generations of keys are supported: those of
    KIP-950's draft (``remote.storage.enable`` with ``remote.log.disable.policy``), and those of
    Kafka's releases (``remote.log.copy.disable`` and ``remote.log.delete.on.disable``).
    """
    enabled, policy = bool(block.get("enabled")), block.get("disablePolicy")
    was_stopped = not enabled and policy == _RETAIN
    # The draft's keys first: they say exactly what the fields say.
    if ENABLE in typed:
        enabled = typed[ENABLE] == "true"
    if POLICY in typed:
        policy = typed[POLICY] and typed[POLICY].capitalize()  # type: ignore[union-attr]
    # Then the releases' keys, as far as the draft's have not decided.
    if typed.get(DELETE_ON_DISABLE) == "true":
        policy = _DELETE
    elif DELETE_ON_DISABLE in typed and policy == _DELETE and POLICY not in typed:
        policy = None
    if typed.get(COPY_DISABLE) == "true":
        if policy != _DELETE or enabled:
            policy = _RETAIN
        enabled = False
    elif COPY_DISABLE in typed and was_stopped and ENABLE not in typed:
        enabled, policy = True, None
    return enabled, policy
