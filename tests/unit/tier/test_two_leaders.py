"""Random interleavings of two leaders with old and new epochs, compared with a model. The model
keeps one record per segment with an explicit state and the time it was marked, a set of existing
objects, and its own rule of who may write. Every operation runs on the head and on the model.
Both must agree on the outcome, and after every step the readers' view of the head (with sealed
pages) must agree with the model."""

import itertools
import uuid
from collections.abc import Callable
from dataclasses import dataclass

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.effort import examples
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.codec import decode_head, decode_page, encode_head, encode_page
from tidemark.tier.metadata.head import (
    Claim,
    Head,
    IllegalTransition,
    ManifestError,
    ManifestFenced,
    ManifestPage,
    new_head,
)
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tiering import DisablePolicy, Tiering, TieringState

TOPIC, TOPIC_ID, CLUSTER = "t", uuid.UUID(int=7), "c"
PAGE_ENTRIES = 2
DELAY_MS = 50
LEADERS = st.integers(0, 1)


@dataclass
class ModelSegment:
    """The model's record of a segment."""

    entry: SegmentEntry
    answers_from: int
    by: Claim
    state: str = "copying"
    marked_ms: int | None = None

    @property
    def end(self) -> int:
        return self.entry.end_offset_inclusive


@dataclass
class Leader:
    """View of one broker; ``copying`` is its upload in progress, ``merging`` that of a merge with
    the segments that it replaces."""

    claim: Claim
    state: TieringState
    policy: DisablePolicy | None
    copying: SegmentEntry | None = None
    merging: tuple[SegmentEntry, frozenset[uuid.UUID]] | None = None


class TwoLeaders(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0
        # The controller's view comes first. One broker has received it, the other one is behind.
        self.topic = Leader(Claim(1, 0), TieringState.ENABLED, None)
        self.leaders = [self.latest_state(), Leader(Claim(0, 0), TieringState.ENABLED, None)]
        self.head: Head = new_head(
            topic=TOPIC,
            topic_id=TOPIC_ID,
            partition=0,
            cluster_id=CLUSTER,
            leader_epoch=1,
            tiering=Tiering(TieringState.ENABLED, 0),
            broker_id=0,
            log_start_offset=0,
        )
        self.pages: dict[str, ManifestPage] = {}
        self.epochs = [(0, 0)]
        self.known: list[ModelSegment] = []
        self.objects: set[uuid.UUID] = set()
        self.holder, self.log_start, self.enabled = Claim(1, 0), 0, True

    def latest_state(self) -> Leader:
        return Leader(self.topic.claim, self.topic.state, self.topic.policy)

    def live(self) -> list[ModelSegment]:
        return [known for known in self.known if known.state == "live"]

    def mark(self, chosen: Callable[[ModelSegment], bool]) -> None:
        for known in self.known:
            if known.marked_ms is None and chosen(known):
                known.state, known.marked_ms = "marked", self.now

    def attempt(self, change: Callable[[Head], Head], expected: type[ManifestError] | None) -> bool:
        """Apply the change to the head and compare the outcome with the model's. Seal pages as the
        manifest store does."""
        rejection: ManifestError | None = None
        after = self.head
        try:
            after = change(self.head)
        except ManifestError as error:
            rejection = error
        if rejection is not None:
            assert expected is not None, f"the model allows what was rejected: {rejection}"
            assert isinstance(rejection, expected), f"{rejection!r} instead of {expected.__name__}"
            return False
        assert expected is None, f"the model refuses with {expected}, the head allowed it"
        # A commit with an unknown outcome is repeated.
        assert change(after) == after, "repeating a transition must change nothing"
        sealed = transitions.seal(after, f"p{after.next_page}", PAGE_ENTRIES)
        if sealed is not None:
            after, page = sealed
            self.pages[page.name] = decode_page(encode_page(page), "page")
        self.check_forward(after)
        # Each state passes through the codec, so that nothing survives only in memory.
        self.head = decode_head(encode_head(after), "head")
        return True

    def check_forward(self, after: Head) -> None:
        assert not after.claim.is_older_than(self.head.claim)
        assert after.log_start_offset >= self.head.log_start_offset

    def refusal(self, by: Claim) -> type[ManifestError] | None:
        if by == self.holder:
            return None
        return ManifestFenced if by.is_older_than(self.holder) else IllegalTransition

    # ------------------------------------------------------------ the controller

    @rule(who=LEADERS)
    def elect(self, who: int) -> None:
        claim = self.topic.claim
        self.topic.claim = Claim(claim.leader_epoch + 1, claim.tiered_epoch)
        self.leaders[who] = self.latest_state()
        # A new leader epoch begins at the end of the log, as far as it is copied.
        end = max((known.end for known in self.known), default=-1)
        if end + 1 > self.epochs[-1][1]:
            self.epochs.append((self.topic.claim.leader_epoch, end + 1))

    @rule(who=LEADERS)
    def receive_state(self, who: int) -> None:
        self.leaders[who] = self.latest_state()

    @rule(policy=st.sampled_from(DisablePolicy))
    def move_topic(self, policy: DisablePolicy) -> None:
        """Take one step of KIP-950's states. DISABLED follows only when the head shows that the
        leader has acted."""
        topic, state = self.topic, self.topic.state
        if state is TieringState.DISABLING:
            if self.head.tiering.epoch == topic.claim.tiered_epoch:
                topic.state = TieringState.DISABLED
        elif state is TieringState.DISABLED and policy is not DisablePolicy.DELETE:
            topic.state, topic.policy = TieringState.ENABLED, None
        else:
            claim = topic.claim
            topic.claim = Claim(claim.leader_epoch, claim.tiered_epoch + 1)
            topic.state, topic.policy = TieringState.DISABLING, policy

    # ------------------------------------------------------------ the leaders

    @rule(who=LEADERS, log_start=st.integers(0, 80))
    def take_over(self, who: int, log_start: int) -> None:
        """Elect a leader, and let it claim the head at once."""
        self.elect(who)
        self.claim(who, log_start)

    @rule(who=LEADERS, lengths=st.lists(st.integers(1, 9), min_size=1, max_size=6))
    def copy_segments(self, who: int, lengths: list[int]) -> None:
        """Run a leader's copy task without interruption."""
        for length in lengths:
            self.start_copy(who, 0, length)
            self.finish_copy(who, b"m")

    @rule(who=LEADERS, length=st.integers(1, 9), to_other=st.booleans())
    def elect_during_copy(self, who: int, length: int, to_other: bool) -> None:
        """Elect a leader while a copy is in progress. The old leader finishes its upload
        afterwards."""
        self.start_copy(who, 0, length)
        self.take_over(1 - who if to_other else who, 0)
        self.finish_copy(who, None)

    @rule(who=LEADERS)
    def enable_again(self, who: int) -> None:
        """Repeat the controller's steps until the topic is enabled. The leader
        follows each step."""
        while self.topic.state is not TieringState.ENABLED:
            self.receive_state(who)
            self.claim(who, 0)
            self.move_topic(DisablePolicy.RETAIN)
        self.receive_state(who)
        self.claim(who, 0)

    @rule(who=LEADERS, keep=st.integers(0, 20))
    def retain(self, who: int, keep: int) -> None:
        """Run a leader's expiration task, and delete everything that it marks."""
        self.expire(who, self.head.highest_remote_offset - keep - self.log_start)
        self.tick(DELAY_MS)
        self.delete(who, 100, False)

    @rule(who=LEADERS, log_start=st.integers(0, 80))
    def claim(self, who: int, log_start: int) -> None:
        leader = self.leaders[who]
        by, delete = leader.claim, leader.policy is DisablePolicy.DELETE
        if delete and leader.state is TieringState.DISABLING:
            self.disable_delete(leader, log_start)
            return
        order = (TieringState.DISABLING, TieringState.DISABLED, TieringState.ENABLED)
        # The model's rules: fenced by a newer claim or by a later state, and a Delete needs its
        # own transition.
        back = by.tiered_epoch == self.holder.tiered_epoch and order.index(
            leader.state
        ) < order.index(self.head.tiering.state)
        missed = delete and by.tiered_epoch > self.holder.tiered_epoch
        expected: type[ManifestError] | None = None
        if by.is_older_than(self.holder) or back:
            expected = ManifestFenced
        elif missed:
            expected = IllegalTransition
        now = self.now
        done = self.attempt(
            lambda head: transitions.claim(
                head,
                by.leader_epoch,
                Tiering(leader.state, by.tiered_epoch, leader.policy),
                cluster_id=CLUSTER,
                broker_id=who,
                now_ms=now,
            ),
            expected,
        )
        if done:
            self.take(by, enabled=leader.state is TieringState.ENABLED)

    def disable_delete(self, leader: Leader, log_start: int) -> None:
        by, now = leader.claim, self.now
        # A Delete is rejected once its tiered epoch has moved on to DISABLED or ENABLED.
        back = by.tiered_epoch == self.holder.tiered_epoch and (
            self.head.tiering.state is not TieringState.DISABLING
        )
        done = self.attempt(
            lambda head: transitions.disable_delete(
                head,
                by,
                cluster_id=CLUSTER,
                broker_id=9,
                log_start_offset=log_start,
                now_ms=now,
                delete_delay_ms=DELAY_MS,
            ),
            ManifestFenced if by.is_older_than(self.holder) or back else None,
        )
        if done:
            self.take(by, enabled=False)
            self.log_start = max(self.log_start, log_start)
            self.mark(lambda known: known.by.tiered_epoch < by.tiered_epoch)
            self.mark(lambda known: known.state == "live" and known.end < self.log_start)

    def take(self, by: Claim, *, enabled: bool) -> None:
        if by != self.holder:
            self.mark(lambda known: known.state in ("copying", "merging"))
        self.holder, self.enabled = by, enabled

    @rule(who=LEADERS, shift=st.sampled_from((0, 0, -1, -3, -6, 1)), length=st.integers(1, 12))
    def start_copy(self, who: int, shift: int, length: int) -> None:
        leader = self.leaders[who]
        # Most copies continue the line, some overlap it, some leave a gap.
        start = max(0, self.head.next_copy_offset + shift)
        entry = self.segment(leader, start, start + length - 1)
        expected = self.refusal(leader.claim) or self.copy_refusal(entry)
        # A merge whose parts have all expired counts as a copy that is to be abandoned.
        running = ("copying",) if self.live() else ("copying", "merging")
        if any(known.state in running for known in self.known):
            expected = expected or IllegalTransition
        if self.attempt(lambda head: transitions.start_copy(head, leader.claim, entry), expected):
            self.known.append(ModelSegment(entry, entry.start_offset, leader.claim))
            self.objects.add(entry.segment_id)
            leader.copying = entry

    def copy_refusal(self, entry: SegmentEntry) -> type[ManifestError] | None:
        live = self.live()
        hole = bool(live) and entry.start_offset > live[-1].end + 1
        old = bool(live) and entry.end_offset_inclusive <= live[-1].end
        expired = entry.end_offset_inclusive < self.log_start
        return IllegalTransition if not self.enabled or hole or old or expired else None

    def segment(self, leader: Leader, start: int, end: int) -> SegmentEntry:
        # The leader epochs of a log's range, clipped to the segment.
        before = [pair for pair in self.epochs if pair[1] <= start][-1:]
        inside = [pair for pair in self.epochs if start < pair[1] <= end]
        epochs = [(epoch, max(offset, start)) for epoch, offset in before + inside]
        return new_segment(
            topic=TOPIC,
            topic_id=TOPIC_ID,
            partition=0,
            segment_id=uuid.uuid4(),
            start_offset=start,
            end_offset_inclusive=end,
            max_timestamp_ms=end,
            size_bytes=end - start + 1,
            broker_id=0,
            event_time_ms=self.now,
            leader_epochs=epochs,
            leader_epoch=leader.claim.leader_epoch,
            tiered_epoch=leader.claim.tiered_epoch,
        )

    @rule(who=LEADERS, metadata=st.none() | st.binary(max_size=8))
    def finish_copy(self, who: int, metadata: bytes | None) -> None:
        leader = self.leaders[who]
        entry = leader.copying
        if entry is None:
            return
        by = leader.claim
        known = next((k for k in self.known if k.entry.segment_id == entry.segment_id), None)
        expected = self.refusal(by) or self.copy_refusal(entry)
        if known is None or known.state != "copying":
            expected = expected or IllegalTransition
        done = self.attempt(
            lambda head: transitions.finish_copy(head, by, entry, metadata), expected
        )
        if done and known is not None:
            live = self.live()
            # The segment answers from behind the last live one, as an overlap is trimmed.
            floor = live[-1].end + 1 if live else self.log_start
            known.answers_from, known.state = max(entry.start_offset, floor), "live"
            self.known.remove(known)
            self.known.append(known)
            leader.copying = None

    @rule(who=LEADERS)
    def abandon_copy(self, who: int) -> None:
        leader = self.leaders[who]
        entry, now = leader.copying, self.now
        if entry is None:
            return
        done = self.attempt(
            lambda head: transitions.abandon_copy(head, leader.claim, entry, now_ms=now),
            self.refusal(leader.claim),
        )
        if done:
            self.mark(lambda known: known.entry.segment_id == entry.segment_id)
            leader.copying = None

    @rule(who=LEADERS, skip=st.integers(0, 2), count=st.integers(1, 3))
    def start_merge(self, who: int, skip: int, count: int) -> None:
        """Start to replace adjacent live segments, some of which may be sealed, trimmed, deleted
        in part, or of another tiered epoch."""
        leader, parts = self.leaders[who], self.live()[skip : skip + count]
        if not parts:
            return
        start, end = parts[0].entry.start_offset, parts[-1].end
        entry = self.segment(leader, start, end)
        ids = frozenset(part.entry.segment_id for part in parts)
        expected = self.refusal(leader.claim) or self.merge_refusal(entry, ids)
        if any(known.state == "merging" for known in self.known):
            expected = expected or IllegalTransition
        by = leader.claim
        if self.attempt(lambda head: transitions.start_merge(head, by, entry, ids), expected):
            self.known.append(ModelSegment(entry, start, by, "merging"))
            self.objects.add(entry.segment_id)
            leader.merging = entry, ids

    def merge_refusal(
        self, entry: SegmentEntry, ids: frozenset[uuid.UUID]
    ) -> type[ManifestError] | None:
        in_head = {e.segment_id for e in self.head.entries}
        parts = [known for known in self.live() if known.entry.segment_id in ids]
        is_line = len(parts) == len(ids) and all(
            part.entry.segment_id in in_head
            and part.answers_from == part.entry.start_offset
            and part.by.tiered_epoch == entry.tiered_epoch
            for part in parts
        )
        deletes = entry.start_offset < self.log_start
        return IllegalTransition if not self.enabled or not is_line or deletes else None

    @rule(who=LEADERS)
    def finish_merge(self, who: int) -> None:
        leader = self.leaders[who]
        if leader.merging is None:
            return
        (entry, ids), by, now = leader.merging, leader.claim, self.now
        known = next((k for k in self.known if k.entry.segment_id == entry.segment_id), None)
        expected = self.refusal(by) or self.merge_refusal(entry, ids)
        if known is None or known.state != "merging":
            expected = expected or IllegalTransition
        done = self.attempt(
            lambda head: transitions.finish_merge(head, by, entry, ids, b"m", now_ms=now), expected
        )
        if done and known is not None:
            self.mark(lambda item: item.entry.segment_id in ids)
            # It takes the place of its parts in the line.
            self.known.remove(known)
            behind = [k for k in self.known if k.state == "live" and k.end > known.end]
            at = self.known.index(behind[0]) if behind else len(self.known)
            known.state = "live"
            self.known.insert(at, known)
            leader.merging = None

    @rule(who=LEADERS)
    def abandon_merge(self, who: int) -> None:
        leader, now = self.leaders[who], self.now
        if leader.merging is None:
            return
        entry, _ = leader.merging
        done = self.attempt(
            lambda head: transitions.abandon_copy(head, leader.claim, entry, now_ms=now),
            self.refusal(leader.claim),
        )
        if done:
            self.mark(lambda known: known.entry.segment_id == entry.segment_id)
            leader.merging = None

    @rule(who=LEADERS, forward=st.integers(-3, 15))
    def expire(self, who: int, forward: int) -> None:
        by, now = self.leaders[who].claim, self.now
        offset = self.log_start + forward
        done = self.attempt(
            lambda head: transitions.expire_to(
                head, by, offset, now_ms=now, delete_delay_ms=DELAY_MS
            ),
            self.refusal(by),
        )
        if done:
            self.log_start = max(self.log_start, offset)
            self.mark(lambda known: known.state == "live" and known.end < self.log_start)

    @rule(who=LEADERS, limit=st.integers(1, 6), skip=st.booleans())
    def delete(self, who: int, limit: int, skip: bool) -> None:
        by = self.leaders[who].claim
        due = queries.pending_deletes(
            self.head, self.pages, now_ms=self.now, delay_ms=DELAY_MS, limit=limit
        )
        ids = {item.entry.segment_id for item in due}
        for known in self.known:
            if known.entry.segment_id in ids:
                assert known.marked_ms is not None, "an object that is not marked would be deleted"
                assert known.marked_ms + DELAY_MS <= self.now, "deleted sooner than the delay"
        # Deletions may fail one by one, so some rounds leave out the first.
        chosen = due[1:] if skip else due
        if self.attempt(lambda head: transitions.finish_delete(head, by, chosen), self.refusal(by)):
            deleted_ids = {item.entry.segment_id for item in chosen}
            self.objects -= deleted_ids
            self.known = [
                known for known in self.known if known.entry.segment_id not in deleted_ids
            ]

    @rule(step=st.integers(1, 40))
    def tick(self, step: int) -> None:
        self.now += step

    # ------------------------------------------------------------ invariants

    @invariant()
    def readers_see_the_models_line(self) -> None:
        live = self.live()
        assert self.head.log_start_offset == self.log_start
        assert self.head.highest_remote_offset == (live[-1].end if live else -1)
        expected = [
            (known.entry.segment_id, max(known.answers_from, self.log_start), known.end)
            for known in live
        ]
        start = self.head.remote_log_start_offset
        assert start == (expected[0][1] if expected else None)
        plan = queries.plan(self.head, self.pages, start, 1 << 40) if start is not None else ()
        seen = [(r.entry.segment_id, r.from_offset, r.to_offset_inclusive) for r in plan]
        assert seen == expected
        # Every offset of the line is served by exactly one segment, whose object exists.
        for (_, _, end), (_, begin, _) in itertools.pairwise(expected):
            assert begin == end + 1, "an offset is answered by no segment, or by two"
        assert {segment for segment, _, _ in expected} <= self.objects, "a dangling reference"

    @invariant()
    def nothing_is_forgotten(self) -> None:
        named = {entry.segment_id for entry in self.head.entries}
        for ref in self.head.pages:
            entries = self.pages[ref.name].entries
            named |= {e.segment_id for i, e in enumerate(entries) if not ref.gone >> i & 1}
        assert named == {known.entry.segment_id for known in self.known} == self.objects

    @invariant()
    def sums_agree(self) -> None:
        live = [known.entry.size_bytes for known in self.live()]
        marked = [known.entry.size_bytes for known in self.known if known.state == "marked"]
        expected = queries.Totals(len(live), sum(live), len(marked), sum(marked))
        assert queries.totals(self.head, self.pages) == expected


TestTwoLeaders = TwoLeaders.TestCase
TestTwoLeaders.settings = settings(
    max_examples=examples(60),
    stateful_step_count=60,
)
