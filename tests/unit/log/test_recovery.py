"""A crash at any byte leaves a clean log: the files are cut and flipped everywhere, then the log
continues."""

import logging
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemark_broker.log import LogConfig, StorageError, flushing, reading, truncation

T0 = 1_700_000_000_000
Bench = Any  # the LogBench of conftest.py

COUNTS = [1, 3, 2, 1, 1, 4, 2, 1, 1, 3, 2, 1]


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)


def _crashed_log(bench: Bench) -> Path:
    """Write a log of several segments and crash it. Return the path of its last segment."""
    log = bench.create()
    for number, count in enumerate(COUNTS):
        bench.fill(log, [count], epoch=number // 4)
    assert len(log.segment_infos()) > 1
    assert log.segment_infos()[-1].size_bytes > 2 * 99
    active: Path = bench.directory / f"{log.segment_infos()[-1].base_offset:020d}.log"
    bench.crash(log)
    return active


def _check_reopened(bench: Bench, end: int, *, twice: bool) -> None:
    """Reopen the log and check that it is clean, ends at ``end``, accepts appends, and survives
    another crash."""
    log = bench.open(high_watermark=sum(COUNTS))
    assert log.next_offset == end
    assert log.high_watermark == end
    bases = bench.check(log)
    assert bases == [sum(COUNTS[:n]) for n in range(len(bases))]
    # Four batches belong to each epoch.
    assert log.epochs.latest_epoch == (len(bases) - 1) // 4
    bench.fill(log, [2, 1], epoch=9)
    assert bench.check(log) == [*bases, end, end + 2]
    bench.crash(log)
    if twice:
        again = bench.open(high_watermark=end)
        assert bench.check(again) == [*bases, end, end + 2]
        bench.crash(again)


def _copy_of(bench: Bench, number: int) -> Bench:
    directory = bench.directory.with_name(f"copy-{number}")
    shutil.copytree(bench.directory, directory)
    return type(bench)(directory, config=bench.config)


def _last_two_batches(data: bytes) -> int:
    """Return the position of the second last batch."""
    positions, position = [], 0
    while position < len(data):
        positions.append(position)
        position += 12 + int.from_bytes(data[position + 8 : position + 12], "big")
    return positions[-2]


def test_a_log_cut_at_every_byte_of_its_last_two_batches(bench: Bench) -> None:
    active = _crashed_log(bench)
    data = active.read_bytes()
    start = _last_two_batches(data)
    for cut in range(start, len(data) + 1):
        copy = _copy_of(bench, cut)
        (copy.directory / active.name).write_bytes(data[:cut])
        last = 12 + int.from_bytes(data[start + 8 : start + 12], "big")
        # A batch survives only if all of its bytes do.
        end = sum(COUNTS[:-2])
        end += COUNTS[-2] * (cut >= start + last) + COUNTS[-1] * (cut == len(data))
        # The second crash is checked for every eighth cut only, because it doubles the time.
        _check_reopened(copy, end, twice=cut % 8 == 0)
        shutil.rmtree(copy.directory)


def test_a_log_with_every_byte_of_its_last_two_batches_flipped(bench: Bench) -> None:
    active = _crashed_log(bench)
    data = active.read_bytes()
    start = _last_two_batches(data)
    last = start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")
    for position in range(start, len(data)):
        within = position - (start if position < last else last)
        if 12 <= within < 16:
            continue  # the leader epoch, which no CRC covers
        copy = _copy_of(bench, position)
        flipped = data[:position] + bytes([data[position] ^ 0x41]) + data[position + 1 :]
        (copy.directory / active.name).write_bytes(flipped)
        _check_reopened(
            copy, sum(COUNTS[:-2]) + (COUNTS[-2] if position >= last else 0), twice=False
        )
        shutil.rmtree(copy.directory)


def test_damage_in_an_older_segment_truncates_the_log_there(bench: Bench) -> None:
    _crashed_log(bench)
    oldest = min(bench.directory.glob("*.log"))
    data = oldest.read_bytes()
    oldest.write_bytes(data[:-1])
    log = bench.open()
    assert len(log.segment_infos()) == 1
    kept = len(bench.check(log))
    assert log.next_offset == sum(COUNTS[:kept])
    # The later segments would leave a gap, so their files are deleted.
    assert len(list(bench.directory.glob("*.log"))) == 1
    assert not list(bench.directory.glob("*.deleted"))
    assert log.truncated_at_open


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", [None, b"", b"\xff" * 24, b"\0" * 5, b"\0" * 24, b"\x01" * 24])
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_indexes_are_rebuilt(
    bench: Bench, suffix: str, damage: bytes | None, clean: bool
) -> None:
    log = bench.create()
    bench.fill(log, COUNTS)
    log.advance_high_watermark(log.next_offset)
    records_before = bench.read_all(log)
    flushing.close(log)
    # Missing, empty, all ones, not a multiple of the entry size, zeros, and falling entries.
    for path in bench.directory.glob(f"*{suffix}"):
        path.unlink()
        if damage is not None:
            path.write_bytes(damage)
    end = sum(COUNTS)
    reopened = bench.open(recovery_point=end, clean_shutdown=clean, high_watermark=end)
    assert not reopened.truncated_at_open
    bench.check(reopened)
    assert bench.read_all(reopened, max_bytes=1) == records_before
    # Lookups by offset and by time work on the rebuilt indexes.
    for offset in range(end):
        found = reading.offset_by_timestamp(reopened, T0)
        assert found is not None
        assert found.offset == 0
        assert reading.read(reopened, offset, max_bytes=1, up_to_offset=end, min_one=True).data
    bench.fill(reopened, [1, 1])
    bench.check(reopened)


def test_a_wrong_index_entry_does_not_mislead_readers(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 40)
    log.advance_high_watermark(40)
    records_before = bench.read_all(log)
    flushing.close(log)
    path = min(bench.directory.glob("*.index"))
    data = path.read_bytes()
    # The second entry points into the middle of a batch. A clean shutdown does not check it, so
    # the reader must.
    path.write_bytes(data[:8] + b"\0\0\0\x05\0\0\x01\xa1" + data[16:])
    reopened = bench.open(recovery_point=40, clean_shutdown=True, high_watermark=40)
    assert bench.read_all(reopened, max_bytes=300) == records_before
    for offset in range(40):
        read = reading.read(reopened, offset, max_bytes=1, up_to_offset=40, min_one=True)
        assert read.next_offset == offset + 1


def test_records_are_verified_only_after_an_unclean_shutdown(bench: Bench) -> None:
    log = bench.create()
    bench.fill(log, [1] * 5)
    flushing.close(log)
    path = min(bench.directory.glob("*.log"))
    data = bytearray(path.read_bytes())
    data[80] ^= 1  # within the first batch's records
    path.write_bytes(data)
    clean = bench.open(recovery_point=5, clean_shutdown=True)
    assert (clean.next_offset, clean.truncated_at_open) == (5, False)
    bench.crash(clean)
    checked = bench.open(recovery_point=0, clean_shutdown=False)
    assert (checked.next_offset, checked.truncated_at_open) == (0, True)


@pytest.mark.parametrize("clean", [True, False])
def test_opening_reads_only_the_ends_of_closed_segments_indexes(
    bench: Bench, clean: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = bench.create()
    bench.fill(log, [1] * 60)
    flushing.close(log)
    segments = len(log.segment_infos())
    assert segments > 5
    read_whole, real = [], Path.read_bytes

    def record_read(path: Path) -> bytes:
        read_whole.append(path.suffix)
        return real(path)

    monkeypatch.setattr(Path, "read_bytes", record_read)
    reopened = bench.open(recovery_point=60, clean_shutdown=clean, high_watermark=60)
    assert reopened.next_offset == 60
    expected = [".index", ".snapshot", ".timeindex"] if clean else [".snapshot"]
    assert sorted(read_whole) == expected  # of the active segment only


def test_bytes_missing_after_a_clean_shutdown_are_noticed(bench: Bench) -> None:
    active = _crashed_log(bench)
    end = sum(COUNTS)
    flushing.close(bench.open(high_watermark=end))
    data = active.read_bytes()
    active.write_bytes(data[:-3])
    log = bench.open(recovery_point=end, clean_shutdown=True, high_watermark=end)
    assert log.truncated_at_open
    assert log.next_offset == log.recovery_point == end - COUNTS[-1]
    bench.check(log)
    bench.crash(log)
    # Also a cut at a batch boundary, which leaves no torn batch.
    active.write_bytes(data[: _last_two_batches(data)])
    assert bench.open(recovery_point=end, clean_shutdown=True).truncated_at_open


def test_a_hole_below_the_recovery_point_is_an_error_and_deletes_nothing(bench: Bench) -> None:
    bench.config = replace(bench.config, segment_bytes=400)
    _crashed_log(bench)
    logs = sorted(bench.directory.glob("*.log"))
    logs[1].unlink()
    before = sorted(path.name for path in bench.directory.glob("*.log"))
    # Below the recovery point everything was durable, so a missing segment is no crash damage and
    # its successors must not be deleted.
    for clean in (True, False):
        with pytest.raises(StorageError, match="are missing below the recovery point"):
            bench.open(recovery_point=sum(COUNTS), clean_shutdown=clean)
        assert sorted(path.name for path in bench.directory.glob("*.log")) == before


def test_a_truncation_undone_by_a_power_failure_is_repeated(bench: Bench) -> None:
    """A former leader kept a batch too many in a closed segment, and its log no longer opened:
    offsets 193 to 191 were missing."""
    bench.config = replace(bench.config, segment_bytes=400)
    log = bench.create()
    bench.fill(log, [1] * 6)
    last_segment = log.segment_infos()[-1]
    path = bench.directory / f"{last_segment.base_offset:020d}.log"
    data = path.read_bytes()
    cut = log.next_offset - 1
    assert cut > last_segment.base_offset
    truncation.truncate_to(log, cut)
    # The follower appends the new leader's batch, which begins a segment at the cut.
    bench.fill(log, [8], epoch=5)
    assert log.segment_infos()[-1].base_offset == cut, "the next segment begins at the cut"
    end = log.next_offset
    bench.crash(log)
    # The power failure restores the cut bytes of the closed segment, which now overlap the next
    # one.
    path.write_bytes(data)
    for recovery_point in (end, cut):
        reopened = bench.open(recovery_point=recovery_point, high_watermark=cut)
        assert (reopened.next_offset, reopened.epochs.latest_epoch) == (end, 5)
        bench.check(reopened)
        bench.crash(reopened)
        path.write_bytes(data)


def test_interrupted_removals_are_completed(bench: Bench) -> None:
    _crashed_log(bench)
    oldest = min(bench.directory.glob("*.log"))
    # A segment that was renamed for deletion, a temporary file, and a snapshot beyond the log's
    # end.
    oldest.rename(oldest.with_name(oldest.name + ".deleted"))
    (bench.directory / "leader-epoch-checkpoint.1.tmp").write_text("0\n")
    (bench.directory / f"{99:020d}.snapshot").write_bytes(b"")
    log = bench.open(high_watermark=100)
    assert log.log_start_offset == log.segment_infos()[0].base_offset > 0
    names = {path.name for path in bench.directory.iterdir()}
    assert not [name for name in names if name.endswith((".deleted", ".tmp"))]
    assert oldest.with_suffix(".index").name not in names
    assert f"{99:020d}.snapshot" not in names
    bench.check(log)


@pytest.mark.parametrize("text", [None, "", "0\n3\n0 0\n", "0\n1\n7 0\n", "0\n2\n0 0\n9 9999\n"])
def test_missing_leader_epochs_are_read_from_the_batches(bench: Bench, text: str | None) -> None:
    log = bench.create()
    for number, count in enumerate(COUNTS):
        bench.fill(log, [count], epoch=number // 4)
    epochs = log.epochs
    bench.crash(log)
    path = bench.directory / "leader-epoch-checkpoint"
    assert not path.exists()  # nothing was flushed yet
    if text is not None:
        path.write_text(text)
    reopened = bench.open()
    assert reopened.epochs == epochs
    assert path.read_text() == "0\n3\n0 0\n1 7\n2 15\n"


def test_bounds_from_checkpoints_are_clamped(bench: Bench) -> None:
    _crashed_log(bench)
    end = sum(COUNTS)
    log = bench.open(log_start_offset=5, high_watermark=1000, recovery_point=2000)
    assert (log.log_start_offset, log.high_watermark, log.recovery_point) == (5, end, end)
    assert log.epochs.entries[0].start_offset == 5
    bench.crash(log)
    low = bench.open(log_start_offset=5, high_watermark=2)
    assert low.high_watermark == 5
    bench.crash(low)
    # A log start beyond the end: the log restarts empty at this offset.
    beyond = bench.open(log_start_offset=end + 7, high_watermark=2)
    assert (beyond.log_start_offset, beyond.next_offset) == (end + 7, end + 7)
    assert beyond.high_watermark == end + 7
    bench.fill(beyond, [1], epoch=beyond.epochs.latest_epoch)


def test_the_committed_offset_before_a_loss_is_reported(bench: Bench) -> None:
    active = _crashed_log(bench)
    data = active.read_bytes()
    active.write_bytes(data[: _last_two_batches(data)])
    end = sum(COUNTS)
    # Two batches are lost, although the checkpoint says that nearly all was committed.
    log = bench.open(high_watermark=end - 1)
    assert log.next_offset == log.high_watermark == end - COUNTS[-1] - COUNTS[-2]
    assert log.lost_at_open == (log.next_offset, end - 1)
    bench.crash(log)
    assert bench.open().lost_at_open is None


def test_the_directory_of_another_topic_is_rejected(bench: Bench) -> None:
    _crashed_log(bench)
    path = bench.directory / "partition.metadata"
    path.write_text("version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA")
    with pytest.raises(StorageError, match="belongs to topic id"):
        bench.open()
    path.unlink()
    with pytest.raises(StorageError, match=r"partition\.metadata"):
        bench.open()
    assert list(bench.directory.glob("*.log"))


def test_reopening_is_idempotent(bench: Bench) -> None:
    bench.config = LogConfig(segment_bytes=700, index_interval_bytes=50)
    _crashed_log(bench)
    end = sum(COUNTS)
    for clean in (False, True, True, False):
        log = bench.open(clean_shutdown=clean, recovery_point=0, high_watermark=end)
        records_before = bench.read_all(log)
        bench.check(log)
        flushing.close(log)
        files = {path.name: path.read_bytes() for path in bench.directory.iterdir()}
        log = bench.open(clean_shutdown=clean, recovery_point=end, high_watermark=end)
        assert bench.read_all(log) == records_before
        flushing.close(log)
        assert files == {path.name: path.read_bytes() for path in bench.directory.iterdir()}
