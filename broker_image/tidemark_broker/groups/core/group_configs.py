"""What holds for one consumer group: what is set for it, where something is, else what the broker's
file says for all (Kafka's GroupConfigManager)."""

from collections.abc import Callable, Mapping

from tidemark.configuration.group_keys import (
    ASSIGNMENT_INTERVAL_MS,
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
)
from tidemark_broker.groups.core.settings import GroupSettings

#: Of a group that has a configuration, by Kafka's keys.
GroupConfigOf = Callable[[str], Mapping[str, str]]


class GroupConfigs:
    """Of all groups of KIP-848's protocol. What is set for one, beyond what the broker allows,
    counts as the nearest that it does; times in milliseconds. Pure."""

    def __init__(self, settings: GroupSettings, own: GroupConfigOf) -> None:
        self._settings = settings
        self._own = own

    def session_timeout_ms(self, group_id: str) -> int:
        """After how long a member that is not heard of is gone."""
        default_ms = self._settings.consumer_session_timeout_ms
        return self._of(group_id, SESSION_TIMEOUT_MS, default_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """How often its members are to be heard of."""
        default_ms = self._settings.consumer_heartbeat_interval_ms
        return self._of(group_id, HEARTBEAT_INTERVAL_MS, default_ms)

    def assignment_interval_ms(self, group_id: str) -> int:
        """How long its targets stay as they are at least."""
        default_ms = self._settings.consumer_assignment_interval_ms
        return self._of(group_id, ASSIGNMENT_INTERVAL_MS, default_ms)

    def _of(self, group_id: str, key: str, default_ms: int) -> int:
        text = self._own(group_id).get(key)
        if text is None:
            return default_ms
        least, most = self._settings.group_bounds[key]
        return min(max(int(text), least), most)


def wrong_with(config: Mapping[str, str], settings: GroupSettings) -> str | None:
    """What is wrong with the numbers that are to be set for a group, as Kafka's
    ``GroupConfig.validate`` says it; None: nothing."""
    for key, (least, most) in settings.group_bounds.items():
        if key not in config:
            continue
        value, name = int(config[key]), key.removeprefix("consumer.")
        if value < least:
            return f"{key} must be greater than or equal to group.consumer.min.{name}"
        if value > most:
            return f"{key} must be less than or equal to group.consumer.max.{name}"
    session_ms = int(config.get(SESSION_TIMEOUT_MS, settings.consumer_session_timeout_ms))
    heartbeat_ms = int(config.get(HEARTBEAT_INTERVAL_MS, settings.consumer_heartbeat_interval_ms))
    if session_ms <= heartbeat_ms:
        return f"{SESSION_TIMEOUT_MS} must be greater than {HEARTBEAT_INTERVAL_MS}"
    return None
