"""Contents and times of a broker's status reports to the controller."""

import asyncio
from pathlib import Path

import pytest

from tests.kafka_listener import KafkaListener
from tests.unit.replication.replica_nodes import ReplicaNode
from tests.unit.replication.test_full_disk import FAILED, full_disk, refused
from tidemark.wire import control
from tidemark.wire.connection import KafkaConnection
from tidemark.wire.framing import decode_request, encode_response, peek_request
from tidemark_broker.control import status
from tidemark_broker.control.session import ControllerSession
from tidemark_broker.control.status import StatusReporter


async def test_failure_is_reported_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a failure is reported at once, too; everything else waits for the interval."""
    # An hour: every report below is caused by a failure.
    monkeypatch.setattr(status, "INTERVAL_S", 3600.0)
    reports: asyncio.Queue[control.BrokerStatusRequest] = asyncio.Queue()

    async def serve(connection: KafkaConnection) -> None:
        while True:
            frame = await connection.read_frame()
            reports.put_nowait(decode_request(control.BrokerStatusRequest, frame))
            answer = control.BrokerStatusResponse(error_code=0)
            connection.write(encode_response(answer, peek_request(frame)[2]))

    one = ReplicaNode(1, tmp_path)
    await one.lead(1)
    listener = await KafkaListener(serve).start("127.0.0.1", 0)
    connection = await KafkaConnection.connect("127.0.0.1", listener.port, client_id="broker-1")
    reporter = StatusReporter(one.manager, one.log_directory.error)
    one.log_directory.failures.changed = reporter.kick
    running = asyncio.create_task(reporter.run(connection, ControllerSession(1, 1, b"")))
    try:
        async with asyncio.timeout(10):
            assert (await reports.get()).failed_replicas == ()
            with full_disk():
                await refused(one)
            report = await reports.get()
            assert report.failed_replicas == FAILED
            assert [partition.error_reason for partition in report.partitions] == ["StorageError"]
            # 40 s later than the failure, so that the retry is due.
            one.now_s += 40
            await one.manager.retry()
            assert (await reports.get()).failed_replicas == ()
    finally:
        running.cancel()
        await connection.close()
        await listener.close()
        await one.stop()
