"""The copy of a segment describes all of its transactions, so that no
reader needs another segment."""

from pathlib import Path

from tests.unit.log.conftest import T0, LogBench
from tests.unit.log.test_producers_of_a_log import finish, produce
from tidemark.logfiles.producer_snapshot import decode_snapshot
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark_broker.log import appending, flushing
from tidemark_broker.remote_log.copier import prepare


def test_a_copy_describes_producers_and_transactions_that_end_after_it(tmp_path: Path) -> None:
    bench = LogBench(tmp_path / "t-0")
    log = bench.create()
    produce(log, 1, 0, transactional=True)
    produce(log, 2, 0, transactional=True)
    # Both transactions begin in the first segment. One commits in the second, the other aborts in
    # the third.
    appending.roll(log, T0)
    produce(log, 2, 1, transactional=True)
    finish(log, 2, commit=True)
    appending.roll(log, T0)
    finish(log, 1, commit=False)
    appending.roll(log, T0)
    bench.fill(log, [1])
    first, second, third, _ = log.segment_infos()
    aborted_transaction = AbortedTxn(1, 0, 4, 5)
    # The abort at offset 4 concerns records of the first segment only, but its range 0 to 4
    # overlaps all three.
    found = [prepare(log, item).data.aux for item in (first, second, third)]
    assert [item.aborted.transactions for item in found] == [(aborted_transaction,)] * 3
    assert {item.aborted.first_open_offset for item in found} == {None}
    # Each copy has the producer state at its own end.
    ends = [decode_snapshot(item.producer_snapshot) for item in found]
    assert [entry.producer_id for entry in ends[0]] == [1, 2]
    assert [entry.current_txn_first_offset for entry in ends[0]] == [0, 1]
    assert [entry.current_txn_first_offset for entry in ends[2]] == [-1, -1]
    flushing.close(log)
