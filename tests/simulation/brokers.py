"""The adapter to the broker: the real :class:`BrokerServer`, its sockets and threads replaced.

It adds a process's share: starting and stopping, dying, losing power or a disk, and the few figures
that faults and checkers read. A change to an interface of the broker changes this module, and no
other of the simulation.
"""

import asyncio
import contextlib
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple, Self

from tests.answers import room
from tests.simulation.clockwork import PooledThreads, PowerCut, ProcessLoop
from tests.simulation.disk import ROOT
from tests.simulation.network import Connection
from tidemark.ids import id_text
from tidemark.records.batch import parse_header
from tidemark.tls.identity import TlsIdentity
from tidemark.wire import control
from tidemark_broker import config as broker_config
from tidemark_broker.admission.time_slice import TimeSlice
from tidemark_broker.api.fetch_session import PartitionRequest
from tidemark_broker.api.read_confirmations import ConfirmColdReadsRequest
from tidemark_broker.api.records import fetch_reader
from tidemark_broker.broker import BrokerServer
from tidemark_broker.listeners import CLIENTS
from tidemark_broker.log import StorageError, reading
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.remote_log.remote_log_manager import RemoteLogManager
from tidemark_broker.replication.following.wire import ReplicaFetchRequest
from tidemark_broker.replication.hosting.log_directory import LogDirectory
from tidemark_broker.replication.partition import Partition, Role, isr_and_high_watermark
from tidemark_broker.replication.types import FetchResult
from tidemark_broker.transactions.wire import WriteMarkersRequest

CLUSTER_UID = "00000000-0000-4000-8000-000000000001"
CLUSTER_ID = id_text(uuid.UUID(CLUSTER_UID))
PORT = 9092

#: Short times, so that a run of a minute sees many of everything.
TIMES = {
    "replica.fetch.wait.max.ms": "400",
    "replica.socket.timeout.ms": "2000",
    "replica.high.watermark.checkpoint.interval.ms": "2000",
    "log.flush.scheduler.interval.ms": "1500",
    "log.retention.check.interval.ms": "2500",
    "remote.log.manager.task.interval.ms": "2000",
    "remote.log.manager.task.retry.backoff.ms": "200",
    "remote.log.manager.task.retry.backoff.max.ms": "2000",
    "remote.delete.delay.ms": "1500",
    "tidemark.remote.head.check.interval.ms": "5000",
    "tidemark.remote.sweep.interval.ms": "6000",
    "tidemark.remote.sweep.delay.ms": "1500",
    "controlled.shutdown.max.ms": "3000",
}


class SimulatedBatch(NamedTuple):
    """A batch in a log or in the tier; ``crc`` represents its records."""

    base_offset: int
    last_offset: int
    epoch: int
    crc: int


def batches_of(data: bytes) -> Iterator[SimulatedBatch]:
    """The whole batches of some bytes."""
    position = 0
    # 61 bytes are the header of a batch. A partial batch at the end is not counted.
    while len(data) - position >= 61:
        header = parse_header(data, position)
        if position + header.size_bytes > len(data):
            return
        yield SimulatedBatch(
            header.base_offset, header.last_offset, header.partition_leader_epoch, header.crc
        )
        position += header.size_bytes


def batches_in(partition: Partition, start: int, end: int) -> list[SimulatedBatch]:
    """The batches of the local log that hold offsets from ``start`` to ``end`` (exclusive)."""
    return _batches(partition.log, start, end)


def _batches(log: PartitionLog, start: int, end: int) -> list[SimulatedBatch]:
    found: list[SimulatedBatch] = []
    # In a log that restarts, the first segment exists before its bounds do.
    offset = max(start, log.local_log_start_offset, log.segment_infos()[0].base_offset)
    while offset < min(end, log.next_offset):
        read = reading.read(
            log, offset, max_bytes=1 << 20, up_to_offset=log.next_offset, min_one=True
        )
        if not read.data:
            break
        found += batches_of(read.data)
        offset = read.next_offset
    return [batch for batch in found if batch.base_offset < end]


@dataclass(frozen=True)
class Held:
    """Contents of a process's log, to compare with what its disk has after a restart.

    A log of the same length need not be the same: a power cut reverts a truncation that was not
    synced, and what was written in its place is lost from there on.
    """

    start: int
    end: int
    batches: tuple[SimulatedBatch, ...]

    @classmethod
    def of(cls, log: PartitionLog) -> Self:
        batches = _batches(log, log.local_log_start_offset, log.next_offset)
        return cls(log.log_start_offset, log.next_offset, tuple(batches))

    def left_in(self, log: PartitionLog | None) -> int:
        """Return the offset from which records are lost; the end if none is."""
        if log is None:
            return self.start
        # The first batch with another CRC ends what both have in common.
        found = {batch.base_offset: batch.crc for batch in _batches(log, 0, log.next_offset)}
        others = (
            batch.base_offset
            for batch in self.batches
            if batch.base_offset in found and found[batch.base_offset] != batch.crc
        )
        return min(log.next_offset, next(others, log.next_offset))


class _Heartbeats:
    """``HeartbeatThread`` without a thread: the same life, on a loop that the main one cannot
    stop."""

    def __init__(self, target: Any, clock: Any, *, answered: Any, lost: Any) -> None:
        self._target = target
        self._clock = clock
        self._answered = answered
        self._lost = lost
        self._main: Any = asyncio.get_running_loop()
        self._loop: ProcessLoop = self._main.process.beats  # type: ignore[attr-defined]
        self._wake: asyncio.Event | None = None
        self._stopping = False
        self.snapshot_controller_epoch = -1
        self.want_shut_down = False
        self.unresponsive: tuple[int, ...] = ()

    def start(self) -> None:
        self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._wake = asyncio.Event()
        self._loop.create_task(self._run())

    def kick(self) -> None:
        if self._wake is not None:
            self._wake.set()

    def stop(self) -> None:
        self._stopping = True
        self.kick()

    async def _run(self) -> None:
        target = self._target
        last_s = self._loop.time()
        connection: Connection | None = None
        while not self._stopping:
            sent_s = self._loop.time()
            self._clock.stall.beat(sent_s)
            try:
                # A connection per failure: a reset is the usual way to learn that the controller is
                # dead.
                if connection is None:
                    connection = await Connection.connect(
                        target.host, target.port, timeout_s=target.answer_s
                    )
                answer = await connection.request(self._beat(), None, target.answer_s)
                last_s = self._loop.time()
                if not answer.error_code:
                    self._clock.stall.answered(sent_s)
                # Answers are handled on the main loop, which may be stalled while heartbeats
                # continue.
                self._main.call_soon(self._answered, answer)
                await self._pause(max(0.0, sent_s + target.interval_s - last_s))
            except OSError as error:
                if connection is not None:
                    await connection.close()
                connection = None
                if self._stopping:
                    return
                # Half of the session timeout is left to find another controller.
                if self._loop.time() - last_s > target.session_timeout_s / 2:
                    self._main.call_soon(self._lost, f"no heartbeat was answered: {error}")
                    return
                await self._pause(min(0.2, target.interval_s))
        if connection is not None:
            await connection.close()

    def _beat(self) -> control.BrokerHeartbeatRequest:
        return control.BrokerHeartbeatRequest(
            broker_id=self._target.broker_id,
            broker_epoch=self._target.broker_epoch,
            snapshot_controller_epoch=self.snapshot_controller_epoch,
            loop_age_ms=self._clock.age_ms(),
            want_shut_down=self.want_shut_down,
            session_token=self._target.session_token,
            interval_ms=round(self._target.interval_s * 1000),
            unresponsive=() if self._clock.is_blocked else self.unresponsive,
        )

    async def _pause(self, seconds: float) -> None:
        assert self._wake is not None
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()


class _BrokerListener:
    """The client listener, without connections: the simulation passes requests to it directly."""

    port = PORT

    def __init__(self, *endpoints: control.Endpoint) -> None:
        self.endpoints = lambda: endpoints

    async def listen(self) -> None:
        return

    async def stop(self) -> None:
        return


class BrokerProcess:
    """One run of a broker's program on a machine."""

    def __init__(self, machine: "SimulatedMachine", life: int) -> None:
        world = machine.world
        self.machine = machine
        self.world = world
        self.node_id = machine.node_id
        self.loop = ProcessLoop(world, machine.name)
        self.loop.process = self
        self.beats = ProcessLoop(world, machine.name)
        self.beats.process = self
        self.life = life
        self.broker: BrokerServer | None = None
        self.stop: asyncio.Event | None = None
        self.ended = False

    def start(self) -> None:
        world, name = self.world, self.machine.name
        world.network.at[name, PORT] = self
        self.loop.call_soon(self._boot)

    def _boot(self) -> None:
        """Run the program's start, and then its loop."""
        try:
            log_directory = LogDirectory.open(self.machine.config)
        except (PowerCut, StorageError) as error:
            # A disk that fails for a while: the program ends and is started again after a second.
            if isinstance(error, StorageError):
                world = self.world
                world.at(world.now_s + 1.0, self.loop, self._boot)
            return
        self.machine.opened(log_directory)
        self.stop = asyncio.Event()
        self.loop.create_task(self._run(log_directory)).add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        # An exception of the broker that no fault explains fails the run.
        if error is not None and not isinstance(error, PowerCut):
            self.world.failures.append((self.machine.name, error))

    def _remote(self, context: Any, config: Any) -> RemoteLogManager:
        remote = RemoteLogManager.of(context, config)
        pools = remote._shared.pools
        # Real threads would make the run depend on the machine, so pools run on the simulated loop.
        for pool in (pools.copier, pools.expiration, pools.fetcher, pools.commits):
            pool._executor = PooledThreads(self.loop)
        return remote

    async def _run(self, log_directory: LogDirectory) -> None:
        stop = self.stop
        assert stop is not None
        config = self.machine.config
        self.broker = broker = BrokerServer(config, log_directory, self._remote)
        broker.listeners = _BrokerListener(config.advertised_endpoint(CLIENTS, PORT))  # type: ignore[assignment]
        broker.replication_server = _BrokerListener()  # type: ignore[assignment]
        # Requests of other brokers arrive here instead of at a socket.
        self._serve = {
            ReplicaFetchRequest: broker.fetch_service.handle,
            WriteMarkersRequest: broker.marker_writer.serve,
            ConfirmColdReadsRequest: broker.confirmation_service.serve,
        }
        # The checks run after each step of this loop.
        self.loop.watch = self.machine.cluster.checks.watcher(self)
        broker.manager.load(log_directory.found())
        works = broker._background(0, lambda _: None)
        tasks = [self.loop.create_task(work) for work in works]
        await stop.wait()
        await broker._shut_down()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # What the log has now must be there after the next start, as this end is clean.
        self.machine.closing(self)
        with contextlib.suppress(StorageError):  # the program ends, and not cleanly
            await broker.log_directory.close(broker.client.proven_broker_epoch)
        self.machine.stopped(self)

    # ------------------------------------------------------------ what others see

    def answer(self, entity: Any, _: Connection) -> Any:
        """Answer a request of another broker."""
        node_id = getattr(entity, "replica_id", self.node_id)
        return self._serve[type(entity)](entity, TlsIdentity(CLUSTER_ID, node_id), room())

    def answered_again(self, request: Any, answer: Any) -> None:
        """Pass an answer to AlterPartition to the partitions once more, as if it had been delayed
        until after a push with the same content.

        The sender keeps one request in flight, but the rule must not rely on that.
        """
        manager = None if self.broker is None else self.broker.manager
        for change, result in zip(request.changes, answer.results, strict=False):
            partition = (
                None if manager is None else manager.by_id(change.topic_id, change.partition)
            )
            if partition is not None:
                isr_and_high_watermark.answered(partition, change, result)

    def partition(self, topic: str, number: int) -> Partition | None:
        return None if self.broker is None else self.broker.manager.get(topic, number)

    async def read_as_reader(self, key: tuple[str, int], offset: int) -> FetchResult:
        """Return a Reader's answer to a Fetch of one partition."""
        assert self.broker is not None
        # The clock of time slices is not simulated.
        call: Any = SimpleNamespace(
            services=self.broker.dispatcher._services, time_slice=TimeSlice(lambda: 0.0)
        )
        request = PartitionRequest(*key, offset, 4000)
        deadline_s = self.world.now_s + 1.0
        (read,) = await fetch_reader.read_from_tier([request], call, 4000, deadline_s)
        return read.result

    @property
    def is_reader(self) -> bool:
        """Whether it runs, and serves as a Reader."""
        return self.broker is not None and self.broker.manager.is_reader

    @property
    def partitions(self) -> tuple[Partition, ...]:
        return () if self.broker is None else self.broker.manager.partitions

    def stall(self, seconds: float, *, whole: bool) -> None:
        """Block the loop, or (``whole``) the process with its heartbeats."""
        self.loop.stall(seconds)
        if whole:
            self.beats.stall(seconds)

    def die(self) -> None:
        self.loop.die()
        self.beats.die()


class SimulatedMachine:
    """A broker's machine: its disk outlives the processes. ``alive`` is the one that runs."""

    def __init__(self, cluster: Any, node_id: int, controllers: list[str], lag_ms: int) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.node_id = node_id
        self.name = f"b{node_id}"
        self.disk = cluster.disks.add(self.name)
        self.alive: BrokerProcess | None = None
        self.lives = 0
        self.config = broker_config.parse(
            {
                **TIMES,
                "replica.lag.time.max.ms": str(lag_ms),
                "node.id": str(node_id),
                "cluster.id": CLUSTER_ID,
                "log.dir": f"{ROOT}{self.name}/logs",
                "listeners": f"{self.name}:{PORT}",
                "controller.addresses": ",".join(f"{name}:{PORT}" for name in controllers),
                "tidemark.tls.directory": f"{ROOT}{self.name}/tls",
            }
        )
        #: What the former process held at its last moment, by (topic, partition).
        self.held: dict[tuple[str, int], Held] = {}
        self.disks_lost = 0

    def start(self) -> None:
        if self.alive is None:
            self.lives += 1
            self.disk.dead = False
            self.disk.on_cut = self.power_cut
            self.alive = BrokerProcess(self, self.lives)
            self.alive.start()

    def shut_down(self) -> None:
        """Stop as after SIGTERM."""
        process = self.alive
        if process is not None and process.stop is not None and not process.ended:
            process.ended = True
            process.loop.call_soon(process.stop.set)

    def kill(self) -> None:
        """SIGKILL: what was written is in the page cache, connections are reset."""
        process = self.alive
        if process is None:
            return
        # Remember the log as it was at the last moment, to compare it after the restart.
        self._note_held(process)
        process.die()
        self.world.network.reset(process.loop)
        self.world.network.reset(process.beats)
        self._gone()

    def power_cut(self) -> None:
        """Cut the power: unsynced bytes may be lost, and no peer is notified."""
        process = self.alive
        self.disk.dead, self.disk.cut_in = False, None
        if process is not None:
            self._note_held(process)
            process.die()
            self._gone()
        # Which unsynced bytes survive is a choice of the run.
        self.disk.lose_power(self.world.chance)

    def lose_disk(self) -> None:
        """The machine comes back with an empty disk."""
        if self.alive is not None:
            self.kill()
        self.disk = self.cluster.disks.add(self.name)
        self.disks_lost += 1

    def _gone(self) -> None:
        self.alive = None
        self.world.network.at.pop((self.name, PORT), None)

    def _note_held(self, process: BrokerProcess) -> None:
        for partition in process.partitions:
            key = partition.topic, partition.partition
            if partition.log.closed:  # it is being removed
                self.held.pop(key, None)
                continue
            self.held[key] = Held.of(partition.log)

    # ------------------------------------------------------------ from the process

    def closing(self, process: BrokerProcess) -> None:
        self._note_held(process)

    def stopped(self, process: BrokerProcess) -> None:
        """Handle a process that ended by itself."""
        process.die()
        self.world.network.reset(process.loop)
        self.world.network.reset(process.beats)
        self._gone()

    def opened(self, log_directory: LogDirectory) -> None:
        """Its logs were opened: what is missing of what the former process had?"""
        logs = {(found.log.topic, found.log.partition): found.log for found in log_directory._found}
        for key, held in self.held.items():
            # A power cut may lose unsynced records. The account excuses exactly those.
            left = held.left_in(logs.get(key))
            if left < held.end:
                self.cluster.checks.lost(self.node_id, key, left, held.end)
        self.held.clear()


def leads(partition: Partition) -> bool:
    return partition.role is Role.LEADER
