"""Topics of a lost cluster, read from the tier and claimed for a new cluster."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.tier.test_manifest import claim, manifests, start
from tests.unit.tier.test_sweeper import tier_on
from tidemark.logfiles.producer_snapshot import ProducerEntry, encode_snapshot
from tidemark.tier.identity import WrongStore, ensure_identity, hand_over, read_identity
from tidemark.tier.maintenance.topic_restore import Restorable, restorable
from tidemark.tier.maintenance.topic_restore import claim as claim_topic
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import Claim, IllegalTransition, ManifestFenced
from tidemark.tier.metadata.manifest import LoadedHead, Transition
from tidemark.tier.metadata.segment import Digests, SegmentEntry, SegmentState
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.segments import auxiliary
from tidemark.tier.segments.auxiliary import Aux, pack
from tidemark.tier.segments.integrity import COPY_ALGORITHM, ObjectVersionUnsupported, digest_of
from tidemark.tier.segments.remote_storage_manager import encode_custom_metadata
from tidemark.tiering import Tiering, TieringState

OLD, NEW = "cluster-1", "cluster-2"


PRODUCER_ID_MAX = 41
ONE = Claim(1, 0)


def finish(entry: SegmentEntry, aux: bytes) -> Transition:
    custom = encode_custom_metadata("", 1)
    digests = Digests(COPY_ALGORITHM, bytes(32), digest_of(aux, COPY_ALGORITHM))
    return lambda head: transitions.finish_copy(head, ONE, entry, custom, digests)


def stored(place: Any, memory: Any, count: int) -> LoadedHead:
    """Copy segments of one record each. Their producer snapshots have ids up to PRODUCER_ID_MAX."""
    store = manifests(memory)
    loaded = store.create(place.head())
    # Two producers in each snapshot: the restore needs the largest id.
    producers = [ProducerEntry(n, 0, 0, 0, 0, 1, 0, -1) for n in (7, PRODUCER_ID_MAX)]
    for number in range(count):
        entry = place.segment(number, number)
        made = Aux(
            offset_index=b"",
            time_index=b"",
            leader_epochs=b"",
            producer_snapshot=encode_snapshot(producers),
        )
        aux = pack(made)
        memory.put(entry.aux_key, aux)
        loaded = store.commit(loaded, start(entry))
        loaded = store.commit(
            loaded,
            finish(entry, aux),
        )
    return loaded


def described(place: Any, store: Any, partitions: int = 4) -> TopicObject:
    topic = TopicObject(
        topic_id=place.topic_id,
        name=place.topic,
        cluster_id=OLD,
        partitions=partitions,
        config={"retention.ms": "-1"},
        replication_factor=3,
    )
    tier_on(store).topics.put(topic)
    return topic


def only(store: Any) -> Restorable:
    (found,) = restorable(tier_on(store))
    return found


def test_the_tier_describes_a_stored_topic(place: Any, memory: Any) -> None:
    stored(place, memory, 5)
    described(place, memory)
    found = only(memory)
    assert (found.partitions, found.topic.replication_factor) == (4, 3)
    assert found.tiering == Tiering(TieringState.ENABLED, 0)
    assert found.offsets == {place.partition: (0, 5)}


def test_a_topic_has_at_least_the_partitions_of_its_heads(place: Any, memory: Any) -> None:
    stored(place, memory, 1)
    described(place, memory, partitions=1)
    assert only(memory).partitions == place.partition + 1


def test_deleted_topics_are_not_restorable(place: Any, memory: Any) -> None:
    store = manifests(memory)
    loaded = stored(place, memory, 1)
    described(place, memory)
    store.commit(loaded, lambda head: transitions.make_tombstone(head, now_ms=1))
    assert list(restorable(tier_on(memory))) == []


def test_the_most_advanced_partition_determines_the_tiering_state(place: Any, memory: Any) -> None:
    """The other partitions may not have received the acknowledgement."""
    store = manifests(memory)
    states = (TieringState.DISABLING, TieringState.DISABLED, TieringState.ENABLED)
    for partition, state in enumerate(states):
        epoch = 2 if partition < 2 else 1
        head = replace(place.head(), partition=partition, tiering=Tiering(state, epoch).in_force)
        store.create(head)
    described(place, memory)
    assert only(memory).tiering == Tiering(TieringState.DISABLED, 2).in_force


def test_a_claim_moves_every_head_to_the_new_cluster(place: Any, memory: Any) -> None:
    """Partitions without a head get one, because the row of a restored partition says that it has
    one."""
    store = manifests(memory)
    loaded, unfinished = stored(place, memory, 3), place.segment(3, 9)
    loaded = store.commit(loaded, start(unfinished))
    described(place, memory)
    origin = claim_topic(tier_on(memory), only(memory), from_cluster=OLD, to_cluster=NEW, now_ms=9)
    assert (origin.partitions, origin.topic_id) == (4, place.topic_id)
    # Ids of old producers must not be given out again: their state is in the restored logs.
    assert origin.first_producer_id == PRODUCER_ID_MAX + 1
    heads = [store.load(place.topic_id, number).head for number in range(4)]
    assert {head.cluster_id for head in heads} == {NEW}
    # The new cluster continues above every epoch of the old one, and an unfinished copy is
    # abandoned.
    assert origin.leader_epoch > max(head.leader_epoch for head in heads) > 1
    moved = heads[place.partition]
    assert moved.live_end == loaded.head.live_end
    assert [
        entry.state for entry in moved.entries if entry.segment_id == unfinished.segment_id
    ] == [SegmentState.DELETE_STARTED]
    assert only(memory).topic.cluster_id == NEW
    with pytest.raises(ManifestFenced):  # a broker of the old cluster
        store.commit(loaded, start(place.segment(3, 9)))
    with pytest.raises((IllegalTransition, ManifestFenced)):
        store.commit(loaded, claim(Claim(origin.leader_epoch + 5, 0)))


def test_a_claim_stops_at_an_object_of_a_newer_version(
    place: Any, memory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its producers are not known here, and their ids must not be given out again."""
    with monkeypatch.context() as newer:
        newer.setattr(auxiliary, "_VERSION", 5)
        stored(place, memory, 1)
    described(place, memory)
    found = only(memory)
    with pytest.raises(ObjectVersionUnsupported, match=r"version 5, .* up to 4\. Upgrade"):
        claim_topic(tier_on(memory), found, from_cluster=OLD, to_cluster=NEW, now_ms=9)
    # The version that knows the object continues.
    monkeypatch.setattr(auxiliary, "_VERSION", 5)
    origin = claim_topic(tier_on(memory), found, from_cluster=OLD, to_cluster=NEW, now_ms=9)
    assert origin.first_producer_id == PRODUCER_ID_MAX + 1


def test_each_restore_has_a_later_epoch_even_if_the_clock_goes_back(
    place: Any, memory: Any
) -> None:
    stored(place, memory, 3)
    described(place, memory)
    epochs, day_ms = [], 86_400_000
    for now_ms in (1_800_000_000_000, 1_800_000_000_000, 1_800_000_000_000 - day_ms):
        found = claim_topic(
            tier_on(memory), only(memory), from_cluster=OLD, to_cluster=NEW, now_ms=now_ms
        )
        epochs.append(found.leader_epoch)
    assert epochs == sorted(set(epochs))
    assert [restore.leader_epoch for restore in only(memory).topic.restores] == epochs


def test_a_claim_may_be_repeated(place: Any, memory: Any) -> None:
    """An interrupted restore continues."""
    stored(place, memory, 3)
    described(place, memory)
    first, again = (
        claim_topic(tier_on(memory), only(memory), from_cluster=OLD, to_cluster=NEW, now_ms=9)
        for _ in range(2)
    )
    assert replace(first, leader_epoch=again.leader_epoch) == again


def test_a_claim_includes_changes_made_until_the_fencing(place: Any, memory: Any) -> None:
    """Otherwise the heads would reject the topic's older tiered epoch forever."""
    loaded = stored(place, memory, 3)
    described(place, memory)
    found = only(memory)
    tiering = Tiering(TieringState.DISABLED, 2).in_force
    # The old cluster disables tiering after the restore has read the topic.
    manifests(memory).commit(loaded, lambda head: replace(head, tiering=tiering))
    origin = claim_topic(tier_on(memory), found, from_cluster=OLD, to_cluster=NEW, now_ms=9)
    assert origin.tiering == tiering


def test_heads_of_a_third_cluster_are_rejected(place: Any, memory: Any) -> None:
    stored(place, memory, 3)
    described(place, memory)
    with pytest.raises(IllegalTransition, match="belongs to cluster cluster-1, not to other"):
        claim_topic(tier_on(memory), only(memory), from_cluster="other", to_cluster=NEW, now_ms=9)


def test_the_store_is_handed_over_with_its_id(memory: Any) -> None:
    store_id = ensure_identity(memory, OLD, "")
    with pytest.raises(WrongStore, match=f"tidemark restore --from-cluster {OLD}"):
        ensure_identity(memory, NEW, "")
    with pytest.raises(WrongStore, match=f"belongs to cluster {OLD}, not to other"):
        hand_over(memory, "other", NEW)
    # The handover can be repeated. Afterwards the old cluster is locked out.
    for _ in range(2):
        hand_over(memory, OLD, NEW)
        assert read_identity(memory) == (store_id, NEW)
    assert ensure_identity(memory, NEW, "") == store_id
    with pytest.raises(WrongStore):
        ensure_identity(memory, OLD, store_id)


def test_a_handover_survives_a_lost_response(memory: Any) -> None:
    store_id = ensure_identity(memory, OLD, "")
    real = memory.replace

    def replace_twice(key: str, data: bytes, expected: Any) -> Any:
        real(key, data, expected)
        return real(key, data, expected)

    memory.replace = replace_twice
    hand_over(memory, OLD, NEW)
    assert read_identity(memory) == (store_id, NEW)
