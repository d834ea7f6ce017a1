"""One broker's replicas, log folder and remote log manager in this process, all real.

The test plays the controller: it applies partition states, and every ISR proposal is granted. For
several hosts that replicate to each other over loopback see ``tiered_cluster``.
"""

import asyncio
import json
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.certificates import folder_of
from tests.control_messages import partition_states
from tidemark.metrics.metric import Metric
from tidemark.records.batch import iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark.tier.metadata import queries
from tidemark.tier.metadata.head import Head
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.stores.config import parse
from tidemark.tiering import DisablePolicy, TieringState
from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control
from tidemark_broker.broker import BrokerServer
from tidemark_broker.config import load
from tidemark_broker.listeners import CLIENTS, REPLICATION
from tidemark_broker.net.server import KafkaServer
from tidemark_broker.remote_log.remote_log_manager import RemoteLogManager
from tidemark_broker.replication.hosting.log_directory import LogDirectory
from tidemark_broker.replication.partition import Partition, isr_and_high_watermark, produce
from tidemark_broker.replication.remote import RemoteSummary

TOPIC = "flights"
TOPIC_ID = uuid.UUID("6f9619ff-8b86-4d11-b42d-00c04fc964ff")
CLUSTER = "test-cluster"
NOW_MS = 1_700_000_000_000
VALUE = b"x" * 100
# Small segments and one byte of local retention: a few hundred records fill and leave several
# segments.
CONFIG = {
    "segment.bytes": "4096",
    "index.interval.bytes": "512",
    "retention.ms": "-1",
    "local.retention.ms": "-1",
    "local.retention.bytes": "1",
}


class TieredHost:
    def __init__(self, folder: Path, tier: Path, *, node_id: int = 1, **config: Any) -> None:
        self.tier_path = tier
        self.node_id = node_id
        path = folder / f"host-{node_id}.json"
        entries = {
            "node.id": node_id,
            "cluster.id": CLUSTER,
            "log.dir": str(folder / f"host-{node_id}"),
            "listeners": "127.0.0.1:0",
            # Port 1 has no listener: the test plays the controller, and a stray request fails at
            # once.
            "controller.addresses": "127.0.0.1:1",
            "tidemark.tls.directory": str(folder / f"host-{node_id}-tls"),
            # Short intervals and small pools, so that tests see several rounds and exhausted pools.
            "remote.log.manager.task.interval.ms": 100,
            "remote.log.manager.task.retry.backoff.ms": 50,
            "remote.log.manager.task.retry.backoff.max.ms": 200,
            "remote.delete.delay.ms": 50,
            "remote.log.manager.copier.thread.pool.size": 2,
            "remote.log.manager.expiration.thread.pool.size": 2,
            "remote.log.reader.threads": 2,
            "replica.fetch.wait.max.ms": 50,
            "replica.fetch.backoff.ms": 20,
        }
        entries |= {key.replace("_", "."): value for key, value in config.items()}
        path.write_text(json.dumps(entries))
        self.log_directory = LogDirectory.open(load(path))
        self.broker = BrokerServer(load(path), self.log_directory, RemoteLogManager.of)
        self.context = self.broker.context
        self.context.propose_isr = self._grant
        # The real manager, not a double: these tests verify it.
        assert isinstance(self.context.remote, RemoteLogManager)
        self.remote: RemoteLogManager = self.context.remote
        self.upkeep = self.broker.upkeep
        self.broker.manager.load(self.log_directory.found())
        self.topic = control.TopicState(
            topic_id=TOPIC_ID,
            name=TOPIC,
            config=(),
            tiering_state=int(TieringState.ENABLED),
            tiered_epoch=0,
            disable_policy=0,
            partitions=(),
        )
        self.store = {"filesystem": {"path": str(tier)}}
        self.store_id = ""
        self.brokers: tuple[control.BrokerState, ...] = ()
        self.rack: str | None = None
        self.is_reader = False
        self.config = dict(CONFIG)
        self.cluster_config: dict[str, str] = {}
        #: Rows by partition; most tests have partition 0 only.
        self.rows = {0: self.new_row(0)}
        self.closed = False
        self._checkpoints = asyncio.create_task(self.log_directory.run_log_start_checkpoints())

    def new_row(self, partition: int) -> control.PartitionState:
        """A partition that only this broker hosts."""
        return control.PartitionState(
            partition=partition,
            leader=self.node_id,
            leader_epoch=1,
            partition_epoch=1,
            replicas=(self.node_id,),
            isr=(self.node_id,),
            manifest=False,
        )

    @property
    def row(self) -> control.PartitionState:
        return self.rows[0]

    @row.setter
    def row(self, row: control.PartitionState) -> None:
        self.rows[0] = row

    async def apply(self, **changes: Any) -> Partition:
        """Push the states with changed fields of the topic or, as ``leader_epoch``, of the row."""
        topic = {k: v for k, v in changes.items() if hasattr(self.topic, k)}
        row = {k: v for k, v in changes.items() if hasattr(self.row, k)}
        self.topic = replace(self.topic, **topic)
        if row:
            self.row = replace(self.row, partition_epoch=self.row.partition_epoch + 1, **row)
        assert not await self.broker.manager.apply(self.states())
        return self.partition

    def states(self) -> control.PartitionStatesRequest:
        """All that the controller knows."""
        rows = tuple(self.rows.values())
        # The id of a store is recorded by the controller once a broker has reported it.
        return partition_states(
            replace(self.topic, config=_entries(self.config), partitions=rows),
            full=True,
            cluster_id=CLUSTER,
            cluster_config=_entries(self.cluster_config),
            remote_storage=json.dumps(self.store),
            # Without the id of a store brokers adopt the one that they find.
            store_id=self.store_id or self.remote.status().store_id,
            brokers=self.brokers or (self.state_of_broker(),),
        )

    @property
    def clients(self) -> KafkaServer:
        """The listener for clients."""
        return self.broker.listeners.servers[CLIENTS]

    def state_of_broker(self) -> control.BrokerState:
        """This broker as the controller knows it."""
        servers: dict[str, Any] = {
            CLIENTS: self.clients,
            REPLICATION: self.broker.replication_server,
        }
        listeners = tuple(
            control.Endpoint(name=name, host="127.0.0.1", port=server.port)
            for name, server in servers.items()
            if server.port
        )
        return control.BrokerState(
            broker_id=self.node_id,
            broker_epoch=-1,
            rack=self.rack,
            fenced=False,
            listeners=listeners,
            is_reader=self.is_reader,
        )

    async def listen(self) -> None:
        """Serve clients and followers over loopback."""
        folder_of(TlsIdentity(CLUSTER, self.node_id), self.broker.config.tls_directory)
        for server in (self.clients, self.broker.replication_server):
            await server.bind("127.0.0.1", 0)
            await server.listen()

    async def delete(self) -> None:
        """Delete with the topic's tombstone."""
        removal = control.Removal(topic_id=TOPIC_ID, partition=-1, partition_epoch=-1)
        request = replace(self.states(), full=False, topics=(), removals=(removal,))
        assert not await self.broker.manager.apply(request)

    async def disable(
        self, tiered_epoch: int, policy: DisablePolicy, timeout_ms: int = 5000
    ) -> control.DisableRemoteTopicResult:
        """``DisableRemoteTopic``, as the controller sends it."""
        request = control.DisableRemoteTopicRequest(
            controller_epoch=1,
            topic_id=TOPIC_ID,
            tiered_epoch=tiered_epoch,
            disable_policy=int(policy),
            partitions=(0,),
            timeout_ms=timeout_ms,
        )
        (result,) = await self.broker.disablements.disable(request)
        return result

    async def acknowledged(self, tiered_epoch: int, policy: DisablePolicy) -> None:
        """Repeat the request until it is acknowledged, as the controller does."""
        async with asyncio.timeout(10):
            while (await self.disable(tiered_epoch, policy, 500)).error_code:  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    @property
    def partition(self) -> Partition:
        return self.at(0)

    def at(self, number: int) -> Partition:
        """Return a hosted partition."""
        found = self.broker.manager.get(TOPIC, number)
        assert found is not None
        return found

    @property
    def summary(self) -> RemoteSummary:
        return self.remote.summary(self.partition)

    def live(self) -> list[tuple[int, int]]:
        """Return the tier's live segments."""
        pages = self.tier().manifests.pages(TOPIC_ID, 0)
        return [
            (entry.from_offset, entry.end_offset_inclusive)
            for entry in queries.live_segments(self.head(), pages)
        ]

    def gauge(self, row: Metric) -> float:
        """Return a metric of the remote log manager."""
        samples = [s for family in self.remote.metrics() for s in family.samples]
        return next(sample.value for sample in samples if sample.name == row.name)

    def _grant(self, partition: Partition, change: control.IsrChange) -> None:
        # Every proposal is granted, and recorded as the controller records it in the slice.
        known = self.rows[change.partition]
        row = self.rows[change.partition] = replace(
            known,
            isr=change.new_isr,
            manifest=known.manifest or change.remote_manifest,
            leader_recovery_state=change.leader_recovery_state,
            partition_epoch=known.partition_epoch + 1,
        )
        result = control.IsrResult(
            topic_id=change.topic_id,
            partition=change.partition,
            error_code=0,
            leader=row.leader,
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            isr=row.isr,
            leader_recovery_state=row.leader_recovery_state,
        )
        # Answered in another iteration of the loop, since the manager is still in the middle of its
        # call.
        asyncio.get_running_loop().call_soon(
            isr_and_high_watermark.answered, partition, change, result
        )

    async def produce(
        self, records: int, *, per_batch: int = 5, timestamp_ms: int = NOW_MS, number: int = 0
    ) -> None:
        """Append small batches; values contain their offset, timestamps grow by 1 ms per record."""
        partition = self.at(number)
        while records > 0:
            count = min(per_batch, records)
            first = partition.next_offset
            data = build_batch(
                [
                    Record(
                        key=None,
                        # The value begins with its offset, so a reader can verify the order.
                        value=b"%08d" % (first + n) + VALUE,
                        headers=(),
                        timestamp_ms=timestamp_ms + first + n,
                    )
                    for n in range(count)
                ]
            )
            result = await produce.append(partition, data, acks=1, timeout_ms=1000)
            assert result.error.value == 0, result
            records -= count

    def tier(self) -> Tier:
        return open_tier(parse(self.store))

    def head(self) -> Head:
        return self.tier().manifests.load(TOPIC_ID, 0).head

    def objects(self) -> list[str]:
        return [info.key for info in self.tier().segments.list_topic(TOPIC, TOPIC_ID)]

    async def until(self, condition: Callable[[], bool], timeout_s: float = 10.0) -> None:
        """Wait for a condition that may read the tier."""
        async with asyncio.timeout(timeout_s):
            while not condition():  # noqa: ASYNC110 - the condition has no event
                await asyncio.sleep(0.01)

    async def delete_remote(self) -> None:
        """Repeat the deletion of the topic's objects until nothing remains."""
        async with asyncio.timeout(10):
            while await self.remote.delete_topic(TOPIC_ID, TOPIC, 1, 0):  # noqa: ASYNC110
                await asyncio.sleep(0.02)

    async def copied(self, next_offset: int | None = None, *, number: int = 0) -> None:
        """Wait until every closed segment is in the tier."""
        log = self.at(number).log
        # The active segment is never copied, so its base offset is the end of what can be.
        next_to_copy = log.segment_infos()[-1].base_offset if next_offset is None else next_offset
        await self.until(lambda: log.highest_remote_offset + 1 >= next_to_copy)

    async def read_tier(self, offset: int, until: int, max_bytes: int = 3000) -> list[int]:
        """Read from ``offset`` until ``until``; return the last offset of each batch."""
        seen = []
        while offset < until:
            found = await self.remote.read(
                self.partition, offset, max_bytes, asyncio.get_running_loop().time() + 10
            )
            for _, header in iter_headers(bytes(found.data)):
                # The first batch may begin below the requested offset, but never above it.
                assert header.base_offset <= offset, "a hole"
                offset = header.next_offset
                seen.append(header.last_offset)
            # The read itself must agree about where to continue.
            assert found.next_offset == offset
        return seen

    async def close(self) -> None:
        if self.closed:
            # The order of a broker's shutdown: commands, replicas, remote log manager, listeners,
            # log.
            return
        self.closed = True
        await self.broker.disablements.close()
        await self.broker.manager.close()
        assert await self.remote.close(timeout_s=30)
        if self.clients.port:
            await self.clients.stop(0.1)
            await self.broker.replication_server.stop()
        self._checkpoints.cancel()
        await asyncio.gather(self._checkpoints, return_exceptions=True)
        await self.log_directory.close(1)


def _entries(values: dict[str, str]) -> tuple[control.ConfigEntry, ...]:
    return tuple(control.ConfigEntry(name=name, value=value) for name, value in values.items())
