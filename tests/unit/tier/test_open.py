"""Topic objects, and a reader of the tier that needs no broker."""

import uuid
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tidemark.ids import id_text
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Claim
from tidemark.tier.metadata.manifest import HeadNotFound, ManifestStore
from tidemark.tier.metadata.queries import TierOffsetOutOfRange
from tidemark.tier.metadata.topics import TopicAmbiguous, TopicCatalog, TopicNotFound, TopicObject
from tidemark.tier.open import open_tier
from tidemark.tier.reader import TierReader
from tidemark.tier.stores.config import FilesystemConfig

ONE = Claim(1, 0)


class TestTopics:
    def topic(self, number: int, name: str = "flights") -> TopicObject:
        return TopicObject(
            topic_id=uuid.UUID(int=number),
            name=name,
            cluster_id="c",
            partitions=4,
            config={"retention.ms": "5"},
        )

    def test_topics_are_written_once_and_found(self, faulty: Any) -> None:
        catalog = TopicCatalog(faulty)
        assert catalog.put(self.topic(1)) is True
        assert catalog.put(self.topic(1)) is False
        assert catalog.put(self.topic(2, "other")) is True
        assert catalog.find("flights") == self.topic(1) == catalog.get(uuid.UUID(int=1))
        catalog.put_tombstone(self.topic(1))
        with pytest.raises(TopicNotFound, match="it was deleted"):
            catalog.find("flights")
        with pytest.raises(TopicNotFound):
            catalog.get(uuid.UUID(int=1))

    def test_an_ambiguous_name_needs_an_id(self, memory: Any) -> None:
        catalog = TopicCatalog(memory)
        for number in (1, 2):
            catalog.put(self.topic(number))
        with pytest.raises(TopicAmbiguous, match=id_text(uuid.UUID(int=2))):
            catalog.find("flights")
        memory.delete(f"topics/{id_text(uuid.UUID(int=2))}.json")  # as the message says
        assert catalog.find("flights") == self.topic(1)


def reader_of(store: Any) -> TierReader:
    return TierReader(ManifestStore(store), TopicCatalog(store))


class TestReader:
    def filled(self, place: Any, store: Any) -> ManifestStore:
        manifests = ManifestStore(store, page_entries=3)
        loaded = manifests.create(place.head())
        for n in range(10):
            entry = place.segment(n * 10, n * 10 + 9)
            loaded = manifests.commit(loaded, partial(transitions.start_copy, by=ONE, entry=entry))
            finish = partial(transitions.finish_copy, by=ONE, entry=entry, custom_metadata=None)
            loaded = manifests.commit(loaded, finish)
        return manifests

    def test_a_plan_is_made_from_head_and_pages_and_caches_pages(
        self, place: Any, faulty: Any
    ) -> None:
        self.filled(place, faulty)
        reader = reader_of(faulty)
        for _ in range(2):
            faulty.fail(lambda _n, _op, _key: None)
            snapshot, plan = reader.plan(place.topic_id, place.partition, 5, 65)
            assert [(r.from_offset, r.to_offset_inclusive) for r in plan] == [
                (5, 9),
                *((n, n + 9) for n in (10, 20, 30, 40, 50)),
                (60, 64),
            ]
        # The second plan reads the head only.
        assert [op for op, _ in faulty.trace] == ["get"]
        found = snapshot.find(44)
        assert found is not None
        assert found.start_offset == 40
        assert reader.partitions(place.topic_id) == (place.partition,)

    def test_a_page_deleted_during_a_read_reloads_the_head(self, place: Any, memory: Any) -> None:
        manifests = self.filled(place, memory)
        reader, old = reader_of(memory), reader_of(memory).snapshot(place.topic_id, 3)
        loaded = manifests.load(place.topic_id, 3)
        loaded = manifests.commit(
            loaded,
            lambda head: transitions.expire_to(head, ONE, 40, now_ms=0, delete_delay_ms=0),
        )
        pages = manifests.pages(place.topic_id, 3)
        due = queries.pending_deletes(loaded.head, pages, now_ms=0, delay_ms=0)
        manifests.commit(loaded, lambda head: transitions.finish_delete(head, ONE, due))
        # The old snapshot refers to a page that was deleted. A new plan reads the head again and
        # reports the new log start.
        with pytest.raises(Exception, match="is not in memory"):
            old.plan(0, 100)
        with pytest.raises(TierOffsetOutOfRange) as caught:
            reader.plan(place.topic_id, 3, 0, 100)
        assert caught.value.log_start_offset == 40

    def test_a_partition_without_a_head(self, place: Any, memory: Any) -> None:
        with pytest.raises(HeadNotFound):
            reader_of(memory).snapshot(place.topic_id, 0)

    def test_a_tier_in_a_directory(self, place: Any, tmp_path: Path) -> None:
        tier = open_tier(FilesystemConfig(tmp_path))
        self.filled(place, tier.store)
        assert tier.reader.snapshot(place.topic_id, 3).head.highest_remote_offset == 99
