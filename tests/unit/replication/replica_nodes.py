"""Replicas of several brokers without sockets: real logs in folders, and requests passed in
process."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.answers import room
from tests.control_messages import partition_states, topic_state
from tidemark.records.builder import Record, build_batch
from tidemark.tls.dialing import Dialer
from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control
from tidemark_broker.config import parse
from tidemark_broker.log_maintenance import LogMaintenance
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.following.fetcher import FetcherContext, FetchLimits
from tidemark_broker.replication.following.fetchers import Fetchers
from tidemark_broker.replication.following.follower import FetchOutcome, apply_answer, next_request
from tidemark_broker.replication.following.follower_fetches import ReplicaFetchService
from tidemark_broker.replication.following.wire import ReplicaFetchRequest, ReplicaFetchResult
from tidemark_broker.replication.hosting.log_directory import LogDirectory
from tidemark_broker.replication.hosting.replica_manager import ReplicaManager
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.replication.partition import Partition, ReplicaContext, produce

TOPIC = "t"
TOPIC_ID = uuid.UUID(int=0x77)
T0 = 1_700_000_000_000


def row(**changes: Any) -> control.PartitionState:
    """Return a row of brokers 1 and 2, led by 1."""
    values: dict[str, Any] = {
        "partition": 0,
        "leader": 1,
        "leader_epoch": 0,
        "partition_epoch": 0,
        "replicas": (1, 2),
        "isr": (1, 2),
        "manifest": False,
    }
    return control.PartitionState(**(values | changes))


def states(
    *rows: control.PartitionState,
    full: bool = False,
    removals: tuple[control.Removal, ...] = (),
    topic_id: uuid.UUID = TOPIC_ID,
    registered: dict[int, int] | None = None,
    **tiering: int,
) -> control.PartitionStatesRequest:
    """Return the states that a controller pushes for the one topic.

    ``registered`` has brokers' epochs where they are not their ids; ``tiering`` sets fields of the
    topic's TopicState.
    """
    topic = topic_state(topic_id, TOPIC, partitions=rows, **tiering)
    # Brokers 1 to 3 are always registered, so that the rows can name them.
    brokers = tuple(
        control.BrokerState(broker_id=n, broker_epoch=epoch, rack=None, fenced=False, listeners=())
        for n, epoch in ({1: 1, 2: 2, 3: 3} | (registered or {})).items()
    )
    return partition_states(
        *((topic,) if rows else ()), full=full, brokers=brokers, removals=removals
    )


def batch(count: int = 1) -> bytes:
    """Return one batch of small records."""
    return build_batch([Record(b"k", bytes(30), (), T0)] * count)


def dialer_of(node_id: int) -> Dialer:
    """Return a dialer that is never used: no broker has an address."""
    return Dialer(files=TlsFiles(Path("none")), expected=TlsIdentity("c", node_id))


class ReplicaNode:
    """Storage and replicas of one broker. :meth:`stop` ends it."""

    def __init__(self, node_id: int, folder: Path) -> None:
        self.node_id = node_id
        self.folder = folder / f"broker-{node_id}"
        self.now_s = 1000.0
        self.losses = 0
        # The address of the controller is never dialed: tests push its states.
        config = parse(
            {
                "node.id": str(node_id),
                "cluster.id": "c",
                "log.dir": str(self.folder),
                "listeners": "127.0.0.1:0",
                "controller.addresses": "127.0.0.1:1",
                "tidemark.tls.directory": str(self.folder / "tls"),
            }
        )
        self.log_directory = LogDirectory.open(config)
        metadata, purgatory = MetadataCache("c"), Purgatory()
        # Time does not advance unless a test moves it. Proposals for the ISR are dropped unless a
        # test collects them.
        self.context = ReplicaContext(
            node_id=node_id,
            metadata=metadata,
            purgatory=purgatory,
            lag_max_s=30.0,
            monotonic=lambda: self.now_s,
            wall_ms=lambda: T0,
            propose_isr=lambda *_: None,
            persist=self.log_directory.persist,
            checkpoint_log_start=self.log_directory.checkpoint_log_start,
            failures=self.log_directory.failures,
            records_lost=self._lost,
        )
        self.fetchers = Fetchers(
            FetcherContext(self.context, FetchLimits(), dialer_of, lambda: node_id)
        )
        self.manager = ReplicaManager(
            self.context, logs=self.log_directory, fetchers=self.fetchers, broker_config={}
        )
        self.service = ReplicaFetchService(self.context, self.manager.by_id)
        self.upkeep = LogMaintenance(self.log_directory, self.manager)
        self.manager.load(self.log_directory.found())

    def _lost(self) -> None:
        self.losses += 1

    @property
    def partition(self) -> Partition:
        found = self.manager.get(TOPIC, 0)
        assert found is not None
        return found

    @property
    def log_folder(self) -> Path:
        return self.folder / f"{TOPIC}-0"

    async def receive(self, *rows: control.PartitionState, **options: Any) -> list[Any]:
        """Apply a change that a controller pushes. Return the reported errors."""
        return await self.manager.apply(states(*rows, **options))

    async def lead(self, epoch: int) -> None:
        """Become the leader in that epoch, which is also the partition epoch."""
        await self.receive(row(leader=self.node_id, leader_epoch=epoch, partition_epoch=epoch))

    async def lead_alone(self, partition_epoch: int) -> None:
        """Make the node lead in epoch 1 with an ISR of itself."""
        # Without other members of the ISR every append is committed at once.
        await self.receive(
            row(
                leader=self.node_id,
                leader_epoch=1,
                partition_epoch=partition_epoch,
                isr=(self.node_id,),
            )
        )

    def fence(self, node_id: int, fenced: bool = True) -> None:
        """Fence or unfence a broker in the node's metadata."""
        metadata = self.context.metadata
        changed = replace(metadata.brokers[node_id], fenced=fenced)
        metadata.brokers = {**metadata.brokers, node_id: changed}

    async def follow(self, leader: int, epoch: int) -> None:
        await self.receive(row(leader=leader, leader_epoch=epoch, partition_epoch=epoch))

    async def append(self, count: int = 1) -> None:
        for _ in range(count):
            result = await produce.append(self.partition, batch(), acks=1, timeout_ms=0)
            assert result.error.name == "none", result

    async def fetch_once(self, leader: "ReplicaNode") -> FetchOutcome:
        """Run one round of a fetcher: request, response, append."""
        partition_request = next_request(self.partition, 1 << 20)
        return await apply_answer(
            self.partition, partition_request, await self.fetch_result(leader)
        )

    async def fetch_result(self, leader: "ReplicaNode") -> ReplicaFetchResult:
        """Return the leader's response to the node's next fetch."""
        partition_request = next_request(self.partition, 1 << 20)
        request = ReplicaFetchRequest(
            replica_id=self.node_id,
            broker_epoch=self.node_id,
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=1 << 20,
            partitions=(partition_request,),
        )
        answer = await leader.service.handle(request, TlsIdentity("c", request.replica_id), room())
        return answer.partitions[0]

    async def catch_up(self, leader: "ReplicaNode", rounds: int = 30) -> None:
        """Fetch until the log equals the leader's."""
        # A round that truncates or restarts the log makes progress too, so several may be needed.
        for _ in range(rounds):
            outcome = await self.fetch_once(leader)
            assert outcome is not FetchOutcome.BACK_OFF
            if outcome is FetchOutcome.IDLE:
                break
        assert self.bytes() == leader.bytes()
        assert self.partition.next_offset == leader.partition.next_offset

    def bytes(self) -> bytes:
        """Return the complete local log."""
        return b"".join(path.read_bytes() for path in sorted(self.log_folder.glob("*.log")))

    async def stop(self) -> bool:
        """Stop the node and return whether the shutdown was clean."""
        await self.manager.close()
        return await self.log_directory.close(self.node_id)


def newer(known: control.PartitionState, **changes: Any) -> control.PartitionState:
    """Return the row of the next partition epoch."""
    return replace(known, partition_epoch=known.partition_epoch + 1, **changes)
