"""Transactions through the APIs of clients: each API in each version, on real logs."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.api import api_requests as kafka
from tests.unit.transactions.transaction_broker import (
    ADD,
    DATA,
    DESCRIBE,
    END,
    ID,
    INIT,
    LIST,
    MARKERS,
    OFFSETS,
    TransactionBroker,
    records,
    serving,
    until,
)
from tests.user_states import user, user_states
from tidemark.logfiles.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from tidemark.records.batch import iter_headers
from tidemark_broker.log import reading
from tidemark_broker.transactions import marker_writer
from tidemark_broker.transactions.wire import WireMarker

OK = ErrorCode.none
PID = 1000


async def states(made: TransactionBroker) -> list[tuple[str, str]]:
    listed = await made.ask(LIST, 0, state_filters=(), producer_id_filters=())
    assert listed.error_code is OK
    return [
        (transaction_state.transactional_id, transaction_state.transaction_state)
        for transaction_state in listed.transaction_states
    ]


def kinds(made: TransactionBroker, partition: int = 0) -> list[str]:
    """Return data or marker, for each batch of a partition."""
    log = made.log(partition)
    read = reading.read(log, 0, max_bytes=1 << 20, up_to_offset=log.next_offset, min_one=True)
    return ["marker" if item.is_control else "data" for _, item in iter_headers(read.data)]


# ---------------------------------------------------------------- producers


async def test_a_transaction_of_the_old_protocol(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        answer = await made.init()
        assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (OK, PID, 0)
        assert await made.add(PID, 0, 0, 1) == [OK, OK]
        assert await made.produce(9, records(PID, 0)) is OK
        assert await made.produce(9, records(PID, 0, 1)) is OK
        # Both records belong to the open transaction, so that neither is stable.
        assert made.log().last_stable_offset == 0
        assert (await made.end(PID, 0)).error_code is OK
        await made.ended(3)
        # Partition 1 has no record, but it was added and receives a marker.
        await made.ended(1, partition=1)
        assert (kinds(made), kinds(made, 1)) == (["data", "data", "marker"], ["marker"])
        assert await made.add(PID, 0, 0) == [OK]
        assert await made.produce(9, records(PID, 0, 2)) is OK
        assert (await made.end(PID, 0, commit=False)).error_code is OK
        await made.ended(5)
        # The aborted transaction consists of its record at offset 3 and its marker at offset 4.
        (aborted,) = reading.aborted_transactions(made.log(), 0, 5)
        assert (aborted.first_offset, aborted.last_offset) == (3, 4)


async def test_a_transaction_of_version_2(tmp_path: Path) -> None:
    """Only Produce names partitions, and each end raises the epoch (KIP-890)."""
    async with serving(tmp_path) as made:
        await made.init()
        for epoch in range(3):
            assert await made.produce(12, records(PID, epoch)) is OK
            ended = await made.end(PID, epoch, version=5)
            answer = (ended.error_code, ended.producer_id, ended.producer_epoch)
            assert answer == (OK, PID, epoch + 1)
            # The retry names the former epoch. Until the markers are written, it has to be
            # repeated.
            retried = await made.end(PID, epoch, version=5)
            if retried.error_code is not ErrorCode.concurrent_transactions:
                assert (retried.error_code, retried.producer_epoch) == (OK, epoch + 1)
        await made.ended(6)
        # The epoch of the second transaction was raised when it ended.
        late = await made.produce(12, records(PID, 1, 1))
        assert late is ErrorCode.invalid_producer_epoch
        assert made.log().next_offset == 6


@pytest.mark.parametrize(
    ("version", "error"),
    [
        (9, ErrorCode.invalid_txn_state),
        (10, ErrorCode.invalid_txn_state),
        (11, ErrorCode.transaction_abortable),
    ],
    ids=str,
)
async def test_records_of_a_partition_that_was_not_added_are_refused(
    tmp_path: Path, version: int, error: ErrorCode
) -> None:
    async with serving(tmp_path) as made:
        await made.init()
        await made.add(PID, 0, 1)
        assert await made.produce(version, records(PID, 0)) is error
        assert await made.produce(version, records(PID, 0), partition=1) is OK
        assert made.log().next_offset == 0


async def test_records_after_the_end_are_refused(tmp_path: Path) -> None:
    """Otherwise they would open a transaction that no producer ends."""
    async with serving(tmp_path) as made:
        await made.init()
        await made.add(PID, 0, 0)
        await made.end(PID, 0)
        await made.ended(1)
        assert await made.produce(11, records(PID, 0)) is ErrorCode.transaction_abortable
        # InitProducerId raises the epoch, which fences the former one.
        await made.init()
        assert await made.produce(11, records(PID, 0)) is ErrorCode.invalid_producer_epoch
        assert made.log().last_stable_offset == made.log().next_offset == 1


async def test_records_need_the_coordinators_verification(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        unknown = await made.produce(12, records(PID, 0), transactional_id="nobody")
        assert unknown is ErrorCode.invalid_producer_id_mapping
        without = await made.produce(12, records(PID, 0), transactional_id=None)
        assert without is ErrorCode.transactional_id_authorization_failed
        await made.init()
        await made.transactions.coordinators.close()
        # Kafka maps an unavailable coordinator to an error that every producer retries.
        assert await made.produce(12, records(PID, 0)) is ErrorCode.not_enough_replicas
        assert made.log().next_offset == 0


@pytest.mark.parametrize("version", range(7))
async def test_every_version_of_init_producer_id(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as made:
        first = await made.init(version)
        assert (first.error_code, first.producer_epoch) == (OK, 0)
        second = await made.init(version)
        assert (second.error_code, second.producer_id, second.producer_epoch) == (OK, PID, 1)
        # Version 3 introduced the recovery of a known producer (KIP-360).
        if version >= 3:
            fenced = await made.init(version, producer_id=PID, producer_epoch=0)
            old = ErrorCode.invalid_producer_epoch
            # Version 4 introduced PRODUCER_FENCED (KIP-588).
            assert fenced.error_code is (ErrorCode.producer_fenced if version >= 4 else old)


async def test_two_phase_commit_is_refused(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        # Two-phase commit (KIP-939) is not supported.
        refused = await made.init(6, enable2_pc=True)
        assert refused.error_code is ErrorCode.transactional_id_authorization_failed
        refused = await made.init(6, keep_prepared_txn=True)
        assert refused.error_code is ErrorCode.unsupported_version
        refused = await made.init(transaction_timeout=kafka.duration(900_001))
        assert refused.error_code is ErrorCode.invalid_transaction_timeout


@pytest.mark.parametrize("version", range(4))
async def test_partitions_are_added_all_or_none(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as made:
        await made.init()
        # One partition is unknown, so that none is added.
        assert await made.add(PID, 0, 0, 7, version=version) == [
            ErrorCode.operation_not_attempted,
            ErrorCode.unknown_topic_or_partition,
        ]
        internal = await made.add(PID, 0, 0, version=version, topic=TRANSACTION_STATE_TOPIC)
        assert internal == [ErrorCode.topic_authorization_failed]
        assert await states(made) == [(ID, "Empty")]
        old = ErrorCode.invalid_producer_epoch
        fenced = await made.add(PID, 1, 0, version=version)
        assert fenced == [ErrorCode.producer_fenced if version >= 2 else old]
        assert await made.add(PID, 0, 0, version=version) == [OK]
        assert await states(made) == [(ID, "Ongoing")]


@pytest.mark.parametrize("version", [4, 5])
async def test_batched_requests_add_and_verify(tmp_path: Path, version: int) -> None:
    def entry(epoch: int, partition: int, *, verify: bool, name: str = ID) -> Any:
        topic = kafka.nested(
            ADD, version, "AddPartitionsToTxnTopic", name=DATA, partitions=(partition,)
        )
        return kafka.nested(
            ADD, version, "AddPartitionsToTxnTransaction", transactional_id=name,
            producer_id=PID, producer_epoch=epoch, verify_only=verify, topics=(topic,),
        )  # fmt: skip

    async with serving(tmp_path) as made:
        await made.init()
        answer = await made.ask(
            ADD, version,
            transactions=(
                # The partition is verified before and after its addition. Then a fenced epoch, an
                # unknown id and an empty one follow.
                entry(0, 0, verify=True),
                entry(0, 0, verify=False),
                entry(0, 0, verify=True),
                entry(1, 0, verify=True),
                entry(0, 0, verify=True, name="other"),
                entry(0, 0, verify=True, name=""),
            ),
        )  # fmt: skip
        assert answer.error_code is OK
        assert [
            result.topic_results[0].results_by_partition[0].partition_error_code
            for result in answer.results_by_transaction
        ] == [
            ErrorCode.transaction_abortable,
            OK,
            OK,
            ErrorCode.producer_fenced,
            ErrorCode.invalid_producer_id_mapping,
            ErrorCode.invalid_request,
        ]


@pytest.mark.parametrize("version", range(5))
async def test_consumer_offsets_are_part_of_the_transaction(tmp_path: Path, version: int) -> None:
    async def ask(epoch: int) -> ErrorCode:
        answer = await made.ask(
            OFFSETS, version, transactional_id=ID, producer_id=PID, producer_epoch=epoch,
            group_id="g",
        )  # fmt: skip
        return answer.error_code  # type: ignore[no-any-return]

    async with serving(tmp_path) as made:
        await made.init()
        old = ErrorCode.invalid_producer_epoch
        assert await ask(1) is (ErrorCode.producer_fenced if version >= 2 else old)
        assert await ask(0) is OK
        (state,) = (await made.ask(DESCRIBE, 0, transactional_ids=(ID,))).transaction_states
        assert [(topic.topic, topic.partitions) for topic in state.topics] == [
            (GROUP_OFFSETS_TOPIC, (0,))
        ]


@pytest.mark.parametrize("version", range(6))
@pytest.mark.parametrize("commit", [True, False], ids=["commit", "abort"])
async def test_offsets_count_once_their_transaction_is_committed(
    tmp_path: Path, version: int, commit: bool
) -> None:
    async with serving(tmp_path) as made:
        await made.init()
        # Before version 5, the group has to be added to the transaction first (KIP-890).
        if version < 5:
            refused = await made.commit_offset(version, 7)
            old = ErrorCode.invalid_txn_state
            assert refused is (ErrorCode.transaction_abortable if version >= 4 else old)
            offsets = await made.ask(
                OFFSETS, 0, transactional_id=ID, producer_id=PID, producer_epoch=0, group_id="g"
            )
            assert offsets.error_code is OK
        assert await made.commit_offset(version, 7, partition=9) is (
            ErrorCode.unknown_topic_or_partition
        )
        nameless = await made.commit_offset(version, 7, group="")
        assert nameless is ErrorCode.invalid_group_id
        assert await made.commit_offset(version, 7) is OK
        assert await made.commit_offset(version, 8) is OK
        # The later commit replaces the earlier one, and neither is visible yet.
        assert await made.committed_offset() == -1
        assert await made.committed_offset(stable=True) is ErrorCode.unstable_offset_commit
        ended = await made.end(PID, 0, commit=commit, version=5 if version >= 5 else 3)
        assert ended.error_code is OK
        expected = 8 if commit else -1
        # The marker reaches the group's coordinator after the answer, within 1 s.
        for _ in range(100):
            if await made.committed_offset(stable=True) == expected:
                break
            await asyncio.sleep(0.01)
        assert await made.committed_offset(stable=True) == expected
        # The transaction has ended, and its offsets are closed.
        late = await made.commit_offset(version, 9)
        assert late is not OK
        assert await made.committed_offset(stable=True) == expected


async def test_offsets_are_not_returned_before_the_end_of_their_transaction_is_committed(
    tmp_path: Path,
) -> None:
    """Otherwise the offsets would be reverted if this coordinator failed."""
    async with serving(tmp_path) as made:
        await made.init()
        assert await made.commit_offset(5, 7) is OK
        await made.lead(partition_epoch=2, offsets_isr=(1, 2))  # broker 2 does not fetch
        assert (await made.end(PID, 0, version=5)).error_code is OK
        found = made.node.manager.get(GROUP_OFFSETS_TOPIC, 0)
        assert found is not None
        # The marker is appended, but not committed.
        await until(lambda: found.next_offset == found.high_watermark + 1)
        fetches = [
            asyncio.create_task(made.committed_offset(stable=stable)) for stable in (True, False)
        ]
        done, _ = await asyncio.wait(fetches, timeout=0.1)
        assert not done
        # Broker 2 leaves the ISR, which commits the marker.
        await made.lead(partition_epoch=3)
        assert await asyncio.gather(*fetches) == [7, 7]


@pytest.mark.parametrize("version", range(6))
async def test_every_version_of_end_txn(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as made:
        await made.init()
        old = ErrorCode.invalid_producer_epoch
        fenced = await made.end(PID, 7, version=version)
        assert fenced.error_code is (ErrorCode.producer_fenced if version >= 2 else old)
        nothing = await made.end(PID, 0, version=version)
        assert nothing.error_code is ErrorCode.invalid_txn_state
        assert await made.add(PID, 0, 0) == [OK]
        assert (await made.end(PID, 0, version=version)).error_code is OK
        await made.ended(1)


# ---------------------------------------------------------------- administrators


def marker(version: int, epoch: int, *partitions: int, topic: str = DATA) -> Any:
    named = kafka.nested(
        MARKERS, version, "WritableTxnMarkerTopic", name=topic, partition_indexes=partitions
    )
    return kafka.nested(
        MARKERS, version, "WritableTxnMarker", producer_id=PID, producer_epoch=epoch,
        transaction_result=False, topics=(named,), coordinator_epoch=1, transaction_version=0,
    )  # fmt: skip


@pytest.mark.parametrize("version", [1, 2])
async def test_a_hanging_transaction_is_ended_by_its_markers(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as made:
        await made.init()
        await made.add(PID, 0, 0, 1)
        await made.produce(11, records(PID, 0))
        answer = await made.ask(
            MARKERS, version, markers=(marker(version, 0, 0, 1), marker(version, 0, 5))
        )
        errors = [
            [partition.error_code for partition in one.topics[0].partitions]
            for one in answer.markers
        ]
        assert errors == [[OK, OK], [ErrorCode.unknown_topic_or_partition]]
        # The record and its marker are stable.
        assert made.log().last_stable_offset == 2
        assert (await made.ask(MARKERS, version, markers=())).markers == ()


async def test_a_marker_that_cannot_be_committed_is_appended_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its coordinator retries repeatedly and receives the result of the same marker."""
    monkeypatch.setattr(marker_writer, "_WAIT_S", 0.02)
    async with serving(tmp_path) as made:
        await made.init()
        await made.add(PID, 0, 0)
        await made.produce(11, records(PID, 0))
        await made.lead(isr=(1, 2), partition_epoch=2)  # broker 2 does not fetch
        assert (await made.end(PID, 0)).error_code is OK
        # The coordinator retries the marker all the time, and it stays prepared.
        for _ in range(3):
            (state,) = (await made.ask(DESCRIBE, 0, transactional_ids=(ID,))).transaction_states
            assert state.transaction_state == "PrepareCommit"
            assert [(topic.topic, topic.partitions) for topic in state.topics] == [(DATA, (0,))]
            await asyncio.sleep(0.1)
        assert made.log().next_offset == 2
        await made.lead(isr=(1,), partition_epoch=3)
        await made.ended(2)
        assert kinds(made) == ["data", "marker"]


async def test_marker_is_not_taken_for_the_former_transactions_marker(tmp_path: Path) -> None:
    """In the old protocol, the markers of all transactions of a producer look the same.

    Two requests for one marker may be under way at a time, after a connection broke.
    """
    wire = WireMarker(
        topic=DATA, partition=0, producer_id=PID, producer_epoch=0, coordinator_epoch=1,
        commit=True, version=0,
    )  # fmt: skip
    async with serving(tmp_path) as made:
        await made.init()
        await made.add(PID, 0, 0)
        await made.produce(11, records(PID, 0))
        await made.lead(isr=(1, 2), partition_epoch=2)  # broker 2 does not fetch
        first, second = (
            asyncio.create_task(made.marker_writer.write([wire], wait_s=wait_s))
            for wait_s in (0.05, 5.0)
        )
        # The first request has appended the marker, and gives up waiting for its commit.
        assert await first == [ErrorCode.request_timed_out]
        await made.lead(isr=(1,), partition_epoch=3)
        assert await second == [OK]
        assert await made.produce(11, records(PID, 0, 1)) is OK
        # The marker of the second transaction has the same bytes, and is not a repetition.
        assert await made.marker_writer.write([wire]) == [OK]
        assert kinds(made)[-2:] == ["data", "marker"]
        assert made.log().last_stable_offset == made.log().next_offset


async def test_transactions_are_described(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        await made.init()
        await made.add(PID, 0, 1, 0)
        described = await made.ask(DESCRIBE, 0, transactional_ids=(ID, "other", ""))
        first, other, nameless = described.transaction_states
        assert (first.transaction_state, first.producer_id) == ("Ongoing", PID)
        assert [(topic.topic, topic.partitions) for topic in first.topics] == [(DATA, (0, 1))]
        assert first.transaction_timeout.total_seconds() == 60
        assert other.error_code is ErrorCode.transactional_id_not_found
        assert nameless.error_code is ErrorCode.invalid_request


async def test_transactions_are_listed(tmp_path: Path) -> None:
    async def listed(version: int = 1, **filters: Any) -> list[str]:
        given: dict[str, Any] = {
            "state_filters": (), "producer_id_filters": (), "duration_filter": -1,
        }  # fmt: skip
        answer = await made.ask(LIST, version, **(given | filters))
        unknown = tuple(
            state_filter
            for state_filter in filters.get("state_filters", ())
            if state_filter == "Lost"
        )
        assert answer.unknown_state_filters == unknown
        return sorted(
            transaction_state.transactional_id for transaction_state in answer.transaction_states
        )

    async with serving(tmp_path) as made:
        await made.init()
        await made.init(transactional_id="b")
        await made.add(PID, 0, 0)
        assert await listed() == ["b", ID]
        assert await listed(state_filters=("Ongoing",)) == [ID]
        assert await listed(state_filters=("Lost",)) == []
        assert await listed(state_filters=("Empty", "Dead", "Lost")) == ["b"]
        assert await listed(producer_id_filters=(PID,)) == [ID]
        # No transaction has been open for 1,000 ms.
        assert await listed(duration_filter=1_000, state_filters=("Ongoing",)) == []


async def test_transactions_are_listed_by_an_expression(tmp_path: Path) -> None:
    """KIP-1152: an expression matches complete ids; without one, all ids are listed."""

    async def listed(pattern: str | None) -> list[str]:
        filters: dict[str, Any] = {
            "state_filters": (), "producer_id_filters": (), "duration_filter": -1,
        }  # fmt: skip
        answer = await made.ask(LIST, 2, **filters, transactional_id_pattern=pattern)
        if answer.error_code is not OK:
            return [answer.error_code.name]
        return sorted(
            transaction_state.transactional_id for transaction_state in answer.transaction_states
        )

    async with serving(tmp_path) as made:
        for transactional_id in ("a-1", "a-2", "b-1"):
            await made.init(transactional_id=transactional_id)
        assert await listed(None) == await listed("") == ["a-1", "a-2", "b-1"]
        assert await listed(r"a-\d") == ["a-1", "a-2"]
        assert await listed("a") == []
        assert await listed("(") == ["invalid_regular_expression"]


# ---------------------------------------------------------------- permissions


def allowed(made: TransactionBroker, *acls: str) -> None:
    made.users.apply(user_states(user("ann", *acls)))


async def test_each_request_needs_its_permissions(tmp_path: Path) -> None:
    denied = ErrorCode.transactional_id_authorization_failed
    async with serving(tmp_path) as made:
        allowed(made)
        assert (await made.init()).error_code is denied
        assert await made.add(PID, 0, 0) == [denied]
        assert (await made.end(PID, 0)).error_code is denied
        assert await made.produce(11, records(PID, 0)) is ErrorCode.topic_authorization_failed
        described = await made.ask(DESCRIBE, 0, transactional_ids=(ID,))
        assert described.transaction_states[0].error_code is denied
        answer = await made.ask(MARKERS, 1, markers=(marker(1, 0, 0),))
        (result,) = answer.markers[0].topics[0].partitions
        assert result.error_code is ErrorCode.cluster_authorization_failed
        refused = await made.ask(ADD, 4, transactions=())
        assert refused.error_code is ErrorCode.cluster_authorization_failed

        # From here on the user may use the id, but neither the topic nor the group.
        allowed(made, f"ALLOW WRITE TRANSACTIONAL_ID {ID}")
        assert (await made.init()).error_code is OK
        assert await made.add(PID, 0, 0) == [ErrorCode.topic_authorization_failed]
        offsets = await made.ask(
            OFFSETS, 0, transactional_id=ID, producer_id=PID, producer_epoch=0, group_id="g"
        )
        assert offsets.error_code is ErrorCode.group_authorization_failed
        assert await states(made) == [(ID, "Empty")]

        # Now the user may write to the topic, but not use the id.
        allowed(made, f"ALLOW WRITE TOPIC {DATA}")
        assert await made.produce(11, records(PID, 0)) is denied
        assert await states(made) == []

        # Markers are written for administrators only.
        allowed(made, "ALLOW ALTER CLUSTER kafka-cluster")
        answer = await made.ask(MARKERS, 1, markers=(marker(1, 0, 0),))
        assert answer.markers[0].topics[0].partitions[0].error_code is OK


async def test_topics_that_may_not_be_described_are_left_out(tmp_path: Path) -> None:
    async with serving(tmp_path) as made:
        await made.init()
        await made.add(PID, 0, 0)
        allowed(made, f"ALLOW DESCRIBE TRANSACTIONAL_ID {ID}")
        (state,) = (await made.ask(DESCRIBE, 0, transactional_ids=(ID,))).transaction_states
        assert (state.transaction_state, state.topics) == ("Ongoing", ())


@pytest.mark.parametrize("version", range(5))
async def test_clients_receive_the_features(tmp_path: Path, version: int) -> None:
    async with serving(tmp_path) as made:
        answer = await made.ask(
            18, version, client_software_name="tests", client_software_version="1"
        )
        # Features are part of the answer from version 3 on (KIP-584).
        if version < 3:
            return
        finalized = {
            finalized_feature.name: finalized_feature.max_version_level
            for finalized_feature in answer.finalized_features
        }
        assert finalized == {"group.version": 1, "transaction.version": 2}
        assert answer.finalized_features_epoch == 0
        supported = {
            supported_feature.name: supported_feature.min_version
            for supported_feature in answer.supported_features
        }
        # A minimum of 0 breaks clients before version 4 (KAFKA-17011).
        assert supported.get("transaction.version") == (0 if version >= 4 else None)


def test_every_api_has_its_key() -> None:
    assert (INIT, ADD, OFFSETS, END, MARKERS, DESCRIBE, LIST) == (22, 24, 25, 26, 27, 65, 66)
