"""One sweeper at a time: a lease that lies in the store itself, taken by compare-and-set.

Two at once would do no harm, since both remove only what nothing names; they would cost twice the
requests. So clocks that differ are no danger either; a time that no right clock can have written
yet counts for nothing, or one clock that was once far ahead would end all sweeps. The object also
says when the last sweep ended, by which those who sweep now and then know whether it is time, and
what it has left, for whoever shows it.
"""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Self

from tidemark.tier.layout import SWEEP_KEY
from tidemark.tier.objects import (
    AlreadyExists,
    ObjectNotFound,
    ObjectStore,
    PreconditionFailed,
    Version,
)

LEASE_MS = 120_000
#: So far ahead may another's clock be.
_SKEW_MS = 600_000
_FORMAT_VERSION = 1


class SweptElsewhere(Exception):
    """Another sweeper has the lease; the message names it and says until when."""


@dataclass(frozen=True, slots=True)
class Left:
    """What a sweep has found and not removed. ``unknown``: objects in folders without a head;
    ``passed_over``: how often something could not be read."""

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
    left: Left | None = None


class SweepLease:
    """Of one holder, whose name nobody else has: a process that sweeps once at a time may take up
    what it could not give back. Calls block."""

    def __init__(self, store: ObjectStore, holder: str, now_ms: Callable[[], int]) -> None:
        self._store, self._holder, self._now_ms = store, holder, now_ms
        self._record = _Record()

    @property
    def is_held(self) -> bool:
        """Still ours by our clock."""
        return self._record.holder == self._holder and self._now_ms() < self._record.until_ms

    @property
    def ended_ms(self) -> int:
        """When the last sweep ended, as this holder last wrote it."""
        return self._record.swept_ms

    def swept_ms(self) -> int:
        """When the last sweep ended; 0 for never, or where nobody can say."""
        swept_ms = self._read()[0].swept_ms
        return 0 if swept_ms > self._now_ms() + _SKEW_MS else swept_ms

    def left(self) -> Left | None:
        """By the last sweep that went through the whole store; None: nobody has said it."""
        return self._read()[0].left

    def take(self) -> Self:
        """Raises SweptElsewhere while another holds it."""
        record, version = self._read()
        now_ms = self._now_ms()
        ahead_ms = record.until_ms - now_ms
        if record.holder not in ("", self._holder) and 0 < ahead_ms <= LEASE_MS + _SKEW_MS:
            raise _elsewhere(record.holder, ahead_ms // 1000)
        self._write(_taken(record, self._holder, now_ms + LEASE_MS), version)
        return self

    def keep(self) -> None:
        """Renew once half of it is over. Raises SweptElsewhere where another has it by now."""
        if self._now_ms() > self._record.until_ms - LEASE_MS // 2:
            self.take()

    def end(self, *, done: bool, left: Left | None = None) -> None:
        """Give it back; ``done``: the whole store was gone through, and this is left."""
        record, version = self._read()
        if record.holder != self._holder:
            return
        free = replace(record, holder="", until_ms=0, serial=record.serial + 1)
        if done:
            free = replace(free, swept_ms=self._now_ms(), left=left)
        self._write(free, version)

    def _read(self) -> tuple[_Record, Version | None]:
        try:
            got = self._store.get(SWEEP_KEY)
        except ObjectNotFound:
            return _Record(), None
        return _decoded(got.data), got.version

    def _write(self, record: _Record, expected: Version | None) -> None:
        """What a lost answer wrote is read: it is our name that counts."""
        data = _encoded(record)
        try:
            if expected is None:
                self._store.create(SWEEP_KEY, data)
            else:
                self._store.replace(SWEEP_KEY, data, expected)
        except (AlreadyExists, PreconditionFailed) as error:
            found, _ = self._read()
            if found != record:
                raise _elsewhere(found.holder, LEASE_MS // 1000) from error
        self._record = record


def _taken(record: _Record, holder: str, until_ms: int) -> _Record:
    return replace(record, holder=holder, until_ms=until_ms, serial=record.serial + 1)


def _elsewhere(holder: str, seconds: int) -> SweptElsewhere:
    return SweptElsewhere(
        f"{holder or 'another sweeper'} sweeps this store: wait for it, at most {seconds} s longer "
        "if it has died"
    )


def _encoded(record: _Record) -> bytes:
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


def _decoded(data: bytes) -> _Record:
    """What cannot be read counts as nobody's: the lease guards requests, not objects."""
    try:
        found = json.loads(data)
        return _Record(
            str(found["holder"]),
            int(found["untilMs"]),
            int(found["sweptMs"]),
            int(found["serial"]),
            None if found.get("left") is None else _left(found["left"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        return _Record()


def _left(found: dict[str, object]) -> Left:
    return Left(**{each.name: int(str(found[each.name])) for each in fields(Left)})
