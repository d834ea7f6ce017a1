"""The compare-and-set loop of manifests. Every call of the store fails once, before or after its
effect. After each fault the transition has been applied exactly once and the caller knows it, or
the caller received StoreUnavailable and repeating the transition succeeds."""

import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.codec import ManifestCorrupt, encode_head
from tidemark.tier.metadata.head import Claim, Head, ManifestFenced
from tidemark.tier.metadata.layout import head_key, pages_prefix
from tidemark.tier.metadata.manifest import HeadNotFound, LoadedHead, ManifestStore, PageNotFound
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.stores import directory
from tidemark.tier.stores.objects import PreconditionFailed, StoreUnavailable
from tidemark.tiering import DisablePolicy, Tiering, TieringState

ONE = Claim(1, 0)
PER_PAGE = 4
Transition = Callable[[Head], Head]


class StoreWrapper:
    """Store whose conditional writes a test changes. All other calls pass through."""

    def __init__(self, store: Any) -> None:
        self.store = store

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def manifests(store: Any) -> ManifestStore:
    return ManifestStore(store, page_entries=PER_PAGE, sleep=lambda _seconds: None)


def claim(by: Claim) -> Transition:
    return lambda head: transitions.claim(
        head,
        by.leader_epoch,
        Tiering(TieringState.ENABLED, by.tiered_epoch),
        cluster_id="cluster-1",
        broker_id=by.leader_epoch,
        now_ms=5,
    )


def start(entry: SegmentEntry, by: Claim = ONE) -> Transition:
    return lambda head: transitions.start_copy(head, by, entry)


def finish(entry: SegmentEntry, by: Claim = ONE) -> Transition:
    return lambda head: transitions.finish_copy(head, by, entry, b"m")


def copy(store: ManifestStore, loaded: LoadedHead, entry: SegmentEntry) -> LoadedHead:
    return store.commit(store.commit(loaded, start(entry)), finish(entry))


def filled(place: Any, store: ManifestStore, count: int) -> LoadedHead:
    loaded = store.create(place.head())
    for n in range(count):
        loaded = copy(store, loaded, place.segment(n, n))
    return loaded


def page_keys(place: Any, store: Any) -> list[str]:
    prefix = pages_prefix(place.topic_id, place.partition)
    return [info.key.removeprefix(prefix).removesuffix(".json") for info in store.list(prefix)]


def test_a_missing_head_is_reported_as_missing(place: Any, memory: Any) -> None:
    with pytest.raises(
        HeadNotFound, match=r"no manifest heads/.* check endpoint, bucket and prefix"
    ):
        manifests(memory).load(place.topic_id, place.partition)


def test_create_returns_the_existing_head(place: Any, memory: Any) -> None:
    store = manifests(memory)
    first = store.create(place.head(leader_epoch=1))
    again = store.create(place.head(leader_epoch=2))
    assert again == first == store.load(place.topic_id, place.partition)
    assert store.partitions(place.topic_id) == (place.partition,)


def test_foreign_files_among_heads_are_ignored(place: Any, memory: Any) -> None:
    """Otherwise one foreign file would end every audit and every read by Spark."""
    store = manifests(memory)
    store.create(place.head())
    own = head_key(place.topic_id, place.partition)
    folder = own.rpartition("/")[0]
    # Names without a canonical partition number, such as leading zeros and non-ASCII digits.
    for name in ("notes.txt", "x.json", "07.json", "\u0663.json", "9", "-1.json", "1/2.json"):
        memory.put(f"{folder}/{name}", b"{}")
    assert store.partitions(place.topic_id) == (place.partition,)


def test_every_commit_raises_the_version_and_nothing_else_writes(
    place: Any, memory: Any, faulty: Any
) -> None:
    store = manifests(faulty)
    loaded = store.create(place.head())
    after = store.commit(loaded, claim(Claim(2, 0)))
    assert (loaded.head.version, after.head.version) == (1, 2)
    assert loaded.head.commit_id != after.head.commit_id
    faulty.fail(lambda _n, _op, _key: None)
    # A transition that changes nothing makes no request at all.
    assert store.commit(after, claim(Claim(2, 0))) is after
    assert faulty.trace == []


def test_a_stale_head_is_read_again(place: Any, memory: Any) -> None:
    store = manifests(memory)
    stale = store.create(place.head())
    entry = place.segment(0, 9)
    store.commit(stale, start(entry))
    after = store.commit(stale, finish(entry))
    assert after.head.highest_remote_offset == 9


def test_a_superseded_leader_is_fenced_by_the_head(place: Any, memory: Any) -> None:
    store = manifests(memory)
    stale = store.create(place.head())
    # Another broker claims the head while the first one has it in memory.
    store.commit(stale, claim(Claim(2, 0)))
    with pytest.raises(ManifestFenced):
        store.commit(stale, start(place.segment(0, 9)))


def anomalies(run: Callable[[Callable[[int, str, str], str | None]], bool]) -> int:
    """Fail the n-th call for n = 1, 2, ... before and after its effect, until ``run`` returns that
    its fault was not reached. Return the number of faults."""
    count = 0
    for when in ("before", "after"):
        n = 1
        while run(lambda call, _op, _key, n=n, when=when: when if call == n else None):  # type: ignore[misc]
            n, count = n + 1, count + 1
    return count


def test_creating_survives_any_single_failure(place: Any, faulty: Any) -> None:
    def run(decide: Callable[[int, str, str], str | None]) -> bool:
        faulty.delete(head_key(place.topic_id, place.partition))
        store = manifests(faulty)
        faulty.fail(decide)
        try:
            loaded = store.create(place.head())
        except StoreUnavailable:
            loaded = store.create(place.head())
        # The fault was reached if the run made at least that number of calls.
        met = any(decide(n, "", "") for n in range(1, len(faulty.trace) + 1))
        faulty.fail(lambda _n, _op, _key: None)
        assert loaded == store.load(place.topic_id, place.partition)
        return met

    assert anomalies(run) >= 2


def test_copying_with_pages_survives_any_single_failure(
    place: Any, faulty: Any, memory: Any
) -> None:
    """Ten segments pass through pages of four. Seven of them expire and are deleted."""

    def attempt(store: ManifestStore, loaded: LoadedHead, change: Transition) -> LoadedHead:
        for _ in range(3):
            try:
                return store.commit(loaded, change)
            except StoreUnavailable:
                continue
        raise AssertionError("one failure must not need a third attempt")

    def delete(store: ManifestStore, loaded: LoadedHead) -> LoadedHead:
        pages = store.pages(place.topic_id, place.partition)
        try:
            due = queries.pending_deletes(loaded.head, pages, now_ms=99, delay_ms=0)
        except StoreUnavailable:
            due = queries.pending_deletes(loaded.head, pages, now_ms=99, delay_ms=0)
        return attempt(store, loaded, lambda head: transitions.finish_delete(head, ONE, due))

    def run(decide: Callable[[int, str, str], str | None]) -> bool:
        # Each run starts with an empty store and has one fault somewhere.
        for info in list(memory.list("")):
            memory.delete(info.key)
        store = manifests(faulty)
        loaded = store.create(place.head())
        faulty.fail(decide)
        for n in range(10):
            entry = place.segment(n, n)
            loaded = attempt(store, loaded, start(entry))
            loaded = attempt(store, loaded, finish(entry))
        loaded = attempt(
            store,
            loaded,
            lambda head: transitions.expire_to(head, ONE, 7, now_ms=9, delete_delay_ms=0),
        )
        loaded = delete(store, loaded)
        reached = any(decide(n, "", "") for n in range(1, len(faulty.trace) + 1))
        faulty.fail(lambda _n, _op, _key: None)
        loaded = attempt(store, loaded, lambda head: head)
        check(store, loaded)
        return reached

    def check(store: ManifestStore, loaded: LoadedHead) -> None:
        assert loaded == store.load(place.topic_id, place.partition)
        pages = store.pages(place.topic_id, place.partition)
        offsets = [entry.start_offset for entry in queries.live_segments(loaded.head, pages)]
        assert offsets == [7, 8, 9]
        assert queries.totals(loaded.head, pages) == queries.Totals(3, 300, 0, 0)
        named = {ref.name for ref in loaded.head.pages}
        orphans = set(page_keys(place, memory)) - named
        assert loaded.head.trash == ()
        assert len(orphans) <= 1, "only a failed deletion of an unused page may leave one"

    # Guards against a run that no longer reaches its faults.
    assert anomalies(run) > 40


class RetryingStore(StoreWrapper):
    """Store client that retries internally. The second attempt finds the effect of the first."""

    def replace(self, key: str, data: bytes, expected: Any) -> Any:
        self.store.replace(key, data, expected)
        raise PreconditionFailed("changed by another writer")


class LateStore(StoreWrapper):
    """Store whose first write times out and takes effect only after the head was read and found
    unchanged."""

    def __init__(self, store: Any) -> None:
        super().__init__(store)
        self.delayed: list[tuple[str, bytes, Any]] = []

    def replace(self, key: str, data: bytes, expected: Any) -> Any:
        if not self.delayed:
            self.delayed.append((key, data, expected))
            raise StoreUnavailable("timed out", reason="StoreUnreachable", retriable=True)
        self.store.replace(*self.delayed[0])
        return self.store.replace(key, data, expected)


@pytest.mark.parametrize("kind", [RetryingStore, LateStore])
def test_an_own_commit_is_recognised_and_not_repeated(
    place: Any, memory: Any, kind: type[StoreWrapper]
) -> None:
    """The change is not idempotent, so a repetition would be visible."""
    loaded = manifests(memory).create(place.head())
    after = manifests(kind(memory)).commit(
        loaded, lambda head: replace(head, broker_id=head.broker_id + 1)
    )
    assert (after.head.version, after.head.broker_id) == (2, 2)
    assert after == manifests(memory).load(place.topic_id, place.partition)


@pytest.mark.parametrize("kind", [RetryingStore, LateStore])
def test_the_page_of_a_late_write_is_kept(
    place: Any, memory: Any, kind: type[StoreWrapper]
) -> None:
    loaded = filled(place, manifests(memory), PER_PAGE)
    entry = place.segment(PER_PAGE, PER_PAGE)
    loaded = manifests(memory).commit(loaded, start(entry))
    loaded = manifests(kind(memory)).commit(loaded, finish(entry))
    # The retry must not delete the page that the first write's head refers to.
    assert [ref.name for ref in loaded.head.pages] == page_keys(place, memory)
    pages = manifests(memory).pages(place.topic_id, place.partition)
    assert len(list(queries.live_segments(loaded.head, pages))) == PER_PAGE + 1


def test_a_leader_is_fenced_after_an_unknown_outcome(place: Any, memory: Any) -> None:
    """The write succeeded, a newer claim followed, and the response was lost. The leader is fenced.
    The claim has marked the started copy, and the fenced leader does not delete it."""
    entry = place.segment(0, 9)
    other = manifests(memory)

    class Overtaken(StoreWrapper):
        def replace(self, key: str, data: bytes, expected: Any) -> Any:
            self.store.replace(key, data, expected)
            other.commit(other.load(place.topic_id, place.partition), claim(Claim(2, 0)))
            raise StoreUnavailable("reset", reason="StoreUnreachable", retriable=True)

    loaded = other.create(place.head())
    with pytest.raises(ManifestFenced):
        manifests(Overtaken(memory)).commit(loaded, start(entry))
    head = other.load(place.topic_id, place.partition).head
    assert [queries.state_of(head, e).name for e in head.entries] == ["DELETE_STARTED"]


def test_a_persistent_failure_is_raised(place: Any, faulty: Any) -> None:
    store = manifests(faulty)
    loaded = store.create(place.head())
    faulty.fail(lambda _n, op, _key: "before" if op == "replace" else None)
    with pytest.raises(StoreUnavailable):
        store.commit(loaded, claim(Claim(2, 0)))
    assert store.load(place.topic_id, place.partition) == loaded


def test_copying_costs_the_same_for_any_length_of_the_log(place: Any, faulty: Any) -> None:
    store = manifests(faulty)
    loaded = filled(place, store, 40)
    faulty.fail(lambda _n, _op, _key: None)
    copy(store, loaded, place.segment(40, 40))
    operations = [operation for operation, _ in faulty.trace]
    # One write of the head for the start and one for the end, and at most one new page.
    assert operations.count("replace") == 2
    assert set(operations) <= {"replace", "put"}
    assert operations.count("put") <= 1


def test_dropped_pages_are_deleted_after_the_commit(place: Any, faulty: Any, memory: Any) -> None:
    store = manifests(faulty)
    loaded = filled(place, store, 10)
    first, second = page_keys(place, memory)
    expire = lambda head: transitions.expire_to(head, ONE, 4, now_ms=9, delete_delay_ms=0)  # noqa: E731
    loaded = store.commit(loaded, expire)
    pages = store.pages(place.topic_id, place.partition)
    due = queries.pending_deletes(loaded.head, pages, now_ms=9, delay_ms=0)
    # The head no longer refers to the page, but its deletion fails: the name stays in the trash.
    faulty.fail(lambda _n, op, _key: "before" if op == "delete" else None)
    loaded = store.commit(loaded, lambda head: transitions.finish_delete(head, ONE, due))
    assert [op for op, _ in faulty.trace] == ["replace", "delete"]
    assert (loaded.head.trash, page_keys(place, memory)) == ((first,), [first, second])
    faulty.fail(lambda _n, _op, _key: None)
    # The next commit empties the trash, even if it changes nothing else.
    loaded = store.commit(loaded, lambda head: head)
    assert (loaded.head.trash, page_keys(place, memory)) == ((), [second])
    with pytest.raises(PageNotFound):
        manifests(faulty).pages(place.topic_id, place.partition)[first]


def test_a_disablement_is_one_write(place: Any, faulty: Any) -> None:
    store = manifests(faulty)
    loaded = filled(place, store, 10)
    faulty.fail(lambda _n, _op, _key: None)
    # Ten segments in pages and head are marked by a floor epoch, so no page is read or written.
    loaded = store.commit(
        loaded,
        lambda head: transitions.disable_delete(
            head,
            Claim(1, 1),
            cluster_id="cluster-1",
            broker_id=1,
            log_start_offset=8,
            now_ms=9,
            delete_delay_ms=0,
        ),
    )
    assert [op for op, _ in faulty.trace] == ["replace"]
    head = loaded.head
    assert head.tiering == Tiering(TieringState.DISABLING, 1, DisablePolicy.DELETE)
    assert (head.log_start_offset, head.highest_remote_offset) == (8, -1)


def test_a_head_of_a_newer_format_is_never_written(place: Any, memory: Any) -> None:
    fields = json.loads(encode_head(place.head()))
    key = head_key(place.topic_id, place.partition)
    memory.put(key, json.dumps({**fields, "formatVersion": 4}).encode())
    with pytest.raises(Exception, match="upgrade this one"):
        manifests(memory).create(place.head())


def test_the_pages_of_all_partitions_share_one_limit(place: Any, memory: Any) -> None:
    """The page cache has one limit for any number of partitions."""
    partitions = range(20)
    for number in partitions:
        filled(replace(place, partition=number), manifests(memory), 10)
    store = ManifestStore(memory, page_cache_bytes=40_000)
    for number in partitions:
        head = store.load(place.topic_id, number).head
        pages = store.pages(place.topic_id, number)
        ranges = queries.plan(head, pages, 0, 10)
        assert [range_.from_offset for range_ in ranges] == list(range(10))
        assert 0 < store.page_cache_bytes <= 40_000


def test_a_head_under_another_partitions_key_is_rejected(place: Any, memory: Any) -> None:
    """Its segments are intact, but they belong to another partition."""
    store = manifests(memory)
    filled(place, store, 2)
    data = memory.objects[head_key(place.topic_id, place.partition)]
    other = uuid.UUID(int=77)
    for topic_id, partition in ((place.topic_id, place.partition + 1), (other, place.partition)):
        key = head_key(topic_id, partition)
        memory.objects[key] = data
        with pytest.raises(
            ManifestCorrupt, match=f"{key} .*belongs to {place.topic}-{place.partition}"
        ):
            store.load(topic_id, partition)


def test_a_page_under_another_name_is_rejected(place: Any, memory: Any) -> None:
    store = ManifestStore(memory, page_entries=2, sleep=lambda _: None)
    loaded = filled(place, store, 9)
    first, second = page_keys(place, memory)[:2]
    prefix = pages_prefix(place.topic_id, place.partition)
    memory.objects[f"{prefix}{first}.json"] = memory.objects[f"{prefix}{second}.json"]
    fresh = ManifestStore(memory, page_entries=2)
    with pytest.raises(ManifestCorrupt, match=f"{first}.* belongs to {second}"):
        fresh.pages(place.topic_id, place.partition)[first]
    assert loaded.head.pages[0].name == first


def test_an_oversized_object_is_not_read(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "OBJECT_BYTES_MAX", 10_000)
    store = directory.DirectoryStore(tmp_path)
    key = head_key(place.topic_id, place.partition)
    store.put(key, bytes(10_001))
    with pytest.raises(ManifestCorrupt, match=f"{key} .*10001 bytes"):
        manifests(store).load(place.topic_id, place.partition)
