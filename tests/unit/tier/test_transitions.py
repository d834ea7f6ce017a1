"""Every transition of the head: its effect, and the cases that it rejects."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import (
    MARKS_MAX,
    Claim,
    Diverged,
    Head,
    IllegalTransition,
    ManifestFenced,
    ManifestPage,
    TopicDeleted,
)
from tidemark.tier.metadata.segment import SegmentEntry, SegmentState
from tidemark.tiering import DisablePolicy, Tiering, TieringState

ONE = Claim(1, 0)
CLUSTER = "cluster-1"
Pages = dict[str, ManifestPage]


def claimed(
    head: Head,
    by: Claim,
    state: TieringState = TieringState.ENABLED,
    policy: DisablePolicy | None = None,
) -> Head:
    tiering = Tiering(state, by.tiered_epoch, policy)
    return transitions.claim(
        head, by.leader_epoch, tiering, cluster_id=CLUSTER, broker_id=2, now_ms=50
    )


def copied(head: Head, *entries: SegmentEntry, by: Claim = ONE) -> Head:
    for entry in entries:
        head = transitions.finish_copy(transitions.start_copy(head, by, entry), by, entry, b"x")
    return head


def deleted_all(head: Head, by: Claim, log_start: int, now_ms: int = 60) -> Head:
    return transitions.disable_delete(
        head,
        by,
        cluster_id=CLUSTER,
        broker_id=2,
        log_start_offset=log_start,
        now_ms=now_ms,
        delete_delay_ms=10,
    )


expire = partial(transitions.expire_to, now_ms=60, delete_delay_ms=10)


def ranges(head: Head, start: int, until: int, pages: Pages | None = None) -> list[tuple[int, int]]:
    plan = queries.plan(head, pages or {}, start, until)
    return [(part.from_offset, part.to_offset_inclusive) for part in plan]


class TestClaim:
    def test_a_claim_sets_both_epochs_state_and_broker(self, place: Any) -> None:
        head = claimed(place.head(), Claim(4, 2))
        assert (head.claim, head.broker_id) == (Claim(4, 2), 2)

    @pytest.mark.parametrize("by", [Claim(0, 5), Claim(9, 1), Claim(0, 0)])
    def test_a_claim_with_a_lower_epoch_is_fenced(self, place: Any, by: Claim) -> None:
        with pytest.raises(ManifestFenced, match=r"flights-3: leader epoch .* superseded .* stop"):
            claimed(place.head(leader_epoch=1, tiered_epoch=2), by)

    def test_a_repeated_claim_changes_nothing(self, place: Any) -> None:
        head = claimed(place.head(), Claim(4, 2))
        assert claimed(head, Claim(4, 2)) is head

    def test_a_claim_of_another_cluster_is_rejected(self, place: Any) -> None:
        head = replace(place.head(), cluster_id="another")
        with pytest.raises(IllegalTransition, match="belongs to cluster another"):
            claimed(head, Claim(4, 2))

    def test_a_claim_marks_the_copy_of_the_fenced_leader(self, place: Any) -> None:
        head = transitions.start_copy(place.head(), ONE, place.segment(0, 9))
        after = claimed(head, Claim(2, 0))
        (entry,) = after.entries
        assert (entry.state, entry.marked_at_ms) == (SegmentState.DELETE_STARTED, 50)

    def test_a_repeated_claim_keeps_the_copy_in_progress(self, place: Any) -> None:
        head = transitions.start_copy(place.head(), ONE, place.segment(0, 9))
        assert claimed(head, ONE).copying is not None

    def test_state_never_moves_back_within_a_tiered_epoch(self, place: Any) -> None:
        # KIP-950's order within one tiered epoch: DISABLING, DISABLED, ENABLED.
        retain = DisablePolicy.RETAIN
        head = claimed(place.head(), Claim(1, 1), TieringState.DISABLING, retain)
        head = claimed(head, Claim(1, 1), TieringState.DISABLED, retain)
        with pytest.raises(ManifestFenced, match="never goes back to DISABLING"):
            claimed(head, Claim(2, 1), TieringState.DISABLING, retain)
        head = claimed(head, Claim(2, 1), TieringState.ENABLED)
        with pytest.raises(ManifestFenced, match="never goes back to DISABLED"):
            claimed(head, Claim(3, 1), TieringState.DISABLED, retain)

    def test_the_policy_is_frozen_with_its_tiered_epoch(self, place: Any) -> None:
        head = claimed(place.head(), Claim(1, 1), TieringState.DISABLING, DisablePolicy.RETAIN)
        with pytest.raises(IllegalTransition, match="a new policy needs a new tiered epoch"):
            claimed(head, Claim(1, 1), TieringState.DISABLING, DisablePolicy.DELETE)
        with pytest.raises(IllegalTransition, match="a new policy needs a new tiered epoch"):
            deleted_all(head, Claim(1, 1), 5)

    def test_a_delete_needs_its_own_transition(self, place: Any) -> None:
        with pytest.raises(IllegalTransition, match="use disable_delete"):
            claimed(place.head(), Claim(1, 1), TieringState.DISABLING, DisablePolicy.DELETE)

    def test_a_topic_never_tiered_has_nothing_to_claim(self, place: Any) -> None:
        with pytest.raises(IllegalTransition, match="state NONE"):
            claimed(place.head(), ONE, TieringState.NONE)


Change = Callable[[Head, Claim, SegmentEntry], Head]
CHANGES: list[Change] = [
    transitions.start_copy,
    lambda head, by, entry: transitions.finish_copy(head, by, entry, None),
    lambda head, by, entry: transitions.abandon_copy(head, by, entry, now_ms=1),
    lambda head, by, entry: expire(head, by, 5),
    lambda head, by, entry: transitions.finish_delete(head, by, []),
    lambda head, by, entry: deleted_all(head, by, 5),
]


class TestHolder:
    @pytest.mark.parametrize("change", CHANGES)
    @pytest.mark.parametrize("newer", [Claim(2, 0), Claim(1, 1), Claim(2, 1)])
    def test_a_superseded_leader_is_fenced(self, place: Any, change: Change, newer: Claim) -> None:
        entry = place.segment(0, 9)
        head = claimed(transitions.start_copy(place.head(), ONE, entry), newer)
        with pytest.raises(ManifestFenced):
            change(head, ONE, entry)

    @pytest.mark.parametrize("change", CHANGES[:5])
    def test_a_newer_leader_must_claim_the_head_first(self, place: Any, change: Change) -> None:
        by = Claim(2, 0)
        with pytest.raises(IllegalTransition, match="claim it first"):
            change(place.head(), by, place.segment(0, 9, by))

    @pytest.mark.parametrize("change", CHANGES)
    def test_a_tombstone_rejects_every_leader(self, place: Any, change: Change) -> None:
        head = transitions.make_tombstone(place.head(), now_ms=7)
        with pytest.raises(TopicDeleted):
            change(head, ONE, place.segment(0, 9))


class TestCopy:
    def test_a_copy_is_live_only_when_finished(self, place: Any) -> None:
        entry = place.segment(0, 9)
        started = transitions.start_copy(place.head(), ONE, entry)
        assert (started.highest_remote_offset, started.copying) == (-1, entry)
        assert queries.find(started, {}, 5) is None
        done = transitions.finish_copy(started, ONE, entry, b"\x00\xff")
        assert (done.highest_remote_offset, done.highest_remote_epoch) == (9, 1)
        found = queries.find(done, {}, 5)
        assert found is not None
        assert found.custom_metadata == b"\x00\xff"

    def test_every_step_of_a_copy_is_idempotent(self, place: Any) -> None:
        entry = place.segment(0, 9)
        started = transitions.start_copy(place.head(), ONE, entry)
        assert transitions.start_copy(started, ONE, entry) is started
        done = transitions.finish_copy(started, ONE, entry, b"x")
        assert transitions.finish_copy(done, ONE, entry, b"x") is done
        abandoned = transitions.abandon_copy(started, ONE, entry, now_ms=9)
        assert transitions.abandon_copy(abandoned, ONE, entry, now_ms=10) is abandoned

    def test_only_one_copy_is_in_progress(self, place: Any) -> None:
        head = transitions.start_copy(place.head(), ONE, place.segment(0, 9))
        with pytest.raises(IllegalTransition, match="abandon it first"):
            transitions.start_copy(head, ONE, place.segment(0, 9))

    def test_finishing_needs_copy_started(self, place: Any) -> None:
        entry = place.segment(0, 9)
        head = transitions.start_copy(place.head(), ONE, entry)
        abandoned = transitions.abandon_copy(head, ONE, entry, now_ms=9)
        for other in (abandoned, place.head()):
            with pytest.raises(IllegalTransition, match="given up meanwhile"):
                transitions.finish_copy(other, ONE, entry, None)

    def test_a_finished_copy_cannot_be_abandoned(self, place: Any) -> None:
        entry = place.segment(0, 9)
        with pytest.raises(IllegalTransition, match="only expiry removes it"):
            transitions.abandon_copy(copied(place.head(), entry), ONE, entry, now_ms=9)

    def test_finishing_twice_with_other_metadata_is_rejected(self, place: Any) -> None:
        entry = place.segment(0, 9)
        with pytest.raises(IllegalTransition, match="other custom metadata"):
            transitions.finish_copy(copied(place.head(), entry), ONE, entry, b"other")

    def test_no_copy_starts_unless_tiering_is_enabled(self, place: Any) -> None:
        by = Claim(1, 1)
        head = claimed(place.head(), by, TieringState.DISABLING, DisablePolicy.RETAIN)
        with pytest.raises(IllegalTransition, match="enable it first"):
            transitions.start_copy(head, by, place.segment(0, 9, by))

    def test_an_entry_of_another_claim_is_rejected(self, place: Any) -> None:
        with pytest.raises(IllegalTransition, match="epochs are not those of the claim"):
            transitions.start_copy(place.head(), ONE, place.segment(0, 9, Claim(0, 0)))


class TestMerge:
    @staticmethod
    def started(place: Any, head: Head, parts: int) -> tuple[Head, SegmentEntry, frozenset[Any]]:
        """Start a merge of the first segments, of ten offsets each."""
        entry = place.segment(0, parts * 10 - 1, size_bytes=100 * parts)
        ids = frozenset(e.segment_id for e in head.finished_entries[:parts])
        return transitions.start_merge(head, ONE, entry, ids), entry, ids

    @staticmethod
    def lined(place: Any, count: int = 4) -> Head:
        return copied(place.head(), *(place.segment(n * 10, n * 10 + 9) for n in range(count)))

    def test_one_commit_replaces_the_parts(self, place: Any) -> None:
        before = self.lined(place)
        head, entry, ids = self.started(place, before, 3)
        # Until then readers use the parts.
        assert ranges(head, 0, 99) == ranges(before, 0, 99)
        head = transitions.finish_merge(head, ONE, entry, ids, b"m", now_ms=70)
        assert ranges(head, 0, 99) == [(0, 29), (30, 39)]
        assert head.live_end == before.live_end
        # The objects of the parts stay for the delay.
        assert queries.pending_deletes(head, {}, now_ms=79, delay_ms=10) == ()
        due = queries.pending_deletes(head, {}, now_ms=80, delay_ms=10)
        assert {item.entry.segment_id for item in due} == ids
        # Their location is recorded until they are deleted.
        assert {item.entry.custom_metadata for item in due} == {b"x"}
        head = transitions.finish_delete(head, ONE, due)
        assert len(head.entries) == 2

    def test_every_step_is_idempotent(self, place: Any) -> None:
        head, entry, ids = self.started(place, self.lined(place), 3)
        assert transitions.start_merge(head, ONE, entry, ids) is head
        head = transitions.finish_merge(head, ONE, entry, ids, b"m", now_ms=70)
        assert transitions.finish_merge(head, ONE, entry, ids, b"m", now_ms=99) is head
        with pytest.raises(IllegalTransition, match="other custom metadata"):
            transitions.finish_merge(head, ONE, entry, ids, b"y", now_ms=99)

    def test_a_copy_may_run_beside_a_merge(self, place: Any) -> None:
        head, entry, ids = self.started(place, self.lined(place), 3)
        assert (head.merging, head.copying) == (entry, None)
        new = place.segment(40, 49)
        head = transitions.start_copy(head, ONE, new)
        assert (head.merging, head.copying) == (entry, new)
        head = transitions.finish_copy(head, ONE, new, b"x")
        head = transitions.finish_merge(head, ONE, entry, ids, b"m", now_ms=70)
        assert ranges(head, 0, 99) == [(0, 29), (30, 39), (40, 49)]

    def test_only_one_merge_is_in_progress(self, place: Any) -> None:
        head, _, _ = self.started(place, self.lined(place), 3)
        with pytest.raises(IllegalTransition, match="abandon it first"):
            self.started(place, head, 2)

    def test_a_new_claim_gives_up_the_merge(self, place: Any) -> None:
        head, entry, ids = self.started(place, self.lined(place), 3)
        newer = claimed(head, Claim(2, 0))
        assert newer.merging is None
        assert ranges(newer, 0, 99) == ranges(head, 0, 99)
        with pytest.raises(ManifestFenced):
            transitions.finish_merge(newer, ONE, entry, ids, b"m", now_ms=70)
        # The abandoned one is deleted like any marked segment.
        due = queries.pending_deletes(newer, {}, now_ms=99, delay_ms=0)
        assert [item.entry.segment_id for item in due] == [entry.segment_id]

    def test_nothing_is_merged_unless_tiering_is_enabled(self, place: Any) -> None:
        head, entry, ids = self.started(place, self.lined(place), 3)
        retained = claimed(head, Claim(1, 1), TieringState.DISABLING, DisablePolicy.RETAIN)
        with pytest.raises(IllegalTransition, match="nothing new is copied"):
            transitions.finish_merge(retained, Claim(1, 1), entry, ids, b"m", now_ms=70)

    @pytest.mark.parametrize("log_start", [1, 10, 15, 40])
    def test_deleted_records_end_the_merge(self, place: Any, log_start: int) -> None:
        """Deleted records would be in the store for longer."""
        head, entry, ids = self.started(place, self.lined(place), 3)
        head = expire(head, ONE, log_start)
        with pytest.raises(IllegalTransition, match="they have changed"):
            transitions.finish_merge(head, ONE, entry, ids, b"m", now_ms=70)
        head = transitions.abandon_copy(head, ONE, entry, now_ms=70)
        assert head.merging is head.copying is None

    def test_sealed_parts_end_the_merge(self, place: Any) -> None:
        head, entry, ids = self.started(place, self.lined(place), 3)
        sealed = transitions.seal(head, "p0", 1)
        assert sealed is not None
        with pytest.raises(IllegalTransition, match="they have changed"):
            transitions.finish_merge(sealed[0], ONE, entry, ids, b"m", now_ms=70)

    def test_parts_must_be_adjacent_and_complete(self, place: Any) -> None:
        head = self.lined(place)
        entry = place.segment(0, 29)
        first, second, third, fourth = (e.segment_id for e in head.finished_entries)
        for ids in ({first, third}, {second, third, fourth}, {first, second}, {first}, set()):
            with pytest.raises(IllegalTransition, match="they have changed"):
                transitions.start_merge(head, ONE, entry, ids)

    def test_a_merge_of_an_expired_line_counts_as_a_copy_to_abandon(self, place: Any) -> None:
        head, entry, _ = self.started(place, self.lined(place), 3)
        head = expire(head, ONE, 40)
        assert head.copying == entry
        head = transitions.abandon_copy(head, ONE, entry, now_ms=70)
        assert copied(head, place.segment(40, 49)).live_end == (49, 1)


class TestLine:
    def test_a_gap_is_rejected(self, place: Any) -> None:
        head = copied(place.head(), place.segment(0, 9))
        with pytest.raises(IllegalTransition, match=r"hole behind 9; copy the segment .* 10"):
            transitions.start_copy(head, ONE, place.segment(11, 20))

    def test_an_already_copied_range_is_rejected(self, place: Any) -> None:
        head = copied(place.head(), place.segment(0, 9))
        with pytest.raises(IllegalTransition, match="copy from 10"):
            transitions.start_copy(head, ONE, place.segment(5, 9))

    def test_an_overlapping_segment_is_trimmed(self, place: Any) -> None:
        head = copied(place.head(), place.segment(0, 9))
        # The new leader's segment boundaries differ: its segment begins at 5, but 5 to 9 are
        # copied already.
        two = Claim(2, 0)
        head = copied(claimed(head, two), place.segment(5, 14, two, ((1, 5), (2, 12))), by=two)
        assert ranges(head, 0, 100) == [(0, 9), (10, 14)]
        assert (head.highest_remote_offset, head.highest_remote_epoch) == (14, 2)

    def test_a_segment_may_start_below_the_log_start(self, place: Any) -> None:
        head = copied(place.head(log_start=7), place.segment(5, 14))
        assert head.remote_log_start_offset == 7
        assert ranges(head, 7, 100) == [(7, 14)]

    def test_a_new_line_may_start_anywhere(self, place: Any) -> None:
        head = expire(copied(place.head(), place.segment(0, 9)), ONE, 30)
        assert head.highest_remote_offset == -1
        assert head.next_copy_offset == 30
        head = copied(head, place.segment(25, 39), place.segment(40, 49))
        assert ranges(head, 30, 100) == [(30, 39), (40, 49)]

    def test_the_tier_may_start_above_the_log_start(self, place: Any) -> None:
        # Offsets 0 to 19 exist on brokers only, for example because tiering was enabled later.
        head = copied(place.head(), place.segment(20, 29))
        assert (head.remote_log_start_offset, head.log_start_offset) == (20, 0)
        assert queries.find(head, {}, 10) is None
        with pytest.raises(queries.TierOffsetOutOfRange, match="the tier begins at 20") as caught:
            ranges(head, 10, 100)
        assert caught.value.log_start_offset == 0
        head = copied(expire(head, ONE, 40), place.segment(60, 69))
        assert head.remote_log_start_offset == 60
        assert ranges(head, 60, 100) == [(60, 69)]

    def test_an_expired_segment_is_rejected(self, place: Any) -> None:
        entry = place.segment(0, 9)
        head = expire(transitions.start_copy(place.head(), ONE, entry), ONE, 30)
        with pytest.raises(IllegalTransition, match="it is expired"):
            transitions.finish_copy(head, ONE, entry, None)

    @pytest.mark.parametrize(
        ("start", "epochs"),
        [(10, ((2, 10),)), (5, ((3, 5), (4, 12))), (5, ((4, 5),)), (5, ((2, 5), (4, 12)))],
    )
    def test_a_segment_of_another_history_is_rejected(
        self, place: Any, start: int, epochs: tuple[tuple[int, int], ...]
    ) -> None:
        by = Claim(4, 0)
        head = copied(place.head(4), place.segment(0, 9, by, ((1, 0), (3, 4))), by=by)
        # Only this segment continues the history: epoch 3 is the one that wrote offset 9.
        if epochs == ((3, 5), (4, 12)):
            assert copied(head, place.segment(start, 14, by, epochs), by=by) != head
            return
        with pytest.raises(Diverged, match="take this replica's log over from the tier"):
            transitions.start_copy(head, by, place.segment(start, 14, by, epochs))


class TestExpire:
    def test_expiry_marks_complete_segments_and_raises_the_log_start(self, place: Any) -> None:
        head = copied(place.head(), *(place.segment(n, n + 9) for n in (0, 10, 20)))
        head = expire(head, ONE, 15)
        states = [queries.state_of(head, entry) for entry in head.entries]
        finished = SegmentState.COPY_FINISHED
        assert states == [SegmentState.DELETE_STARTED, finished, finished]
        assert head.log_start_offset == 15
        assert ranges(head, 15, 30) == [(15, 19), (20, 29)]
        with pytest.raises(queries.TierOffsetOutOfRange, match="the log starts at 15"):
            ranges(head, 14, 30)

    def test_expiry_never_moves_back_and_is_idempotent(self, place: Any) -> None:
        head = expire(place.head(), ONE, 15)
        assert expire(head, ONE, 15) is head
        assert expire(head, ONE, 3) is head

    def test_expiry_costs_the_same_for_any_number_of_segments(self, place: Any) -> None:
        head = copied(place.head(), *(place.segment(n, n) for n in range(200)))
        after = expire(head, ONE, 150)
        # One mark covers all expired entries, none of which is rewritten.
        assert after.entries is head.entries
        assert len(after.marks) == 1

    def test_expiry_continues_while_tiering_is_disabled(self, place: Any) -> None:
        by = Claim(1, 1)
        head = copied(place.head(), place.segment(0, 9), place.segment(10, 19))
        head = claimed(head, by, TieringState.DISABLING, DisablePolicy.RETAIN)
        assert ranges(expire(head, by, 10), 10, 99) == [(10, 19)]

    def test_marks_are_merged_without_shortening_a_delay(self, place: Any) -> None:
        head = copied(place.head(), *(place.segment(n, n) for n in range(500)))
        first_marked: dict[int, int] = {}
        # 400 expiries at different times need more marks than a head may have, so old ones are
        # merged.
        for step in range(1, 400):
            head = transitions.expire_to(
                head, ONE, step, now_ms=1000 + step, delete_delay_ms=10_000
            )
            first_marked[step - 1] = 1000 + step
        assert len(head.marks) <= MARKS_MAX
        for entry in head.entries[:399]:
            since = queries.marked_at(head, entry)
            assert since is not None
            assert since >= first_marked[entry.start_offset]

    def test_frequent_expiry_does_not_delay_deletions_forever(self, place: Any) -> None:
        head = copied(place.head(), *(place.segment(n, n) for n in range(400)))
        delay, waits = 3_000_000, []
        for step in range(1, 400):
            now = step * 30_000
            head = transitions.expire_to(head, ONE, step, now_ms=now, delete_delay_ms=delay)
            due = queries.pending_deletes(head, {}, now_ms=now, delay_ms=delay)
            waits += [now - (item.entry.start_offset + 1) * 30_000 for item in due]
            head = transitions.finish_delete(head, ONE, due)
        assert len(waits) > 200
        assert delay <= min(waits)
        # Merging marks may postpone a deletion, but by no more than another delay.
        assert max(waits) <= 2 * delay + 60_000


class TestDisableDelete:
    def test_a_delete_is_one_commit(self, place: Any) -> None:
        head = copied(place.head(), place.segment(0, 9), place.segment(10, 19))
        by = Claim(1, 1)
        head = deleted_all(head, by, 15)
        assert head.claim == by
        assert head.tiering == Tiering(TieringState.DISABLING, 1, DisablePolicy.DELETE)
        assert (head.log_start_offset, head.floor_epoch) == (15, 1)
        assert {queries.state_of(head, e) for e in head.entries} == {SegmentState.DELETE_STARTED}
        assert head.highest_remote_offset == -1
        assert queries.find(head, {}, 17) is None
        assert ranges(head, 15, 100) == []

    def test_a_repeated_delete_changes_nothing_and_a_new_leader_may_raise_it(
        self, place: Any
    ) -> None:
        head = deleted_all(copied(place.head(), place.segment(0, 9)), Claim(1, 1), 5)
        assert deleted_all(head, Claim(1, 1), 5) is head
        assert deleted_all(head, Claim(1, 1), 3) is head
        later = deleted_all(head, Claim(2, 1), 8)
        assert (later.claim, later.log_start_offset) == (Claim(2, 1), 8)

    def test_a_late_delete_after_reenabling_is_fenced(self, place: Any) -> None:
        by = Claim(1, 1)
        head = deleted_all(place.head(), by, 5)
        head = claimed(head, by, TieringState.DISABLED, DisablePolicy.DELETE)
        # Tiering is enabled again. A delayed Delete of the former disablement must not take
        # effect.
        head = claimed(head, by, TieringState.ENABLED)
        with pytest.raises(ManifestFenced):
            deleted_all(head, by, 50)

    def test_a_new_line_after_a_delete_does_not_include_the_old_one(self, place: Any) -> None:
        head = copied(place.head(), *(place.segment(n, n + 9) for n in (0, 10, 20)))
        by = Claim(1, 1)
        head = claimed(deleted_all(head, by, 15), by)
        assert head.next_copy_offset == 15
        # The old entries are still there until their deletion, and overlap the new ones.
        head = copied(head, place.segment(12, 17, by), place.segment(18, 40, by), by=by)
        assert ranges(head, 15, 99) == [(15, 17), (18, 40)]
        assert queries.totals(head, {}) == queries.Totals(2, 200, 3, 300)

    def test_a_delete_after_a_retain_needs_a_new_tiered_epoch(self, place: Any) -> None:
        head = copied(place.head(), place.segment(0, 9))
        head = claimed(head, Claim(1, 1), TieringState.DISABLED, DisablePolicy.RETAIN)
        assert ranges(head, 0, 99) == [(0, 9)]
        head = deleted_all(head, Claim(1, 2), 10)
        assert ranges(head, 10, 99) == []


class TestDelete:
    def test_only_marked_segments_are_deleted(self, place: Any) -> None:
        head = copied(place.head(), place.segment(0, 9))
        with pytest.raises(IllegalTransition, match="not marked for deletion"):
            transitions.finish_delete(head, ONE, [transitions.PendingDelete(head.entries[0])])

    def test_a_segment_is_not_deleted_before_the_delay(self, place: Any) -> None:
        head = expire(copied(place.head(), place.segment(0, 9)), ONE, 10)
        assert queries.pending_deletes(head, {}, now_ms=60 + 99, delay_ms=100) == ()
        (item,) = queries.pending_deletes(head, {}, now_ms=60 + 100, delay_ms=100)
        head = transitions.finish_delete(head, ONE, [item])
        assert head.is_empty
        assert transitions.finish_delete(head, ONE, [item]) is head

    def test_deleting_without_a_claim_needs_a_tombstone(self, place: Any) -> None:
        head = copied(place.head(), place.segment(0, 9))
        with pytest.raises(IllegalTransition, match="only a tombstone"):
            transitions.finish_delete(head, None, [])
        started = transitions.start_copy(head, ONE, place.segment(10, 19))
        # The topic is deleted: everything, even an unfinished copy, is marked and may be deleted
        # without a leader.
        head = transitions.make_tombstone(started, now_ms=70)
        assert transitions.make_tombstone(head, now_ms=99) is head
        due = queries.pending_deletes(head, {}, now_ms=70, delay_ms=0)
        assert len(due) == 2
        assert transitions.finish_delete(head, None, due).is_empty


class TestSeal:
    def sealed(self, place: Any, count: int, per_page: int) -> tuple[Head, Pages]:
        head, pages = place.head(), dict[str, ManifestPage]()
        for n in range(count):
            head = copied(head, place.segment(n * 10, n * 10 + 9))
            result = transitions.seal(head, f"p{head.next_page}", per_page)
            if result is not None:
                head, page = result
                pages[page.name] = page
        return head, pages

    def test_pages_contain_the_oldest_segments_and_readers_see_one_line(self, place: Any) -> None:
        head, pages = self.sealed(place, 10, 3)
        assert [ref.name for ref in head.pages] == ["p0", "p1", "p2"]
        assert len(head.entries) == 1
        assert ranges(head, 0, 100, pages) == [(n * 10, n * 10 + 9) for n in range(10)]
        assert ranges(head, 35, 52, pages) == [(35, 39), (40, 49), (50, 51)]
        assert queries.totals(head, pages) == queries.Totals(10, 1000, 0, 0)

    def test_only_needed_pages_are_read(self, place: Any) -> None:
        head, pages = self.sealed(place, 10, 3)
        assert ranges(head, 61, 100, {"p2": pages["p2"]}) == [
            (61, 69),
            (70, 79),
            (80, 89),
            (90, 99),
        ]
        head = expire(head, ONE, 45)
        assert queries.totals(head, {"p1": pages["p1"]}) == queries.Totals(6, 600, 4, 400)

    @pytest.mark.parametrize(
        ("offset", "size_bytes"), [(0, 0), (45, 0), (49, 0), (50, 100), (75, 300), (100, 600)]
    )
    def test_bytes_below_an_offset_are_those_of_complete_live_segments(
        self, place: Any, offset: int, size_bytes: int
    ) -> None:
        """Segments have ten offsets and 100 bytes. Those below 40 are expired."""
        head, pages = self.sealed(place, 10, 3)
        assert queries.bytes_below(head, pages, 35) == 300
        head = expire(head, ONE, 40)
        head = transitions.start_copy(head, ONE, place.segment(100, 109))
        assert queries.bytes_below(head, pages, offset) == size_bytes
        assert queries.bytes_below(head, pages, 110) == 600, "a copy in progress does not count"

    def test_a_copy_in_progress_stays_in_the_head(self, place: Any) -> None:
        head, _ = self.sealed(place, 3, 3)
        started = transitions.start_copy(head, ONE, place.segment(30, 39))
        assert transitions.seal(started, "p", 3) is None
        (entry,) = [e for e in started.entries if e.state is SegmentState.COPY_STARTED]
        done = transitions.finish_copy(started, ONE, entry, None)
        result = transitions.seal(done, "p", 3)
        assert result is not None
        assert [e.start_offset for e in result[0].entries] == [30]

    def test_a_page_is_deleted_when_all_of_its_segments_are(self, place: Any) -> None:
        head, pages = self.sealed(place, 10, 3)
        head = expire(head, ONE, 40)
        due = queries.pending_deletes(head, pages, now_ms=999, delay_ms=0)
        assert [item.entry.start_offset for item in due] == [0, 10, 20, 30]
        # Segments of a page are deleted one by one. The page refers to them by a bit mask until
        # all are deleted.
        head = transitions.finish_delete(head, ONE, [due[1], due[3]])
        assert queries.totals(head, pages) == queries.Totals(6, 600, 2, 200)
        due = queries.pending_deletes(head, pages, now_ms=999, delay_ms=0)
        assert [item.entry.start_offset for item in due] == [0, 20]
        head = transitions.finish_delete(head, ONE, due)
        assert (head.trash, [ref.name for ref in head.pages]) == (("p0",), ["p1", "p2"])
        assert ranges(head, 40, 100, pages) == [(n * 10, n * 10 + 9) for n in range(4, 10)]

    def test_find_by_timestamp(self, place: Any) -> None:
        head, pages = self.sealed(place, 10, 3)
        # Each segment's largest timestamp is ten times its last offset.
        for timestamp, start in ((0, 0), (90, 0), (91, 10), (555, 50), (990, 90)):
            found = queries.find_by_timestamp(head, pages, timestamp)
            assert found is not None
            assert found.start_offset == start
        assert queries.find_by_timestamp(head, pages, 991) is None
        found = queries.find_by_timestamp(expire(head, ONE, 30), pages, 0)
        assert found is not None
        assert found.start_offset == 30
