"""Leader epoch cache (Kafka's LeaderEpochFileCache), compared with a list of epochs by offset."""

from hypothesis import given
from hypothesis import strategies as st

from tidemark.logfiles.leader_epochs import UNDEFINED_END, EpochEnd, EpochEntry, LeaderEpochs


def _epochs(*pairs: tuple[int, int]) -> LeaderEpochs:
    return LeaderEpochs(tuple(EpochEntry(*pair) for pair in pairs))


def test_assign_adds_moves_or_replaces_entries() -> None:
    epochs = _epochs((1, 0), (2, 10))
    assert epochs.assign(2, 10) is epochs
    assert epochs.assign(2, 15) is epochs
    # An entry that begins at or above the new one contradicts it and is removed.
    assert epochs.assign(2, 5) == _epochs((1, 0), (2, 5))
    assert epochs.assign(3, 10) == _epochs((1, 0), (3, 10))
    assert epochs.assign(3, 12) == _epochs((1, 0), (2, 10), (3, 12))
    assert epochs.assign(1, 20) == _epochs((1, 20))


def test_truncation_cuts_entries_at_either_end() -> None:
    epochs = _epochs((1, 0), (2, 10), (4, 20))
    assert epochs.truncate_from_start(0) is epochs
    assert epochs.truncate_from_start(15) == _epochs((2, 15), (4, 20))
    assert epochs.truncate_from_start(20) == _epochs((4, 20))
    # Beyond every entry the last epoch remains, and begins at the new start.
    assert epochs.truncate_from_start(50) == _epochs((4, 50))
    assert epochs.truncate_from_end(21) is epochs
    assert epochs.truncate_from_end(20) == _epochs((1, 0), (2, 10))
    assert epochs.truncate_from_end(0) == LeaderEpochs()
    assert epochs.between(12, 20) == _epochs((2, 12))


def test_the_end_offset_of_an_epoch_is_the_start_of_the_next() -> None:
    epochs = _epochs((2, 10), (4, 20))
    assert epochs.end_offset_for(-1, 30) == UNDEFINED_END
    assert epochs.end_offset_for(5, 30) == UNDEFINED_END
    assert epochs.end_offset_for(4, 30) == EpochEnd(4, 30)
    # Epoch 3 wrote nothing: the largest epoch below it answers (OffsetsForLeaderEpoch, KIP-101).
    assert epochs.end_offset_for(3, 30) == EpochEnd(2, 20)
    assert epochs.end_offset_for(2, 30) == EpochEnd(2, 20)
    # Below all entries the first known offset is the end.
    assert epochs.end_offset_for(1, 30) == EpochEnd(1, 10)
    assert LeaderEpochs().end_offset_for(0, 30) == UNDEFINED_END


_STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("lead"), st.integers(1, 3)),
        st.tuples(st.just("start"), st.integers(0, 10)),
        st.tuples(st.just("end"), st.integers(0, 10)),
    ),
    max_size=40,
)


@given(_STEPS)
def test_agrees_with_a_list_of_epochs_by_offset(steps: list[tuple[str, int]]) -> None:
    epochs, epoch, start = LeaderEpochs(), 0, 0
    log: list[int] = []
    for step, argument in steps:
        if step == "append":
            epochs = epochs.assign(epoch, len(log))
            log += [epoch] * argument
        elif step == "lead":
            epoch += argument
        elif step == "start":
            start = max(start, len(log) - argument)
            epochs = epochs.truncate_from_start(start)
        elif len(log) - argument >= start:
            log = log[: len(log) - argument]
            epochs = epochs.truncate_from_end(len(log))
        # Entries rise strictly in both epoch and offset.
        pairs = [(entry.epoch, entry.start_offset) for entry in epochs.entries]
        assert pairs == sorted(set(pairs))
        for offset in range(start, len(log)):
            assert epochs.epoch_for_offset(offset) == log[offset]
            end = epochs.end_offset_for(log[offset], len(log))
            # At the end offset another epoch begins.
            if end.end_offset != len(log):
                assert log[end.end_offset - 1 : end.end_offset + 1] != [log[offset]] * 2
