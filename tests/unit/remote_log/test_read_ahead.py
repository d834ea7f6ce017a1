"""The decision how far to read ahead: sequential readers, seeks, and the shared budget."""

from dataclasses import dataclass, field

from tidemark_broker.remote_log.read_ahead import REQUEST_BYTES, ReadAhead, Source, Span, Stream

KIB, MIB = 1 << 10, 1 << 20
UNIT = 256 * KIB


@dataclass
class SequentialReader:
    """Client that reads 1 MiB, which is 1,000 offsets, at a time."""

    ahead: ReadAhead
    partition: str = "t-0"
    offset: int = 0
    stream: Stream = field(init=False)

    def read(self, size: int = MIB) -> list[Span]:
        """Read once; return what is to be loaded in advance."""
        begin, self.offset = self.offset, self.offset + 1000
        self.stream = self.ahead.after_read(self.partition, begin, self.offset, size)
        spans = []
        while (span := self.ahead.next_span(self.stream)) is not None:
            spans.append(span)
        return spans


class StreamClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def read_ahead(
    *, stream_bytes: int = 8 * MIB, total_bytes: int = 16 * MIB, clock: StreamClock | None = None
) -> ReadAhead:
    return ReadAhead(
        stream_bytes=stream_bytes,
        total_bytes=total_bytes,
        unit_bytes=UNIT,
        clock=clock or StreamClock(),
    )


def test_first_read_loads_nothing_in_advance() -> None:
    ahead = read_ahead()
    reader = SequentialReader(ahead)
    assert reader.read() == []
    assert not ahead.protects(reader.stream)
    # The second read proves that the reader is sequential.
    assert reader.read() == [Span(0, MIB), Span(MIB, MIB)]
    assert ahead.protects(reader.stream)


def test_window_doubles_with_sequential_reads_up_to_the_limit() -> None:
    reader = SequentialReader(read_ahead())
    windows = []
    for _ in range(20):
        reader.read()
        windows.append(reader.stream.window // MIB)
    assert windows[:9] == [0, 2, 2, 4, 4, 4, 4, 8, 8]
    assert max(windows) == 8


def test_each_byte_is_requested_once() -> None:
    reader = SequentialReader(read_ahead())
    loaded, sizes = 0, []
    for number in range(1, 50):
        for span in reader.read():
            start = number * MIB + span.start
            # Nothing is requested again, and what was skipped was read without being loaded ahead.
            assert start == max(loaded, number * MIB)
            loaded = start + span.size
            sizes.append(span.size)
            # One unit remains for the chunk in which the read has ended.
            assert loaded - number * MIB <= 8 * MIB
    # Requests of a full window are large, whatever the size of a read is.
    assert set(sizes[-10:]) == {REQUEST_BYTES}


def test_seek_collapses_the_window() -> None:
    reader = SequentialReader(read_ahead())
    for _ in range(20):
        reader.read()
    reader.offset += 100_000
    assert reader.read() == []
    assert reader.stream.window == 0
    reader.read()
    assert reader.stream.window == 2 * MIB


def test_partitions_have_streams_of_their_own() -> None:
    ahead = read_ahead()
    first, second = SequentialReader(ahead), SequentialReader(ahead, "t-1")
    first.read()
    assert second.read() == []
    assert first.read() != []
    assert second.read() != []


def test_readers_that_share_a_read_are_one_stream() -> None:
    ahead = read_ahead()
    first, second = SequentialReader(ahead), SequentialReader(ahead)
    for _ in range(3):
        first.read()
        # The other one requests the same data, and nothing more is loaded for it.
        assert second.read() == []
    assert len(ahead) == 1
    # A repeated request is no seek.
    assert first.stream.window == 2 * MIB
    first.offset -= 1000
    first.read()
    assert first.stream.window == 2 * MIB


def test_windows_of_all_readers_stay_within_the_budget() -> None:
    ahead = read_ahead()
    readers = [SequentialReader(ahead, f"t-{number}") for number in range(60)]
    for round_number in range(20):
        loaded = 0
        for reader in readers:
            spans = reader.read()
            # In the first rounds the number of readers is not known yet.
            if round_number > 2:
                loaded += sum(span.size for span in spans) + UNIT * ahead.protects(reader.stream)
        assert loaded <= 16 * MIB
    # Each keeps the chunk in which its last read has ended.
    assert all(ahead.protects(reader.stream) for reader in readers)


def test_more_readers_than_chunks_in_the_budget_leave_it_to_some() -> None:
    ahead = read_ahead(total_bytes=4 * UNIT)
    readers = [SequentialReader(ahead, f"t-{number}") for number in range(5)]
    for reader in readers * 3:
        reader.read()
    assert all(reader.read() == [] for reader in readers)
    # Four of five keep the chunk in which their last read ended, and the same ones each time.
    protected = [ahead.protects(reader.stream) for reader in readers]
    assert sum(protected) == 4
    for reader in readers:
        reader.read()
    assert [ahead.protects(reader.stream) for reader in readers] == protected


def test_random_reads_take_no_share_of_the_budget() -> None:
    ahead = read_ahead()
    reader = SequentialReader(ahead)
    reader.read()
    reader.read()
    for offset in range(10_000_000, 20_000_000, 10_000):
        ahead.after_read("t-1", offset, offset + 1000, MIB)
    assert ahead.share == 8 * MIB
    # The table of streams is limited.
    for offset in range(30_000_000, 60_000_000, 10_000):
        ahead.after_read("t-1", offset, offset + 1000, MIB)
    assert len(ahead) == 1024


def test_page_cache_has_the_data_until_two_reads_in_a_row_have_waited() -> None:
    stream = Stream(MIB, 1)
    sources = (
        (Source.STORE, False),
        (Source.PAGE_CACHE, True),
        (Source.MEMORY, True),
        # The first read of a segment waits for its indexes.
        (Source.STORE, True),
        (Source.PAGE_CACHE, True),
        (Source.STORE, True),
        (Source.STORE, False),
        (Source.MEMORY, False),
    )
    for source, is_in_page_cache in sources:
        stream.found(source)
        assert stream.is_in_page_cache == is_in_page_cache


def test_idle_readers_give_back_their_share() -> None:
    clock = StreamClock()
    ahead = read_ahead(clock=clock)
    for number in range(8):
        reader = SequentialReader(ahead, f"t-{number}")
        reader.read()
        reader.read()
    assert ahead.share == 2 * MIB
    clock.now_s = 11.0
    reader.read()
    # The last one was idle itself, and restarts as a new stream.
    assert (len(ahead), ahead.share) == (1, 8 * MIB)


def test_reader_at_the_end_of_the_tier_gives_back_its_share() -> None:
    ahead = read_ahead()
    readers = [SequentialReader(ahead, f"t-{number}") for number in range(4)]
    for reader in readers * 2:
        reader.read()
    assert ahead.share == 4 * MIB
    for reader in readers[1:]:
        stream = ahead.after_read(
            reader.partition, reader.offset, reader.offset + 1000, MIB, is_last=True
        )
        assert ahead.next_span(stream) is None
    assert (len(ahead), ahead.share) == (1, 8 * MIB)


def test_limit_of_zero_disables_read_ahead() -> None:
    ahead = read_ahead(stream_bytes=0)
    reader = SequentialReader(ahead)
    assert [span for _ in range(10) for span in reader.read()] == []
    assert not ahead.protects(reader.stream)


def test_small_reads_are_loaded_by_whole_units() -> None:
    reader = SequentialReader(read_ahead())
    spans = [span for _ in range(100) for span in reader.read(16 * KIB)]
    assert spans[0] == Span(0, UNIT)
    assert all(span.size % UNIT == 0 for span in spans)
