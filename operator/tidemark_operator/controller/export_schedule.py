"""When a scheduled export runs: cron's five fields in a time zone, as a CronJob's.

A time that comes while a run is under way is not made up for by more than one run: what counts is
the last time of the schedule that has come, and whether a run was begun for it.
"""

import dataclasses
import datetime as dt
import zoneinfo

from cronsim import CronSim, CronSimError

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_SECOND = dt.timedelta(seconds=1)
#: As Vixie's cron has them.
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
    """A schedule that does not say when; the message says why."""


@dataclasses.dataclass(frozen=True, slots=True)
class Schedule:
    """To be made by :meth:`of`."""

    expression: str
    zone: dt.tzinfo

    @classmethod
    def of(cls, text: str, zone: str = "") -> "Schedule":
        """``zone`` "": UTC. Raises :class:`ScheduleError`."""
        expression = _MACROS.get(text, text)
        try:
            found: dt.tzinfo = zoneinfo.ZoneInfo(zone) if zone else dt.UTC
        except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise ScheduleError(f"unknown time zone {zone}") from error
        try:
            next(CronSim(expression, _EPOCH))
        except (CronSimError, StopIteration) as error:
            why = str(error) or "it never occurs"
            raise ScheduleError(f"invalid schedule {text!r}: {why}") from error
        return cls(expression, found)

    def next_ms(self, after_ms: int) -> int:
        """The first time after that one (Unix time in milliseconds)."""
        return _ms(next(CronSim(self.expression, self._at(after_ms))))

    def last_ms(self, until_ms: int) -> int:
        """The last time that has come by then."""
        return _ms(next(CronSim(self.expression, self._at(until_ms) + _SECOND, reverse=True)))

    def _at(self, ms: int) -> dt.datetime:
        """In whole seconds."""
        return (_EPOCH + dt.timedelta(seconds=ms // 1000)).astimezone(self.zone)


def _ms(time: dt.datetime) -> int:
    return (time - _EPOCH) // dt.timedelta(milliseconds=1)
