"""Cron schedules of Exports and of the maintenance of their tables.

Five fields or a macro, in a time zone. The operator and the jobs of Exports evaluate them with the
same code.
"""

import datetime as dt
import zoneinfo
from dataclasses import dataclass

from cronsim import CronSim, CronSimError

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SECOND = dt.timedelta(seconds=1)
#: Macros as in Vixie cron.
_MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class ScheduleError(ValueError):
    """A schedule is invalid or never occurs; the message has the cause."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Parsed schedule; create it with :meth:`of`."""

    expression: str
    zone: dt.tzinfo

    @classmethod
    def of(cls, text: str, zone: str = "") -> "Schedule":
        """Parse a schedule; ``zone`` "" is UTC. Raises :class:`ScheduleError`."""
        expression = _MACROS.get(text, text)
        try:
            found: dt.tzinfo = zoneinfo.ZoneInfo(zone) if zone else dt.UTC
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ScheduleError(f"unknown time zone {zone}") from error
        # Some valid expressions never occur, such as 30 February; the first time shows that.
        try:
            next(CronSim(expression, _EPOCH))
        except (CronSimError, StopIteration) as error:
            why = str(error) or "it never occurs"
            raise ScheduleError(f"invalid schedule {text!r}: {why}") from error
        return cls(expression, found)

    def next_ms(self, after_ms: int) -> int:
        """Return the first scheduled time after one, as Unix time in milliseconds."""
        return _ms(next(CronSim(self.expression, self._at(after_ms))))

    def last_ms(self, until_ms: int) -> int:
        """Return the last scheduled time up to and including one, in milliseconds."""
        # One second more, because the iterator excludes its start.
        return _ms(next(CronSim(self.expression, self._at(until_ms) + _SECOND, reverse=True)))

    def _at(self, ms: int) -> dt.datetime:
        """Convert to the schedule's zone, in whole seconds."""
        return (_EPOCH + dt.timedelta(seconds=ms // 1000)).astimezone(self.zone)


def _ms(time: dt.datetime) -> int:
    return (time - _EPOCH) // dt.timedelta(milliseconds=1)
