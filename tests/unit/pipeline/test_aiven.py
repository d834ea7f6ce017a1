"""The tier of Apache Kafka's plug-in by Aiven gives each record once, or an error that says why
not."""

import json
import pickle
import shutil
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.aiven_writer import KeyPair, SegmentWriter, kafka_id
from tests.unit.pipeline.test_transactions import LOG, READ, data, marker
from tidemark.logfiles.offset_index import OffsetIndex
from tidemark.logfiles.time_index import TimeIndex
from tidemark.logfiles.transaction_index import AbortedTxn, encode_aborted
from tidemark.records.batch import iter_headers, restamp
from tidemark.records.builder import Record, build_batch
from tidemark.tier.metadata.codec import ManifestCorrupt
from tidemark.tier.metadata.topics import TopicAmbiguous, TopicNotFound
from tidemark_pipeline.aiven.private_keys import PrivateKeyMissing
from tidemark_pipeline.errors import CorruptData, DataLoss
from tidemark_pipeline.jobs import export
from tidemark_pipeline.read import tasks
from tidemark_pipeline.read.options import OptionError, parse
from tidemark_pipeline.read.plan import plan_batch
from tidemark_pipeline.read.streaming import TidemarkStreamReader
from tidemark_pipeline.read.task_execution import read_planned
from tidemark_pipeline.read.tasks import MissingOffsets
from tidemark_pipeline.read.topic_survey import Survey

PAIR = KeyPair("key1")
#: Metadata of a segment in its manifest.
METADATA = {
    "remoteLogSegmentId": {"id": kafka_id(uuid.UUID(int=1))},
    "startOffset": 0,
    "endOffset": 8,
    "maxTimestampMs": 0,
    "brokerId": 1,
    "eventTimestampMs": 0,
    "segmentLeaderEpochs": {"0": 0},
}
Rows = list[tuple[int, bytes]]


def batches(first: int, end: int, epochs: Sequence[tuple[int, int]] = ((0, 0),)) -> bytes:
    """Return batches of three records, none over the start of an epoch."""
    data, offset = b"", first
    while offset < end:
        epoch = max(pair for pair in epochs if pair[1] <= offset)[0]
        starts = [start for _, start in epochs if start > offset]
        until = min([offset + 3, end, *starts])
        records = [
            Record(b"k", b"%d of %d" % (at, epoch), (), 1000 + at) for at in range(offset, until)
        ]
        data += build_batch(records, base_offset=offset, leader_epoch=epoch)
        offset = until
    return data


@pytest.fixture
def writer(tmp_path: Path) -> SegmentWriter:
    root = tmp_path / "bucket"
    root.mkdir()
    return SegmentWriter(root=root, chunk_bytes=100)


def copy(
    writer: SegmentWriter,
    first: int,
    end: int,
    epochs: Sequence[tuple[int, int]] = ((0, 0),),
    lineage: Sequence[tuple[int, int]] = (),
    **more: Any,
) -> str:
    """Write a segment of the offsets ``first`` to ``end`` (exclusive), as a broker copies it."""
    data = batches(first, end, epochs)
    offsets, times = OffsetIndex(first), TimeIndex(first)
    # Indexes of every batch, so that a read may start at each.
    for position, header in iter_headers(data):
        offsets.append(header.last_offset, position)
        times.maybe_append(header.max_timestamp, header.last_offset)
    # The epoch in force at the start, and those that begin within the segment.
    within = [pair for pair in epochs if pair[1] <= first][-1:] + [
        pair for pair in epochs if first < pair[1] < end
    ]
    return writer.write(
        data,
        start=first,
        end=end - 1,
        epochs={epoch: max(start, first) for epoch, start in within},
        lineage=lineage or [pair for pair in epochs if pair[1] < end],
        offset_index=offsets.to_bytes(),
        time_index=times.to_bytes(),
        newest_ms=1000 + end - 1,
        **more,
    )


def read(writer: SegmentWriter, **options: str) -> Rows:
    given = {"topic": "t", "path": str(writer.root), "layout": "aiven", **options}
    parsed = pickle.loads(pickle.dumps(parse(given)))
    with Survey(parsed) as survey:
        plan = plan_batch(survey, parsed)
    assert plan.ends_with_tier
    return [
        (int(row["offset"]), bytes(row["value"]))
        for planned in plan.tasks
        for batch in read_planned(parsed, planned)
        for row in batch.to_pylist()
    ]


def expected(first: int, end: int, epoch: int = 0) -> Rows:
    return [(offset, b"%d of %d" % (offset, epoch)) for offset in range(first, end)]


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("pair", [None, PAIR])
@pytest.mark.parametrize("chunk_bytes", [64, 1000, 10**6])
def test_each_form_of_a_segment_is_read(
    writer: SegmentWriter,
    tmp_path: Path,
    compress: bool,
    pair: KeyPair | None,
    chunk_bytes: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tasks, "LEAST_PART_BYTES", 1)
    writer = replace(writer, compress=compress, pair=pair, chunk_bytes=chunk_bytes)
    copy(writer, 0, 60)
    copy(writer, 60, 90)
    options = {} if pair is None else {"aivenKeyLocations": pair.save(tmp_path / "key.pem")}
    assert read(writer, **options) == expected(0, 90)
    # Several tasks read parts of a segment, from within batches.
    ends = {"startingOffsets": '{"0": 31}', "endingOffsets": '{"0": 77}'}
    assert read(writer, **options, **ends, bytesPerTask="200") == expected(31, 77)
    since = {"startingTimestamp": "1050"}
    assert read(writer, **options, **since) == expected(50, 90)


@pytest.mark.parametrize("prefix", ["a/b/", "a/b-", "x-"])
def test_prefix_is_that_of_the_plug_in(writer: SegmentWriter, prefix: str) -> None:
    writer = replace(writer, prefix=prefix)
    copy(writer, 0, 10)
    assert read(writer, prefix=prefix) == expected(0, 10)
    with pytest.raises(TopicNotFound, match=r"is not its key.prefix"):
        read(writer, prefix="y-")


def test_partitions_without_segments_are_empty(writer: SegmentWriter) -> None:
    copy(replace(writer, partition=2), 0, 10)
    assert read(writer) == expected(0, 10)
    # Another topic whose name begins in the same way.
    copy(replace(writer, topic="t-2", topic_id=uuid.uuid4()), 0, 5)
    assert read(writer) == expected(0, 10)
    assert read(writer, topic="", subscribePattern="t-.*") == expected(0, 5)


def test_id_selects_one_of_several_topics_with_the_name(writer: SegmentWriter) -> None:
    copy(writer, 0, 10)
    copy(replace(writer, topic_id=uuid.uuid4()), 0, 5)
    with pytest.raises(TopicAmbiguous, match=rf"{kafka_id(writer.topic_id)}.* option 'topicId'"):
        read(writer)
    assert read(writer, topicId=kafka_id(writer.topic_id)) == expected(0, 10)


def test_overlapping_segments_give_each_offset_once(writer: SegmentWriter) -> None:
    """Two leaders cut their logs at different offsets, and one copied a segment twice."""
    epochs = ((0, 0), (3, 20))
    for first, end in ((0, 15), (0, 15), (9, 24), (10, 12), (18, 30), (15, 21)):
        copy(writer, first, end, epochs)
    rows = read(writer)
    assert rows == expected(0, 20) + expected(20, 30, 3)


def test_segments_that_threads_read_several_at_a_time_stay_in_order(writer: SegmentWriter) -> None:
    for first in range(0, 120, 3):
        copy(writer, first, first + 3)
    assert read(writer) == expected(0, 120)


def test_plan_decodes_no_chunk_index(writer: SegmentWriter) -> None:
    """Decoding takes longer than everything else of a manifest, and a plan reads all manifests."""
    damaged = {"chunkIndex": {"originalFileSize": 100}}
    copy(replace(writer, change=lambda manifest: manifest.update(damaged)), 0, 9)
    options = parse({"topic": "t", "path": str(writer.root), "layout": "aiven"})
    with Survey(options) as survey:
        assert plan_batch(survey, options).tasks


def test_records_that_an_unclean_election_removed_are_not_read(writer: SegmentWriter) -> None:
    """Epoch 2 wrote from 15 on. Then a replica without that became leader, at offset 21."""
    copy(writer, 0, 18, ((0, 0), (1, 12)))
    copy(writer, 18, 30, ((0, 0), (1, 12)))
    copy(writer, 12, 27, ((0, 0), (1, 12), (2, 15)))
    copy(writer, 21, 33, ((0, 0), (1, 12), (4, 21)))
    assert read(writer) == expected(0, 12) + expected(12, 21, 1) + expected(21, 33, 4)


def test_read_starts_at_the_log_start_that_the_newest_segment_knows(
    writer: SegmentWriter,
) -> None:
    """A deletion under way left a segment, and DeleteRecords moved the log start within another."""
    epochs = ((0, 0), (1, 12))
    copy(writer, 0, 9, epochs)
    copy(writer, 12, 24, epochs)
    copy(writer, 24, 30, epochs, lineage=[(1, 17)])
    assert read(writer) == expected(17, 30, 1)
    with pytest.raises(OptionError, match="its log starts at 17"):
        read(writer, startingOffsets='{"0": 3}')


def test_incomplete_segments_are_not_read(writer: SegmentWriter) -> None:
    copy(writer, 0, 9)
    copy(writer, 9, 18)
    # An upload that did not finish, and a deletion that did not.
    Path(copy(writer, 18, 27) + ".rsm-manifest").unlink()
    assert read(writer) == expected(0, 18)
    first = next(writer.root.glob("*/0/00000000000000000000-*.log"))
    first.unlink()
    assert read(writer) == expected(9, 18)
    (writer.root / "notes.txt").write_text("another program's")
    (first.parent / "00000000000000000003-x.log").write_text("another program's")
    assert read(writer) == expected(9, 18)


def test_missing_segment_in_the_middle_is_an_error(writer: SegmentWriter) -> None:
    for first in (0, 9, 18):
        copy(writer, first, first + 9)
    next(writer.root.glob("*/0/00000000000000000009-*.log")).unlink()
    with pytest.raises(MissingOffsets, match=r"offset 18 follows where 9 .* read at 18"):
        read(writer)
    assert read(writer, startingOffsets='{"0": 18}') == expected(18, 27)


def test_log_that_was_compacted_before_is_read(
    writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "LEAST_PART_BYTES", 1)
    data = batches(0, 6) + batches(15, 18) + batches(30, 36)
    index = OffsetIndex(0)
    for position, header in iter_headers(data):
        index.append(header.last_offset, position)
    writer.write(data, start=0, end=40, epochs={0: 0}, offset_index=index.to_bytes())
    rows = expected(0, 6) + expected(15, 18) + expected(30, 36)
    assert read(writer) == read(writer, bytesPerTask="100") == rows


def test_aborted_records_are_left_out(writer: SegmentWriter) -> None:
    """The transaction index with an abort is that of the segment with its marker."""
    epochs = {1: 0}
    writer.write(b"".join(LOG[:3]), start=0, end=2, epochs=epochs)
    writer.write(
        b"".join(LOG[3:]),
        start=3,
        end=9,
        epochs=epochs,
        transaction_index=encode_aborted([AbortedTxn(1, 1, 4, 2)]),
    )
    writer.write(
        batches(10, 12, [(1, 0)]),
        start=10,
        end=12,
        epochs=epochs,
        transaction_index=encode_aborted([AbortedTxn(3, 8, 12, 13)]),
    )
    assert [offset for offset, _ in read(writer)] == [*READ, 10, 11]


def test_stream_reads_what_is_copied_later(writer: SegmentWriter) -> None:
    given = {"topic": "t", "path": str(writer.root), "layout": "aiven", "columns": "offset"}
    stream = TidemarkStreamReader(parse({**given, "startingOffsets": "earliest"}, streaming=True))
    copy(writer, 0, 9)
    position, seen = stream.initialOffset(), list[int]()
    # The next leader begins within the segment before. Then Kafka deletes the oldest objects.
    for first, end in ((0, 9), (6, 15), (15, 21)):
        copy(writer, first, end, ((0, 0), (1, 12)))
        end_of_batch = stream.latestOffset()
        for task in stream.partitions(position, end_of_batch):
            for batch in stream.read(task):
                seen += batch.column("offset").to_pylist()
        position = end_of_batch
        for path in writer.root.glob("*/0/00000000000000000000-*"):
            path.unlink()
    assert seen == list(range(21))
    # Records that expired before they were read are reported.
    copy(writer, 21, 24)
    for path in writer.root.glob("*/0/000000000000000000[01]*"):
        path.unlink()
    copy(writer, 24, 27)
    stream.latestOffset()
    with pytest.raises(DataLoss, match=r"at offset 15 .* the log goes from 21 to 27"):
        stream.partitions({"t": {"0": 15}}, stream.latestOffset())


def test_abort_that_an_unclean_election_removed_does_not_count(writer: SegmentWriter) -> None:
    removed = b"".join((data(0), data(1, 1), marker(2, 1, commit=False)))
    index = encode_aborted([AbortedTxn(1, 1, 2, 3)])
    writer.write(removed, start=0, end=2, epochs={1: 0}, transaction_index=index)
    # The next leader lacked the last two records, and the producer committed others.
    lineage = [(1, 0), (2, 1)]
    batches_of_2 = [bytearray(data(1, 1)), bytearray(marker(2, 1, commit=True))]
    for offset, batch in enumerate(batches_of_2, start=1):
        restamp(batch, 0, offset, 2)
    writer.write(b"".join(batches_of_2), start=1, end=2, epochs={2: 1}, lineage=lineage)
    assert [offset for offset, _ in read(writer)] == [0, 1]


def test_folders_of_other_programs_are_no_partitions(writer: SegmentWriter) -> None:
    """Each number below the highest partition costs a listing of the store."""
    folder = Path(copy(writer, 0, 9)).parent.parent
    for name in ("20261129", "99999999999999999999", "007"):
        (folder / name).mkdir()
        (folder / name / "segment").touch()
    assert read(writer) == expected(0, 9)


@pytest.mark.parametrize("name", ["a-copy", "zz-copy"])
def test_copy_of_a_folder_is_not_read_instead_of_the_topic(
    writer: SegmentWriter, name: str
) -> None:
    folder = Path(copy(writer, 0, 9)).parent.parent
    shutil.copytree(folder, folder.with_name(folder.name.replace("t-", f"{name}-", 1)))
    copy(writer, 9, 18)
    for selected in ({"topic": "t"}, {"topic": "", "subscribePattern": ".*"}):
        with pytest.raises(TopicAmbiguous, match=rf"{name}-.* one is a copy: move it out"):
            read(writer, **selected)


def test_batch_of_an_export_names_the_id_of_its_topic(
    writer: SegmentWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy(writer, 0, 9)
    copy(replace(writer, topic_id=uuid.uuid4()), 0, 20)
    given = {"topic": "t", "path": str(writer.root), "layout": "aiven"}
    found = list[dict[str, str]]()
    monkeypatch.setattr(export, "read_topic", lambda _, options: found.append(options))
    monkeypatch.setattr(export, "raw", lambda frame: frame)
    session: Any = None
    batch = export.BatchRange({0: 3}, {0: 7}, is_last=True, is_empty=False)
    export.read_batch(session, {**given, "topicId": kafka_id(writer.topic_id)}, batch)
    parsed = parse(found[0])
    with Survey(parsed) as survey:
        ((part, at),) = plan_batch(survey, parsed).read_ranges.items()
    assert (part.topic_id, at.start, at.end) == (writer.topic_id, 3, 7)


class TestErrors:
    """Errors name the object, the cause and the remedy."""

    def test_unknown_version(self, writer: SegmentWriter) -> None:
        copy(replace(writer, change=lambda manifest: manifest.update(version="2")), 0, 9)
        with pytest.raises(ManifestCorrupt, match=r"rsm-manifest in .* version '2'.* upgrade"):
            read(writer)

    @pytest.mark.parametrize(
        "change",
        [
            {"chunkIndex": {}},
            {"segmentIndexes": {}},
            {"remoteLogSegmentMetadata": None},
            {"remoteLogSegmentMetadata": {**METADATA, "endOffset": 2**63}},
            {"encryption": {"dataKey": "key1", "aad": ""}},
            {"chunkIndex": {"type": "fixed", "originalChunkSize": 0, "originalFileSize": 1}},
            {
                "chunkIndex": {
                    "type": "fixed",
                    "originalChunkSize": 10,
                    "originalFileSize": 20,
                    "transformedChunkSize": 2**31 - 1,
                    "finalTransformedChunkSize": 10,
                }
            },
            {
                "chunkIndex": {
                    "type": "fixed",
                    "originalChunkSize": 1,
                    "originalFileSize": 2**31 - 1,
                    "transformedChunkSize": 1,
                    "finalTransformedChunkSize": 1,
                }
            },
        ],
    )
    def test_damaged_manifest(self, writer: SegmentWriter, change: dict[str, object]) -> None:
        copy(replace(writer, change=lambda manifest: manifest.update(change)), 0, 9)
        with pytest.raises(ManifestCorrupt, match="is damaged, or no manifest"):
            read(writer)

    def test_no_key(self, writer: SegmentWriter, tmp_path: Path) -> None:
        copy(replace(writer, pair=PAIR), 0, 9)
        with pytest.raises(PrivateKeyMissing, match=r"key 'key1' is not configured. Name the file"):
            read(writer)
        other = KeyPair("key2").save(tmp_path / "other.pem")
        with pytest.raises(PrivateKeyMissing, match="'key1' is not configured, only key2"):
            read(writer, aivenKeyLocations=other)

    def test_wrong_key(self, writer: SegmentWriter, tmp_path: Path) -> None:
        copy(replace(writer, pair=PAIR), 0, 9)
        wrong = KeyPair("key1").save(tmp_path / "wrong.pem")
        with pytest.raises(PrivateKeyMissing, match="has another key than the plug-in used"):
            read(writer, aivenKeyLocations=wrong)

    @pytest.mark.parametrize("compress", [False, True])
    @pytest.mark.parametrize("pair", [None, PAIR])
    def test_damaged_chunk(
        self,
        writer: SegmentWriter,
        tmp_path: Path,
        compress: bool,
        pair: KeyPair | None,
    ) -> None:
        path = Path(copy(replace(writer, compress=compress, pair=pair), 0, 30) + ".log")
        key = {"aivenKeyLocations": PAIR.save(tmp_path / "key.pem")}
        whole = path.read_bytes()
        for place in (12, 40, len(whole) - 2):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ 0xFF]) + whole[place + 1 :])
            # A changed byte of a plain log may be its base offset or its leader epoch.
            with pytest.raises(CorruptData, match=f"{path.name} in .* is not what was copied"):
                read(writer, **key)
        path.write_bytes(whole[:-5])
        with pytest.raises(CorruptData, match="is not what was copied"):
            read(writer, **key)

    def test_log_of_another_segment(self, writer: SegmentWriter) -> None:
        first, second = copy(writer, 0, 9), copy(writer, 9, 18)
        Path(first + ".log").write_bytes(Path(second + ".log").read_bytes())
        with pytest.raises(CorruptData):
            read(writer)

    def test_short_indexes(self, writer: SegmentWriter) -> None:
        path = Path(
            copy(writer, 0, 9, transaction_index=encode_aborted([AbortedTxn(1, 1, 4, 2)] * 2))
            + ".indexes"
        )
        path.write_bytes(path.read_bytes()[:-34])
        with pytest.raises(Exception, match="transaction index: 34 of its 68 bytes"):
            read(writer)

    def test_object_that_disappears_during_the_read(self, writer: SegmentWriter) -> None:
        paths = [copy(writer, first, first + 9) for first in (0, 9)]
        parsed = parse({"topic": "t", "path": str(writer.root), "layout": "aiven"})
        with Survey(parsed) as survey:
            (planned,) = plan_batch(survey, parsed).tasks
        # Retention deletes the first segment after the plan was made.
        for suffix in (".log", ".indexes", ".rsm-manifest"):
            Path(paths[0] + suffix).unlink()
        with pytest.raises(DataLoss, match="offsets 0 to 8 expired during the read"):
            list(read_planned(parsed, planned))

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"layout": "avien"}, "layout is 'avien'; write tidemark or aiven"),
            ({"topicId": "x"}, "topicId: 'x' is not an id"),
            ({"topic": "", "subscribe": "t", "topicId": "x"}, "topicId needs the option 'topic'"),
            ({"topic": "", "assign": '{"t": [0], "u": [0]}', "topicId": "x"}, "with one topic"),
            ({"layout": "tidemark", "topicId": "x"}, "topicId is an option of layout=aiven"),
            ({"aivenKeyLocations": "key.pem"}, 'write {"ID": "FILE"}'),
            ({"aivenKeyLocations": '{"a": "/none"}'}, "the file of key 'a' cannot be read"),
            ({"aivenKeyLocations": json.dumps({"a": __file__})}, "is no private RSA key"),
            ({"encryptionKeysLocation": "/keys"}, "write aivenKeyLocations with layout=aiven"),
            ({"path": "", "buckets": "a,b"}, "name the one that the plug-in writes to"),
        ],
    )
    def test_bad_options(self, changes: dict[str, str], message: str) -> None:
        given = {"topic": "t", "path": "/tier", "layout": "aiven", **changes}
        with pytest.raises(OptionError, match=message):
            parse(given)
