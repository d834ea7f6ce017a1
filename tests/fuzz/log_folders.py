"""A partition's directory with one file changed while no process had it open.

Opening it results in a consistent log or in an error of the log. It never raises another exception,
and the log never serves what its CRCs reject.
"""

import functools
import random
import tempfile
import uuid
from pathlib import Path

from tests.fuzz.frames import spoil
from tidemark.records.batch import check_crc, iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import LogConfig, LogError, PartitionLog, appending, flushing, reading
from tidemark_broker.log.opening import create_log, open_log

T0 = 1_700_000_000_000
_TOPIC_ID = uuid.UUID(int=0x1234)
_CONFIG = LogConfig(segment_bytes=600, index_interval_bytes=100)
_BATCHES = 12


@functools.cache
def sound() -> dict[str, bytes]:
    """A directory of some segments as a clean shutdown leaves it, by the files' names."""
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "t-0"
        log = create_log(directory, topic="t", topic_id=_TOPIC_ID, partition=0, config=_CONFIG)
        # Twelve batches in segments of 600 bytes, over three leader epochs.
        for number in range(_BATCHES):
            appending.append_as_leader(log, _batch(number), leader_epoch=number // 5, now_ms=T0)
        flushing.close(log)
        return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def make(rng: random.Random) -> tuple[str, bytes]:
    """(which file after which end, its content)."""
    name = rng.choice(sorted(sound()))
    data = sound()[name]
    changed = spoil(rng, data)
    # What a crash leaves: a file that ends early, perhaps with zeros after it.
    if rng.random() < 0.2:
        changed = data[: rng.randint(0, len(data))] + bytes(rng.choice((0, 1, 100)))
    return f"{name} {rng.choice(('closed', 'killed'))}", changed


def check(note: str, data: bytes) -> bool:
    """Open the directory with that file; whether it opened."""
    name, ended = note.split()
    with tempfile.TemporaryDirectory() as folder:
        directory = Path(folder) / "t-0"
        directory.mkdir()
        # All other files are as a clean shutdown left them.
        for item, content in (sound() | {name: data}).items():
            (directory / item).write_bytes(content)
        try:
            log = _opened(directory, clean=ended == "closed")
        except LogError:
            return False
        try:
            _check_log(log, clean=ended == "closed")
        finally:
            log.close_files()
    return True


def _opened(directory: Path, *, clean: bool) -> PartitionLog:
    return open_log(
        directory,
        topic="t",
        topic_id=_TOPIC_ID,
        partition=0,
        config=_CONFIG,
        recovery_point=_BATCHES if clean else 0,
        clean_shutdown=clean,
        log_start_offset=None,
    )


def _check_log(log: PartitionLog, *, clean: bool) -> None:
    """Check that a log is readable.

    After a crash every batch was inspected, so all are readable. After a clean shutdown none was: a
    reader may find the damage and receives an error.
    """
    try:
        end = _read_all(log, checked=not clean)
        reading.offset_by_timestamp(log, T0 + 5)
    # Only a clean shutdown lets a log open without an inspection.
    except LogError:
        assert clean
        return
    # The log continues exactly where reading ended.
    assert end == log.next_offset
    info = appending.append_as_leader(
        log, _batch(99), leader_epoch=max(99, log.epochs.latest_epoch), now_ms=T0
    )
    assert info.base_offset == end


def _read_all(log: PartitionLog, *, checked: bool) -> int:
    """The offset behind the last batch. Every read is a step forward, and where everything was
    ``checked`` each batch continues the one before and its CRC holds."""
    offset = log.local_log_start_offset
    while offset < log.next_offset:
        result = reading.read(
            log, offset, max_bytes=1 << 20, up_to_offset=log.next_offset, min_one=True
        )
        # A read that makes no progress would be an endless loop in a follower.
        assert result.next_offset > offset
        for position, header in iter_headers(result.data) if checked else ():
            assert header.base_offset == offset
            check_crc(result.data, position, header)
            offset = header.next_offset
        assert result.next_offset == offset or not checked
        offset = result.next_offset
    return offset


def _batch(number: int) -> bytes:
    return build_batch([Record(b"k", bytes(60), (), T0 + number)])
