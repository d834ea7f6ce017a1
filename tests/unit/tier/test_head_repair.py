"""A head that was replaced by an earlier version is detected. It is repaired from the objects in
the store, or nothing is written and the error names what is missing."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.unit.tier.test_sweeper import sweep, tier_on
from tidemark.tier.maintenance import head_repair
from tidemark.tier.maintenance.findings import FindingKind
from tidemark.tier.maintenance.head_repair import Evidence
from tidemark.tier.maintenance.topic_restore import restorable
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Claim, Head
from tidemark.tier.metadata.layout import head_key, page_key
from tidemark.tier.metadata.manifest import HeadWentBack, LoadedHead
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier
from tidemark.tier.segments import auxiliary
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.integrity import ObjectVersionUnsupported
from tidemark.tier.segments.remote_storage_manager import SegmentData
from tidemark.tier.segments.segment_origin import encode_origin
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_pipeline.audit import segments

ONE = Claim(1, 0)
SIZE = 100


@dataclass
class RepairWorld:
    """One partition's tier, with every version of its head."""

    place: Any
    memory: Any
    folder: Path
    versions: list[tuple[Head, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = self.folder / "log"
        self.log.write_bytes(bytes(SIZE))
        self.tier = tier_on(self.memory)
        self.loaded = self.tier.manifests.create(self.place.head())
        self.key = head_key(self.place.topic_id, self.place.partition)
        self._note()

    def _note(self) -> None:
        self.versions.append((self.loaded.head, self.memory.objects[self.key]))

    def commit(self, transition: Any) -> None:
        self.loaded = self.tier.manifests.commit(self.loaded, transition)
        self._note()

    def claim(self, tiering: Tiering) -> None:
        cluster = self.place.cluster_id
        self.commit(
            lambda head: transitions.claim(
                head, 1, tiering, cluster_id=cluster, broker_id=1, now_ms=1
            )
        )

    def copy(self, start: int, end: int, *, finished: bool = True) -> SegmentEntry:
        entry: SegmentEntry = self.place.segment(start, end, size_bytes=SIZE)
        self.commit(lambda head: transitions.start_copy(head, ONE, entry))
        data = SegmentData(self.log, SIZE, self.aux(entry))
        copied = self.tier.segments.copy_segment(entry, data)
        if finished:
            self.commit(
                lambda head: transitions.finish_copy(
                    head, ONE, entry, copied.custom_metadata, copied.digests
                )
            )
        return entry

    def aux(self, entry: SegmentEntry) -> Aux:
        """Repeat the manifest entry, which makes a repair possible without the head."""
        place, version = self.place, self.loaded.head.version
        origin = encode_origin(entry, version, place.topic, place.topic_id, place.partition)
        return Aux(
            offset_index=b"",
            time_index=b"",
            leader_epochs=b"",
            producer_snapshot=b"",
            origin=origin,
        )

    def merge(self, *parts: SegmentEntry, delete: bool, finished: bool = True) -> SegmentEntry:
        """Replace adjacent segments by one, and delete their objects."""
        ids = {part.segment_id for part in parts}
        start, end = parts[0].start_offset, parts[-1].end_offset_inclusive
        entry: SegmentEntry = self.place.segment(start, end, size_bytes=SIZE * len(parts))
        # The order of a merge: the entry, the objects, and one commit for all.
        self.commit(lambda head: transitions.start_merge(head, ONE, entry, ids))
        aux = self.aux(entry)
        log = [bytes(SIZE)] * len(parts)
        copied = self.tier.segments.store_segment(entry, log, lambda: aux)
        if finished:
            self.commit(
                lambda head: transitions.finish_merge(
                    head, ONE, entry, ids, copied.custom_metadata, copied.digests, now_ms=1
                )
            )
        # As after the delay: no object of a part is left.
        if delete:
            self.tier.segments.delete(parts)
            due = queries.pending_deletes(self.loaded.head, {}, now_ms=2, delay_ms=0)
            self.commit(lambda head: transitions.finish_delete(head, ONE, due))
        return entry

    def expire(self, offset: int, *, delete: bool) -> None:
        self.commit(
            lambda head: transitions.expire_to(head, ONE, offset, now_ms=1, delete_delay_ms=0)
        )
        if delete:
            pages = self.tier.manifests.pages(self.place.topic_id, self.place.partition)
            due = queries.pending_deletes(self.loaded.head, pages, now_ms=2, delay_ms=0)
            self.tier.segments.delete([item.entry for item in due])
            self.commit(lambda head: transitions.finish_delete(head, ONE, due))

    def live(self, tier: Tier | None = None) -> list[tuple[int, int, str]]:
        tier = tier or tier_on(self.memory)
        place = self.place
        head = tier.manifests.load(place.topic_id, place.partition).head
        pages = tier.manifests.pages(place.topic_id, place.partition)
        return [
            (entry.from_offset, entry.end_offset_inclusive, entry.key)
            for entry in queries.live_segments(head, pages)
        ]

    def evidence(self, **known: Any) -> Evidence:
        """Return what the leader knows: its epoch, and the newest head's bounds unless ``known``
        says otherwise."""
        head = self.versions[-1][0]
        facts = {
            "leader_epoch": 2,
            "end_offset": head.highest_remote_offset,
            "end_epoch": head.highest_remote_epoch,
            "tiered_epoch": head.tiering.epoch,
            "log_start_offset": head.log_start_offset,
        }
        return Evidence(**{**facts, **known})

    def load_knowing(self, tier: Tier) -> LoadedHead:
        """Load the head with the position of the newest one, as a leader that has seen it does."""
        known = self.versions[-1][0].position
        return tier.manifests.load(self.place.topic_id, self.place.partition, known)


@pytest.fixture
def world(place: Any, memory: Any, tmp_path: Path) -> RepairWorld:
    """Return a tier with sealed, expired and dropped pages, an abandoned copy and an unfinished
    one."""
    world = RepairWorld(place, memory, tmp_path)
    # Eleven segments fill more than two pages. Expiry drops the first five and trims the sixth.
    for n in range(11):
        world.copy(n * 10, n * 10 + 9)
    world.expire(55, delete=True)
    # A copy of 110 to 114 was abandoned, and the next one covers 110 to 119.
    abandoned_copy = world.copy(110, 114, finished=False)
    world.commit(lambda head: transitions.abandon_copy(head, ONE, abandoned_copy, now_ms=1))
    world.copy(110, 119)
    world.copy(115, 129)  # overlaps, as after a leader change
    for n in range(13, 22):
        world.copy(n * 10, n * 10 + 9)
    world.expire(60, delete=False)
    # The newest head has a copy in progress.
    world.copy(220, 229, finished=False)
    return world


def test_every_earlier_version_is_detected_and_repaired(world: RepairWorld) -> None:
    live_before, objects = world.live(), dict(world.memory.objects)
    # The leader has seen the newest version, and finds each of the earlier ones in turn.
    for head, body in world.versions[:-1]:
        world.memory.objects = {**objects, world.key: body}
        tier = tier_on(world.memory)
        with pytest.raises(HeadWentBack, match=f"version {head.version} .* was seen before") as old:
            world.load_knowing(tier)
        repaired = head_repair.repair(tier, old.value, world.evidence(), now_ms=9)
        assert repaired.head.version > world.versions[-1][0].version, head.version
        assert [row[:2] for row in world.live()] == [row[:2] for row in live_before], head.version
        assert repaired.head.leader_epoch == 2
        # A sweep deletes no live object.
        sweep(world.memory, delay_ms=0)
        assert {f"{key}.log" for _, _, key in world.live()} <= set(world.memory.objects)
        # Copying continues.
        tier.manifests.commit(repaired, lambda head: head)


@pytest.mark.parametrize("deleted", [False, True], ids=["parts-there", "parts-deleted"])
def test_merged_segments_replace_their_parts_in_every_earlier_version(
    place: Any, memory: Any, tmp_path: Path, *, deleted: bool
) -> None:
    """An older head names segments whose objects were deleted after a merge."""
    world = RepairWorld(place, memory, tmp_path)
    entries = [world.copy(n * 10, n * 10 + 9) for n in range(4)]
    first = world.merge(*entries[:3], delete=deleted)
    world.copy(40, 49)
    # Merged once more, together with the segment after it.
    world.merge(first, entries[3], delete=deleted)
    later = world.copy(50, 59)
    objects, served = dict(memory.objects), [(0, 39), (40, 49), (50, 59)]
    assert [row[:2] for row in world.live()] == served
    for head, body in world.versions[:-1]:
        memory.objects = {**objects, world.key: body}
        tier = tier_on(memory)
        with pytest.raises(HeadWentBack) as old:
            world.load_knowing(tier)
        head_repair.repair(tier, old.value, world.evidence(), now_ms=9)
        live = world.live()
        # Parts that are still there may serve their offsets again.
        if deleted:
            assert [row[:2] for row in live] == served, head.version
        assert [row[0] for row in live[1:]] == [row[1] + 1 for row in live[:-1]], head.version
        assert (live[0][0], live[-1][1]) == (0, 59), head.version
        sweep(memory, delay_ms=0)
        assert {f"{key}.log" for _, _, key in world.live()} <= set(memory.objects)
        assert later.log_key in memory.objects


def test_unfinished_merge_of_an_older_head_is_completed(
    place: Any, memory: Any, tmp_path: Path
) -> None:
    """The older head names the merge as in progress, and its parts are deleted."""
    world = RepairWorld(place, memory, tmp_path)
    entries = [world.copy(n * 10, n * 10 + 9) for n in range(3)]
    world.merge(*entries[:2], delete=True)
    started = next(body for head, body in world.versions if head.merging is not None)
    memory.objects[world.key] = started
    tier = tier_on(memory)
    with pytest.raises(HeadWentBack) as old:
        world.load_knowing(tier)
    head = head_repair.repair(tier, old.value, world.evidence(), now_ms=9).head
    assert [row[:2] for row in world.live()] == [(0, 19), (20, 29)]
    assert head.merging is head.copying is None


def test_a_sweep_deletes_nothing_live_under_an_earlier_head(world: RepairWorld) -> None:
    """No broker runs, and the sweep has never seen the newest head."""
    objects = dict(world.memory.objects)
    named = {f"{key}.log" for _, _, key in world.live()}
    for head, body in world.versions[:-1]:
        world.memory.objects = {**objects, world.key: body}
        report = sweep(world.memory, delay_ms=0)
        assert named <= set(world.memory.objects), head.version
        entries = {entry.log_key for entry in head.entries}
        # Without pages the head cannot name all live objects, so the sweep must report it.
        if head.copying is None and not named <= entries and not head.pages:
            assert any("older than its objects" in text for text in report.troubles), head.version


def test_a_remembered_head_is_restored_as_it_was(world: RepairWorld) -> None:
    newest = world.versions[-1][0]
    world.memory.objects[world.key] = world.versions[5][1]
    tier = tier_on(world.memory)
    with pytest.raises(HeadWentBack) as old:
        world.load_knowing(tier)
    repaired = head_repair.repair(tier, old.value, Evidence(head=newest), now_ms=9)
    assert repaired.head.entries == newest.entries
    assert repaired.head.pages == newest.pages


@pytest.mark.parametrize("policy", DisablePolicy)
@pytest.mark.parametrize("removed", [False, True], ids=["objects-there", "objects-gone"])
@pytest.mark.parametrize("enabled", [False, True], ids=["off", "on-again"])
def test_a_repair_restores_a_disablement(
    world: RepairWorld, policy: DisablePolicy, *, enabled: bool, removed: bool
) -> None:
    """The repaired head has no older tiered epoch, and no segment is live that a Delete removed."""
    by, cluster = Claim(1, 1), world.place.cluster_id
    tiering = Tiering(TieringState.DISABLING, 1, policy)
    if tiering.deletes:
        world.commit(
            lambda head: transitions.disable_delete(
                head,
                by,
                cluster_id=cluster,
                broker_id=1,
                log_start_offset=225,
                now_ms=1,
                delete_delay_ms=0,
            )
        )
        for key in [key for key in world.memory.objects if removed and key.startswith("data/")]:
            del world.memory.objects[key]
    else:
        world.claim(tiering)
    newest, live_before = world.versions[-1][0], world.live()
    if enabled:
        # Enabling again keeps the epoch, and the policy no longer applies.
        tiering = Tiering(TieringState.ENABLED, 1)
        for state in (TieringState.DISABLED, TieringState.ENABLED):
            world.claim(Tiering(state, 1, policy).in_force)
    # Versions with an empty tier, within the first page, and after the abandoned copy.
    for version in (2, 9, 30):
        world.memory.objects[world.key] = world.versions[version][1]
        tier = tier_on(world.memory)
        with pytest.raises(HeadWentBack) as old:
            world.load_knowing(tier)
        evidence = world.evidence(tiering=tiering, broker_id=2)
        head = head_repair.repair(tier, old.value, evidence, now_ms=9).head
        assert (head.tiering, head.broker_id, head.claim) == (tiering, 2, Claim(2, 1))
        assert head.floor_epoch == newest.floor_epoch
        assert [row[:2] for row in world.live()] == [row[:2] for row in live_before]
        world.versions.append((head, world.memory.objects[world.key]))


@pytest.mark.parametrize("suffix", [".log", ".aux"])
def test_a_missing_object_prevents_the_repair(world: RepairWorld, suffix: str) -> None:
    _, _, key = world.live()[-3]
    del world.memory.objects[key + suffix]
    world.memory.objects[world.key] = old = world.versions[8][1]
    before = dict(world.memory.objects)
    tier = tier_on(world.memory)
    with pytest.raises(HeadWentBack) as error:
        world.load_knowing(tier)
    # Neither the objects nor a remembered head can prove a complete line.
    for evidence in (world.evidence(), world.evidence(head=world.versions[-1][0])):
        with pytest.raises(HeadWentBack, match=r"no complete copy of offset|is missing"):
            head_repair.repair(tier, error.value, evidence, now_ms=9)
    assert world.memory.objects[world.key] == old
    assert {k for k in before if k.startswith("data/")} <= set(world.memory.objects)


def test_a_log_start_beyond_the_end_proves_an_empty_tier(world: RepairWorld) -> None:
    for key in [key for key in world.memory.objects if key.startswith("data/")]:
        del world.memory.objects[key]
    world.memory.objects[world.key] = world.versions[8][1]
    tier = tier_on(world.memory)
    with pytest.raises(HeadWentBack) as error:
        world.load_knowing(tier)
    # The leader's log starts behind the last copied offset, so no remote record is needed any
    # more.
    end = world.versions[-1][0].highest_remote_offset + 1
    evidence = world.evidence(log_start_offset=end)
    repaired = head_repair.repair(tier, error.value, evidence, now_ms=9).head
    assert (repaired.live_end, repaired.next_copy_offset) == (None, end)


def test_a_repair_rejects_objects_of_another_history(world: RepairWorld) -> None:
    world.memory.objects[world.key] = world.versions[8][1]
    tier = tier_on(world.memory)
    with pytest.raises(HeadWentBack) as error:
        world.load_knowing(tier)
    with pytest.raises(HeadWentBack, match="was of leader epoch 7 in the tier"):
        head_repair.repair(tier, error.value, world.evidence(end_epoch=7), now_ms=9)


def test_a_commit_on_an_older_head_is_rejected(world: RepairWorld) -> None:
    body = world.memory.objects[world.key] = world.versions[8][1]
    with pytest.raises(HeadWentBack):
        world.commit(
            lambda head: transitions.expire_to(head, ONE, 200, now_ms=1, delete_delay_ms=0)
        )
    assert world.memory.objects[world.key] == body


def test_a_restore_repairs_heads_from_the_objects(world: RepairWorld) -> None:
    place = world.place
    topic = TopicObject(
        topic_id=place.topic_id, name=place.topic, cluster_id=place.cluster_id, partitions=4
    )
    world.tier.topics.put(topic)
    expected_end = (229, 1)  # complete, although its copy was not finished: no other copy can exist
    world.memory.objects[world.key] = world.versions[-9][1]
    (found,) = restorable(tier_on(world.memory))
    assert found.heads[place.partition].live_end == expected_end
    later = next(key for key in world.memory.objects if "00000000000000000200-" in key)
    # Without the segment at 200 the line has a gap, which a restore must not hide.
    del world.memory.objects[later]
    with pytest.raises(HeadWentBack, match="does not continue the line"):
        list(restorable(tier_on(world.memory)))


def test_a_copy_of_a_newer_version_leaves_the_age_of_the_head_unknown(
    place: Any, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older version must not call a head current that was replaced by an older one."""
    world = RepairWorld(place, memory, tmp_path)
    world.copy(0, 9)
    body = memory.objects[world.key]
    with monkeypatch.context() as newer:
        newer.setattr(auxiliary, "_VERSION", 5)
        entry = world.copy(10, 19)
    memory.objects[world.key] = body
    tier, error = tier_on(memory), f"{entry.aux_key} has format version 5"
    with pytest.raises(ObjectVersionUnsupported, match=error):
        head_repair.check_against_objects(tier, place.topic_id, place.partition)
    # Nor may a repair leave its records out.
    with pytest.raises(HeadWentBack) as old:
        world.load_knowing(tier)
    with pytest.raises(ObjectVersionUnsupported, match=error):
        head_repair.repair(tier, old.value, world.evidence(), now_ms=9)


def test_a_page_of_another_version_is_rejected(world: RepairWorld) -> None:
    place = world.place
    refs = world.versions[-1][0].pages
    first, second = (page_key(place.topic_id, place.partition, ref.name) for ref in refs[-2:])
    body = world.memory.objects[second]
    name = refs[-2].name.encode()
    # The page has the expected name and another content.
    world.memory.objects[first] = body.replace(refs[-1].name.encode(), name)
    with pytest.raises(Exception, match="is not the one that the head refers to"):
        world.live()


def test_restoring_pages_reads_each_segment_once(
    place: Any, memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = RepairWorld(place, memory, tmp_path)
    for n in range(60):
        world.copy(n * 10, n * 10 + 9)
    head = world.loaded.head
    lost = {page_key(place.topic_id, place.partition, ref.name) for ref in head.pages}
    assert len(lost) > 3
    # All pages are lost. Their entries can be read from the auxiliary objects.
    kept = {key: memory.objects.pop(key) for key in lost}
    read: list[str] = []
    get = type(memory).get
    monkeypatch.setattr(
        type(memory), "get", lambda self, key: (read.append(key), get(self, key))[1]
    )
    head_repair.restore_pages(tier_on(memory), head)
    assert {key: memory.objects[key] for key in lost} == kept
    data = [key for key in read if key.startswith("data/")]
    assert len(data) == len(set(data)) <= 60


def test_an_audit_reports_a_head_that_is_older_than_its_objects(world: RepairWorld) -> None:
    place = world.place
    topic = TopicObject(
        topic_id=place.topic_id, name=place.topic, cluster_id=place.cluster_id, partitions=4
    )
    # The unfinished copy is no finding of the newest head.
    assert segments.plan(tier_on(world.memory), topic).findings == ()
    world.memory.objects[world.key] = world.versions[-9][1]
    (finding,) = segments.plan(tier_on(world.memory), topic).findings
    assert (finding.kind, finding.partition) == (FindingKind.MANIFEST, place.partition)
    assert world.key in finding.detail
    assert "the head was replaced by an older copy of itself" in finding.detail
