"""Levels of a broker's own loggers (KIP-412): the resource BROKER_LOGGER.

Levels belong to this process and end with it, as in Kafka. The key ``log.level`` is the root's
level at the start. Only existing loggers of the program and the root can be set, not those of
libraries. Rules and codes are those of Kafka's ``RuntimeLoggerManager``.
"""

import logging
from collections.abc import Iterator, Sequence

from kio.schema.errors import ErrorCode

from tidemark.wire.topics import Setting, SettingOperation

ROOT = "root"
_OURS = "tidemark"
#: Kafka's names of levels.
_LEVELS = {
    "FATAL": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARN": logging.WARNING,
    "INFO": logging.INFO,
    "DEBUG": logging.DEBUG,
    "TRACE": logging.DEBUG // 2,
}


class LoggerRefusal(Exception):
    """A rejected change; no level was changed."""

    def __init__(self, code: ErrorCode, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def levels() -> Iterator[tuple[str, str]]:
    """Yield each logger's name and effective level, the root first."""
    yield ROOT, _name_of(logging.getLogger().getEffectiveLevel())
    for name in sorted(_loggers()):
        yield name, _name_of(logging.getLogger(name).getEffectiveLevel())


def alter(settings: Sequence[Setting], *, validate_only: bool) -> None:
    """Apply all settings or none. Raises :class:`LoggerRefusal`."""
    # All settings are checked before the first is applied.
    known = _loggers()
    for setting in settings:
        _check(setting, known)
    if validate_only:
        return
    for setting in settings:
        taken_away = setting.operation == SettingOperation.DELETE
        level = logging.NOTSET if taken_away else _LEVELS[setting.value or ""]
        logging.getLogger("" if setting.name == ROOT else setting.name).setLevel(level)


# Libraries log secrets and bulk data at low levels, so only the program's loggers are settable.
def _loggers() -> frozenset[str]:
    there = logging.getLogger().manager.loggerDict
    return frozenset(name for name in there if name.partition(".")[0].startswith(_OURS))


def _check(setting: Setting, known: frozenset[str]) -> None:
    """Raise :class:`LoggerRefusal` if a setting is not permitted.

    ``known`` contains the names of the program's loggers. Rules, codes and texts are those of
    Kafka's ``RuntimeLoggerManager``.
    """
    name, operation = setting.name, setting.operation
    # Only SET and DELETE: a level is not a list that could be appended to.
    if operation not in (SettingOperation.SET, SettingOperation.DELETE):
        is_named = operation in tuple(SettingOperation)
        label = SettingOperation(operation).name if is_named else operation
        text = f"{label} operation is not allowed for the BROKER_LOGGER resource"
        raise LoggerRefusal(ErrorCode.invalid_request, text)
    if name != ROOT and name not in known:
        raise LoggerRefusal(ErrorCode.invalid_config, f"Logger {name[:200]} does not exist!")
    if operation == SettingOperation.DELETE:
        if name == ROOT:
            text = "Removing the log level of the root logger is not allowed"
            raise LoggerRefusal(ErrorCode.invalid_request, text)
    elif setting.value not in _LEVELS:
        text = (
            f"Cannot set the log level of {name} to {(setting.value or '')[:200]} as it is not a "
            f"supported log level. Valid log levels are {', '.join(_LEVELS)}"
        )
        raise LoggerRefusal(ErrorCode.invalid_config, text)


def _name_of(level: int) -> str:
    """Return Kafka's name of the lowest level that passes."""
    return next((name for name, least in _LEVELS.items() if least <= level), "TRACE")
