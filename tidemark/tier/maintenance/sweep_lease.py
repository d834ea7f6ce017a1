"""Lease for one sweeper at a time, stored in the store itself and taken by compare-and-set.

Two sweepers at once would do no harm, because both remove only unnamed objects; they would cost
twice the requests. Clocks that differ are therefore harmless. A time too far in the future to be
correct is ignored, because one wrong clock would otherwise end all sweeps. The object also records
when the last sweep ended, so that periodic sweepers know when the next is due, and what that sweep
left.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Self

from tidemark.tier.metadata.layout import SWEEP_KEY
from tidemark.tier.stores.objects import (
    AlreadyExists,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    Version,
)

LEASE_MS = 120_000
#: Accepted difference between two clocks.
_SKEW_MS = 600_000
_FORMAT_VERSION = 1


class SweepLeaseTaken(Exception):
    """Another sweeper has the lease; the message names it and its expiry."""


@dataclass(frozen=True, slots=True)
class SweepRemainder:
    """Items that a sweep found and did not remove.

    ``unknown``: objects in folders without a head. ``passed_over``: how often something was
    unreadable.
    """

    orphans: int = 0
    size_bytes: int = 0
    uploads: int = 0
    unknown: int = 0
    passed_over: int = 0


@dataclass(frozen=True, slots=True)
class _Record:
    holder: str = ""
    until_ms: int = 0
    swept_ms: int = 0
    serial: int = 0
    left: SweepRemainder | None = None


class SweepLease:
    """Lease of one holder, whose name is unique.

    A process that sweeps once at a time can take again a lease that it failed to release. Calls
    block.
    """

    def __init__(self, store: ObjectStore, holder: str, now_ms: Callable[[], int]) -> None:
        self._store, self._holder, self._now_ms = store, holder, now_ms
        self._record = _Record()

    @property
    def ended_ms(self) -> int:
        """Time (ms) at which the last sweep ended, as this holder last wrote it."""
        return self._record.swept_ms

    def swept_ms(self) -> int:
        """Return when (ms) the last sweep ended; 0 for never, or if the record is not plausible."""
        # A time in the future comes from a wrong clock, and would suppress sweeps until then.
        swept_ms = self._read()[0].swept_ms
        return 0 if swept_ms > self._now_ms() + _SKEW_MS else swept_ms

    def left(self) -> SweepRemainder | None:
        """Return what the last sweep of the whole store left; None if no sweep has recorded it."""
        return self._read()[0].left

    def take(self) -> Self:
        """Take the lease. Raises SweepLeaseTaken while another holder has it."""
        record, version = self._read()
        now_ms = self._now_ms()
        # The same applies to a lease that ends later than any correct clock could have set.
        ahead_ms = record.until_ms - now_ms
        if record.holder not in ("", self._holder) and 0 < ahead_ms <= LEASE_MS + _SKEW_MS:
            raise _lease_taken(record.holder, ahead_ms // 1000)
        self._write(_with_holder(record, self._holder, now_ms + LEASE_MS), version)
        return self

    def keep(self) -> None:
        """Renew the lease once half of its time has passed.

        Raises SweepLeaseTaken if another holder has it.
        """
        if self._now_ms() > self._record.until_ms - LEASE_MS // 2:
            self.take()

    def end(self, *, done: bool, left: SweepRemainder | None = None) -> None:
        """Release the lease. ``done``: the whole store was swept, and ``left`` remains."""
        record, version = self._read()
        if record.holder != self._holder:
            return
        # The serial makes the body unique: equal bodies have equal versions.
        free = replace(record, holder="", until_ms=0, serial=record.serial + 1)
        if done:
            free = replace(free, swept_ms=self._now_ms(), left=left)
        self._write(free, version)

    def _read(self) -> tuple[_Record, Version | None]:
        try:
            stored = self._store.get(SWEEP_KEY)
        except ObjectNotFound:
            return _Record(), None
        return _decode(stored.data), stored.version

    def _write(self, record: _Record, expected: Version | None) -> None:
        """Write the lease record by compare-and-set.

        ``expected``: version of the stored record, None if there is none. Raises an error that the
        lease is taken if another sweeper has written first.
        """
        data = _encode(record)
        try:
            if expected is None:
                self._store.create(SWEEP_KEY, data)
            else:
                self._store.replace(SWEEP_KEY, data, expected)
        # The write may have landed although its answer was lost: equal records are our own.
        except (AlreadyExists, PreconditionFailed) as error:
            stored, _ = self._read()
            if stored != record:
                raise _lease_taken(stored.holder, LEASE_MS // 1000) from error
        self._record = record


def _with_holder(record: _Record, holder: str, until_ms: int) -> _Record:
    return replace(record, holder=holder, until_ms=until_ms, serial=record.serial + 1)


def _lease_taken(holder: str, seconds: int) -> SweepLeaseTaken:
    return SweepLeaseTaken(
        f"{holder or 'another sweeper'} sweeps this store: wait for it, at most {seconds} s longer "
        "if it has died"
    )


def _encode(record: _Record) -> bytes:
    written: dict[str, object] = {
        "formatVersion": _FORMAT_VERSION,
        "holder": record.holder,
        "untilMs": record.until_ms,
        "sweptMs": record.swept_ms,
        "serial": record.serial,
    }
    if record.left is not None:
        written["left"] = asdict(record.left)
    return json.dumps(written, separators=(",", ":")).encode("utf-8")


def _decode(data: bytes) -> _Record:
    """Return the lease record in ``data``.

    An unreadable record counts as free, because the lease only saves requests.
    """
    try:
        values = json.loads(data)
        return _Record(
            str(values["holder"]),
            int(values["untilMs"]),
            int(values["sweptMs"]),
            int(values["serial"]),
            None if values.get("left") is None else _parse_remainder(values["left"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return _Record()


def _parse_remainder(values: dict[str, object]) -> SweepRemainder:
    return SweepRemainder(
        **{item.name: int(str(values[item.name])) for item in fields(SweepRemainder)}
    )
