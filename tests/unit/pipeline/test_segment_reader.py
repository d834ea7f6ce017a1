"""A read of the tier gives every offset between start and end once (invariants 5, 26, 27)."""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from small_tier import SmallTier

from tidemark.records.batch import restamp
from tidemark.tier.open import open_tier
from tidemark.tier.segments import integrity
from tidemark.tier.stores.config import FilesystemConfig
from tidemark.tier.stores.key_ring import KeyRing
from tidemark.tier.stores.objects import SegmentUnreadable
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.read import segment_reader, segment_window, tasks, timestamp_lookup
from tidemark_pipeline.read.options import OptionError, parse
from tidemark_pipeline.read.plan import explain, plan_batch
from tidemark_pipeline.read.segment_reader import RecordSelection
from tidemark_pipeline.read.tasks import RemoteTask
from tidemark_pipeline.read.topic_survey import Survey

Rows = list[tuple[int, bytes]]


def values(first: int, count: int) -> list[bytes]:
    return [f"value {first + i}".encode() for i in range(count)]


def read(tier: SmallTier, **options: str) -> list[tuple[int, bytes]]:
    return read_tasks(tier, plan(tier, options), **options)


def read_tasks(tier: SmallTier, tasks: list[RemoteTask], **options: str) -> list[tuple[int, bytes]]:
    return [
        (int(row["offset"]), bytes(row["value"]))
        for task in tasks
        for batch in segment_reader.read_task(
            tier.tier,
            "t",
            tier.topic_id,
            task,
            fail_on_data_loss=options.get("failOnDataLoss") != "false",
        )
        for row in batch.to_pylist()
    ]


def plan(tier: SmallTier, options: Mapping[str, str]) -> list[RemoteTask]:
    parsed = parse({"topic": "t", "path": str(tier.path), **options})
    with Survey(parsed) as survey:
        made = plan_batch(survey, parsed)
    assert made.ends_with_tier
    assert {task.part.topic_id for task in made.tasks} <= {tier.topic_id}
    remote_tasks = [task.task for task in made.tasks if isinstance(task.task, RemoteTask)]
    assert len(remote_tasks) == len(made.tasks)
    return remote_tasks


def expected(first: int, end: int) -> list[tuple[int, bytes]]:
    return list(enumerate(values(first, end - first), start=first))


def test_all_segments_are_read_in_order(small_tier: SmallTier) -> None:
    for number in range(5):
        small_tier.copy(values(number * 7, 7))
    assert read(small_tier) == expected(0, 35)


def test_small_tasks_read_the_same_rows(small_tier: SmallTier) -> None:
    for number in range(5):
        small_tier.copy(values(number * 7, 7))
    assert len(plan(small_tier, {"bytesPerTask": "1"})) == 5
    assert read(small_tier, bytesPerTask="1") == expected(0, 35)


def test_parts_of_a_segment_give_the_same_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "LEAST_PART_BYTES", 1)
    folder = tmp_path / "tier"
    folder.mkdir()
    tier = SmallTier(folder, with_indexes=True)
    tier.copy(values(0, 60))
    tier.copy(values(60, 60), batch_records=7)
    assert len(plan(tier, {"bytesPerTask": "200"})) > 4
    assert read(tier, bytesPerTask="200") == expected(0, 120)
    assert read(tier, bytesPerTask="200", startingOffsets='{"0": 31}') == expected(31, 120)


def test_batch_larger_than_a_piece_is_read_completely(
    small_tier: SmallTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(segment_reader, "PIECE_BYTES", 100)
    small_tier.copy(values(0, 30), batch_records=10)
    assert read(small_tier) == expected(0, 30)


def test_start_and_end_may_lie_inside_segments(small_tier: SmallTier) -> None:
    for number in range(3):
        small_tier.copy(values(number * 10, 10))
    got = read(small_tier, startingOffsets='{"0": 4}', endingOffsets='{"0": 27}')
    assert got == expected(4, 27)


def test_an_overlap_is_read_once(small_tier: SmallTier) -> None:
    """After a leader change, a segment may begin below the end of the former one.

    It may begin within a batch. It is checked from its start, and read from the former end.
    """
    small_tier.copy(values(0, 10))
    overlapping = small_tier.copy(values(5, 15), start=5, batch_records=7)
    small_tier.copy(values(20, 10))
    assert small_tier.loaded.head.entries[1].segment_id == overlapping.segment_id
    assert small_tier.loaded.head.entries[1].from_offset == 10
    assert read(small_tier) == expected(0, 30)


@pytest.mark.parametrize("bounds", [(0, 40), (13, 27), (35, 40)])
def test_segments_that_were_merged_after_the_plan_are_read_once(
    small_tier: SmallTier, bounds: tuple[int, int]
) -> None:
    """A long job finds its planned objects deleted, and reads the merged segment instead."""
    start, end = bounds
    segments = [small_tier.copy(values(number * 10, 10)) for number in range(4)]
    tasks = plan(
        small_tier, {"startingOffsets": f'{{"0": {start}}}', "endingOffsets": f'{{"0": {end}}}'}
    )
    merged = small_tier.merge(*segments[:3])
    assert read_tasks(small_tier, tasks) == expected(start, end)
    # The merged one is merged again.
    small_tier.merge(merged, segments[3])
    assert read_tasks(small_tier, tasks) == expected(start, end)
    assert read(small_tier) == expected(0, 40)


def test_a_missing_object_that_was_not_merged_is_corrupt(small_tier: SmallTier) -> None:
    segments = [small_tier.copy(values(number * 10, 10)) for number in range(3)]
    tasks = plan(small_tier, {})
    small_tier.merge(*segments[:2])
    small_tier.tier.segments.delete(segments[2:])
    with pytest.raises(CorruptData, match="but the object is missing"):
        read_tasks(small_tier, tasks)


def test_batches_below_the_log_start_may_have_an_unknown_leader_epoch(
    small_tier: SmallTier,
) -> None:
    small_tier.copy(values(0, 12), older_below=6)
    with pytest.raises(CorruptData, match="of leader epoch 0, the manifest names 1"):
        read(small_tier)
    # The remaining batch of the unknown epoch ends below the new log start.
    small_tier.expire_to(7)
    assert read(small_tier) == expected(7, 12)


@pytest.mark.parametrize(
    ("start", "end"), [(0, 20), (14, 20), (15, 20), (16, 20), (0, 15), (0, 17)]
)
def test_segment_compacted_before_tiering_is_read(
    small_tier: SmallTier, start: int, end: int
) -> None:
    """Batches of a formerly compacted topic have fewer records than offsets."""
    small_tier.copy(values(0, 10))
    small_tier.copy(values(10, 10), gap_at=15)
    got = read(small_tier, startingOffsets=f'{{"0": {start}}}', endingOffsets=f'{{"0": {end}}}')
    assert got == [row for row in expected(start, end) if row[0] != 15]


@pytest.mark.parametrize("form", ["compressed", "encrypted", "compressed and encrypted"])
def test_any_stored_form_is_read_by_a_job_with_the_file_of_keys(tmp_path: Path, form: str) -> None:
    (tmp_path / "tier").mkdir()
    keys = tmp_path / "encryptionKeys"
    options = {"topic": "t", "path": str(tmp_path / "tier")}
    # Without encryption there is no file, because one without a key is refused.
    if "encrypted" in form:
        keys.write_text(f"k1: {'A' * 43}=")
        options["encryptionKeysLocation"] = str(keys)
    small = SmallTier(
        tmp_path / "tier",
        compress="compressed" in form,
        keys=KeyRing.parse(keys.read_text()) if keys.exists() else KeyRing(),
        with_indexes=True,
    )
    # Two segments of about three pieces each, so that a part of a segment is a part of its frames.
    rows = [(n, b"value %d, " % n * 500) for n in range(300)]
    for first in (0, 150):
        small.copy([value for _, value in rows[first : first + 150]])
    # The tier as a job opens it, from its options.
    small.tier = open_tier(pickle.loads(pickle.dumps(parse(options).storage)))
    assert read(small) == rows
    part = read(small, startingOffsets='{"0": 140}', endingOffsets='{"0": 260}')
    assert part == rows[140:260]
    if small.keys.active_id:
        small.tier = open_tier(FilesystemConfig(small.path))
        # The task's error names the offsets, and the key that is missing.
        with pytest.raises(SegmentUnreadable, match=r"offsets 0 to 149: .*'k1'"):
            read(small)


class TestPartsOfSegments:
    """Only bytes that may contain selected records are fetched, and the rows are the same."""

    @pytest.fixture
    def indexed(self, small_tier: SmallTier, monkeypatch: pytest.MonkeyPatch) -> SmallTier:
        # With small pieces, a segment consists of many, each with its own digest.
        for module in (integrity, segment_window):
            monkeypatch.setattr(module, "PIECE_BYTES", 128)
        small_tier.with_indexes = True
        for number in range(2):
            small_tier.copy(values(number * 60, 60))
        return small_tier

    def read_counted(
        self, tier: SmallTier, wanted: RecordSelection, **options: str
    ) -> tuple[Rows, int]:
        """Return the rows, and the number of log bytes that were fetched for them."""
        fetched = 0
        rows: Rows = []
        with pytest.MonkeyPatch.context() as patch:
            fetch = tier.tier.segments.fetch

            def counted(*place: Any) -> bytes:
                nonlocal fetched
                data = fetch(*place)
                fetched += len(data)
                return data

            patch.setattr(tier.tier.segments, "fetch", counted)
            for task in plan(tier, options):
                for batch in segment_reader.read_task(
                    tier.tier, "t", tier.topic_id, task, fail_on_data_loss=True, selection=wanted
                ):
                    columns = (batch.column(name).to_pylist() for name in ("offset", "value"))
                    rows += zip(*columns, strict=True)
        return rows, fetched

    @pytest.mark.parametrize(
        ("start", "end"), [(0, 120), (0, 1), (59, 61), (30, 33), (31, 32), (57, 60), (119, 120)]
    )
    def test_by_offsets(self, indexed: SmallTier, start: int, end: int) -> None:
        offsets = {
            "startingOffsets": f'{{"0": {start}}}',
            "endingOffsets": f'{{"0": {end}}}',
        }
        rows, fetched = self.read_counted(indexed, segment_reader.ALL, **offsets)
        assert rows == expected(start, end)
        segments = indexed.entries[start // 60 : (end - 1) // 60 + 1]
        size = sum(entry.size_bytes for entry in segments)
        # Both segments are fetched completely, and a small range to less than half.
        assert fetched == size if end - start > 60 else fetched < size / 2

    @pytest.mark.parametrize("since_ms", [0, 1, 45, 60, 100, 119])
    def test_by_times(self, indexed: SmallTier, since_ms: int) -> None:
        """Records have their offset as their timestamp."""
        rows, fetched = self.read_counted(indexed, RecordSelection(since_ms=since_ms))
        assert expected(since_ms, 120) == [row for row in rows if row[0] >= since_ms]
        # The first batch may have up to three older records.
        assert len(rows) <= 120 - since_ms + 3
        assert fetched <= sum(entry.size_bytes for entry in indexed.entries)
        assert since_ms < 100 or fetched < indexed.entries[0].size_bytes / 2

    def test_damage_is_reported_only_in_the_part_that_is_read(self, indexed: SmallTier) -> None:
        log = indexed.path / indexed.entries[0].log_key
        data = bytearray(log.read_bytes())
        data[-30] ^= 1
        log.write_bytes(data)
        assert self.read_counted(indexed, segment_reader.ALL, endingOffsets='{"0": 3}')[
            0
        ] == expected(0, 3)
        with pytest.raises(CorruptData, match="its digest differs at byte"):
            self.read_counted(indexed, segment_reader.ALL, startingOffsets='{"0": 50}')

    @pytest.mark.parametrize("timestamp_ms", [0, 1, 59, 60, 61, 119, 120])
    def test_a_time_leads_to_its_first_offset(self, indexed: SmallTier, timestamp_ms: int) -> None:
        snapshot = indexed.tier.reader.snapshot(indexed.topic_id, 0)
        found = timestamp_lookup.find(indexed.tier, snapshot, timestamp_ms)
        assert found == (timestamp_ms if timestamp_ms < 120 else None)


def test_a_plan_without_brokers_ends_with_the_tier_and_reports_it(small_tier: SmallTier) -> None:
    small_tier.copy(values(0, 10))
    text = explain(parse({"topic": "t", "path": str(small_tier.path)}))
    assert text.startswith("t-0: offsets 0 to 10 (exclusive, where the tier ends): about ")
    with pytest.raises(OptionError, match="ends t-0 at 11, but its tier, and no brokers are read,"):
        plan(small_tier, {"endingOffsets": '{"0": 11}'})
    assert read(small_tier, endingOffsets='{"0": 11}', failOnDataLoss="false") == expected(0, 10)


def test_only_selected_columns_are_built(small_tier: SmallTier) -> None:
    small_tier.copy(values(0, 10))
    (task,) = plan(small_tier, {})
    wanted = RecordSelection(columns=("offset", "tier", "tieredEpoch", "leaderEpoch"))
    (batch,) = segment_reader.read_task(
        small_tier.tier, "t", small_tier.topic_id, task, fail_on_data_loss=True, selection=wanted
    )
    assert batch.to_pylist()[7] == {
        "offset": 7, "tier": "remote", "tieredEpoch": 0, "leaderEpoch": 1
    }  # fmt: skip


def test_a_deleted_topic_is_data_loss(small_tier: SmallTier) -> None:
    entry = small_tier.copy(values(0, 10))
    (task,) = plan(small_tier, {})
    small_tier.delete()
    small_tier.tier.segments.delete([entry])
    with pytest.raises(segment_reader.DataLoss, match="the topic was deleted during the read"):
        list(
            segment_reader.read_task(
                small_tier.tier, "t", small_tier.topic_id, task, fail_on_data_loss=True
            )
        )


def test_deleted_records_are_not_read(small_tier: SmallTier) -> None:
    for number in range(3):
        small_tier.copy(values(number * 10, 10))
    small_tier.expire_to(13)
    assert read(small_tier) == expected(13, 30)


def test_a_start_below_the_log_start_is_refused(small_tier: SmallTier) -> None:
    small_tier.copy(values(0, 10))
    small_tier.expire_to(5)
    with pytest.raises(OptionError, match="its log starts at 5"):
        plan(small_tier, {"startingOffsets": '{"0": 2}'})
    lenient = read(small_tier, startingOffsets='{"0": 2}', failOnDataLoss="false")
    assert lenient == expected(5, 10)


def test_a_segment_that_expired_meanwhile_is_data_loss(small_tier: SmallTier) -> None:
    entry = small_tier.copy(values(0, 10))
    small_tier.copy(values(10, 10))
    tasks = plan(small_tier, {})
    small_tier.expire_to(10)
    small_tier.tier.segments.delete([entry])
    with pytest.raises(segment_reader.DataLoss, match="t-0, offsets 0 to 9 expired"):
        list(
            segment_reader.read_task(
                small_tier.tier, "t", small_tier.topic_id, tasks[0], fail_on_data_loss=True
            )
        )
    # A lenient read returns the segment that still exists.
    lenient = segment_reader.read_task(
        small_tier.tier, "t", small_tier.topic_id, tasks[0], fail_on_data_loss=False
    )
    assert sum(batch.num_rows for batch in lenient) == 10


def test_an_unexpectedly_missing_object_is_corruption(small_tier: SmallTier) -> None:
    entry = small_tier.copy(values(0, 10))
    tasks = plan(small_tier, {})
    small_tier.tier.segments.delete([entry])
    with pytest.raises(CorruptData, match="the manifest names"):
        list(
            segment_reader.read_task(
                small_tier.tier, "t", small_tier.topic_id, tasks[0], fail_on_data_loss=False
            )
        )


class TestTamperedObjects:
    """A tampered object causes an error with its name, and returns none of its rows."""

    @pytest.fixture(params=[True, False], ids=["digests", "first-format"])
    def tier(self, small_tier: SmallTier, request: pytest.FixtureRequest) -> SmallTier:
        small_tier.with_digests = request.param
        return small_tier

    def objects(self, tier: SmallTier) -> list[Path]:
        """Return the log object of each segment."""
        return [tier.path / entry.log_key for entry in tier.entries]

    def refused(self, tier: SmallTier, message: str, **options: str) -> None:
        read_before: list[bytes] = []

        def read_all() -> None:
            for task in plan(tier, options):
                for batch in segment_reader.read_task(
                    tier.tier, "t", tier.topic_id, task, fail_on_data_loss=False
                ):
                    read_before.extend(batch.column("value").to_pylist())

        with pytest.raises(CorruptData, match=message) as caught:
            read_all()
        assert tier.entries[1].log_key in str(caught.value)
        assert f"directory {tier.path}" in str(caught.value)
        # None of the tampered segment's rows was returned before the error.
        assert not [value for value in read_before if value not in values(0, 10)]

    def test_a_batch_with_another_base_offset(self, tier: SmallTier) -> None:
        for number in range(3):
            tier.copy(values(number * 10, 10))
        log = bytearray(self.objects(tier)[1].read_bytes())
        restamp(log, 0, 13, 1)
        self.objects(tier)[1].write_bytes(log)
        self.refused(tier, "is not what was copied there")

    def test_a_segment_whose_end_is_cut_off_at_a_batch(self, tier: SmallTier) -> None:
        for number in range(3):
            tier.copy(values(number * 10, 10), batch_records=5)
        log = self.objects(tier)[1].read_bytes()
        self.objects(tier)[1].write_bytes(log[: len(log) // 2])
        with pytest.raises(CorruptData, match="is not what was copied there"):
            read(tier)

    def test_data_that_is_called_a_transaction_marker(self, tier: SmallTier) -> None:
        """A marker has no row, so that a record would be missing silently."""
        for number in range(3):
            tier.copy(values(number * 10, 10))
        log = bytearray(self.objects(tier)[1].read_bytes())
        # The bit in the batch's attributes that makes it a control batch.
        log[22] |= 0x20
        self.objects(tier)[1].write_bytes(log)
        with pytest.raises(CorruptData, match=r"CRC of the batch at offset 10|not what was copied"):
            read(tier)

    def test_bytes_that_are_no_batches(self, tier: SmallTier) -> None:
        for number in range(3):
            tier.copy(values(number * 10, 10))
        log = self.objects(tier)[1]
        log.write_bytes(bytes(log.stat().st_size))
        self.refused(tier, "is not what was copied there")

    def test_a_segment_of_the_same_partition_under_this_key(self, tier: SmallTier) -> None:
        for number in range(3):
            tier.copy(values(number * 10, 10))
        _, here, other = self.objects(tier)
        here.write_bytes(other.read_bytes())
        self.refused(tier, "is not what was copied there")

    def test_another_partitions_segment_with_the_very_same_offsets(
        self, small_tier: SmallTier, tmp_path: Path
    ) -> None:
        """Only a digest reveals sound batches of the right offsets.

        It does so before the first row, because a query with a limit may never reach the last one.
        """
        (tmp_path / "other").mkdir()
        other = SmallTier(tmp_path / "other")
        for number in range(3):
            small_tier.copy(values(number * 10, 10))
            other.copy([b"other" + value[5:] for value in values(number * 10, 10)])
        self.objects(small_tier)[1].write_bytes(self.objects(other)[1].read_bytes())
        self.refused(small_tier, "its digest differs at byte 0")

    def test_rows_are_counted_against_the_plan(
        self, tier: SmallTier, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The decoder loses a batch."""
        tier.copy(values(0, 10))
        tier.copy(values(10, 10))
        decode = segment_reader.decode_batches
        monkeypatch.setattr(
            segment_reader,
            "decode_batches",
            lambda data, read, of, with_: decode(data, read[1:], of, with_),
        )
        with pytest.raises(CorruptData, match="gave 7 rows of the offsets 0 to 9, planned were 10"):
            read(tier)
