"""Effective configuration of a consumer group: its own value, else the broker's (Kafka's
GroupConfigManager).
"""

from collections.abc import Callable, Mapping

from tidemark.configuration.group_keys import (
    ASSIGNMENT_INTERVAL_MS,
    HEARTBEAT_INTERVAL_MS,
    SESSION_TIMEOUT_MS,
)
from tidemark_broker.groups.core.settings import GroupSettings

#: Returns a group's own configuration by Kafka's keys.
GroupConfigOf = Callable[[str], Mapping[str, str]]


class GroupConfigs:
    """Configuration of consumer-protocol groups, in ms.

    A group's value outside the broker's bounds is replaced by the nearest bound. Pure.
    """

    def __init__(self, settings: GroupSettings, own: GroupConfigOf) -> None:
        self._settings = settings
        self._own = own

    def session_timeout_ms(self, group_id: str) -> int:
        """Session timeout of the group's members."""
        default_ms = self._settings.consumer_session_timeout_ms
        return self._of(group_id, SESSION_TIMEOUT_MS, default_ms)

    def heartbeat_interval_ms(self, group_id: str) -> int:
        """Interval in which members should send heartbeats."""
        default_ms = self._settings.consumer_heartbeat_interval_ms
        return self._of(group_id, HEARTBEAT_INTERVAL_MS, default_ms)

    def assignment_interval_ms(self, group_id: str) -> int:
        """Minimum interval between two computations of targets."""
        default_ms = self._settings.consumer_assignment_interval_ms
        return self._of(group_id, ASSIGNMENT_INTERVAL_MS, default_ms)

    def _of(self, group_id: str, key: str, default_ms: int) -> int:
        text = self._own(group_id).get(key)
        if text is None:
            return default_ms
        # Bounds may have been narrowed after the value was set, so it is clamped when it is read.
        least, most = self._settings.group_bounds[key]
        return min(max(int(text), least), most)


def config_error(config: Mapping[str, str], settings: GroupSettings) -> str | None:
    """Return the problem with a group's configuration, or None if it is valid.

    The text is that of Kafka's ``GroupConfig.validate``.
    """
    for key, (least, most) in settings.group_bounds.items():
        # A key that is not set has the broker's value, which is valid by itself.
        if key not in config:
            continue
        value, name = int(config[key]), key.removeprefix("consumer.")
        if value < least:
            return f"{key} must be greater than or equal to group.consumer.min.{name}"
        if value > most:
            return f"{key} must be less than or equal to group.consumer.max.{name}"
    # The two values are compared after defaults, since only one of them may be set.
    session_ms = int(config.get(SESSION_TIMEOUT_MS, settings.consumer_session_timeout_ms))
    heartbeat_ms = int(config.get(HEARTBEAT_INTERVAL_MS, settings.consumer_heartbeat_interval_ms))
    if session_ms <= heartbeat_ms:
        return f"{SESSION_TIMEOUT_MS} must be greater than {HEARTBEAT_INTERVAL_MS}"
    return None
