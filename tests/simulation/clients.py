"""Producers, consumers and users: their requests, and the answers that they received.

A producer records what was acknowledged with acks=all; a consumer reads from the log start to the
high watermark, through the local log and the tier.
"""

from functools import partial
from typing import Any

from tests.simulation.brokers import BrokerProcess, batches_of
from tests.simulation.checks import Key
from tidemark.records.batch import parse_header
from tidemark.records.builder import Record, build_batch
from tidemark_broker.replication.partition import Partition, consumer_reads, produce
from tidemark_broker.replication.remote import RemoteOffsetOutOfRange, RemoteUnavailable
from tidemark_operator.controller.state.model import NO_LEADER
from tidemark_operator.kube.kinds import RECORD_DELETION, TOPIC, Json

_PRODUCE_TIMEOUT_MS = 1200


class Clients:
    """All clients of a run; their traffic goes over the simulated network."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.keys: list[Key] = []
        self.producing = True
        self.acked = self.refused = self.read = self.read_remote = self.read_from_readers = 0
        #: What :meth:`read_whole` could not read, and why.
        self.unread: dict[Key, str] = {}
        self._number = 0
        self._positions: dict[Key, int] = {}
        self._deletions = 0

    def start(self, *, produce_s: float, consume_s: float) -> None:
        self._produce_s, self._consume_s = produce_s, consume_s
        self.world.after(0.5, self._produce)
        self.world.after(0.7, self._consume)

    def _leader(self, key: Key) -> BrokerProcess | None:
        """The leader as the cluster's metadata says, now and then another broker."""
        row, chance = self.cluster.checks.rows.get(key), self.world.chance
        if row is None:
            return None
        # A client's metadata may be out of date, so one request in twenty goes to another replica.
        node = row.leader
        if chance.random() < 0.05 and row.hosts:
            node = chance.choice(row.hosts)
        machine = self.cluster.machines.get(node)
        return None if node == NO_LEADER or machine is None else machine.alive

    def _leader_of(self, key: Key) -> BrokerProcess | None:
        row = self.cluster.checks.rows.get(key)
        machine = None if row is None else self.cluster.machines.get(row.leader)
        return None if machine is None else machine.alive

    # ------------------------------------------------------------ producing

    def _produce(self) -> None:
        chance = self.world.chance
        if self.producing:
            self.world.after(self._produce_s * 2 * chance.random(), self._produce)
            for _ in range(chance.choice((1, 1, 2, 4))):
                self._send(chance.choice(self.keys))

    def _send(self, key: Key) -> None:
        process, chance = self._leader(key), self.world.chance
        if process is None:
            return
        self._number += 1
        # The number makes each batch different, so its CRC identifies it.
        records = [
            Record(b"", b"%d" % self._number, (), self.world.wall_ms())
            for _ in range(chance.choice((1, 1, 3)))
        ]
        # Only acks=all is a promise. The others are there to mix with it in the log.
        acks = chance.choice((-1, -1, -1, 1, 0))
        network = self.world.network
        network.send(
            self.world.ether, process.loop, self._append, process, key, build_batch(records), acks
        )

    def _append(self, process: BrokerProcess, key: Key, data: bytes, acks: int) -> None:
        partition = process.partition(*key)
        if partition is not None:
            process.loop.create_task(self._appended(process, partition, key, data, acks))

    async def _appended(
        self, process: BrokerProcess, partition: Partition, key: Key, data: bytes, acks: int
    ) -> None:
        result = await produce.append(partition, data, acks=acks, timeout_ms=_PRODUCE_TIMEOUT_MS)
        if result.error.value:
            self.refused += 1
        elif acks == -1:
            crc = parse_header(data).crc
            self.acked += 1
            # Looked at behind this step: the append itself may have advanced the high watermark.
            self.world.after_step.append(
                partial(
                    self.cluster.checks.acknowledged, key, result.base_offset, crc, process.node_id
                )
            )

    # ------------------------------------------------------------ consuming

    def _consume(self) -> None:
        chance = self.world.chance
        if self.producing:
            self.world.after(self._consume_s * 2 * chance.random(), self._consume)
            self.read_once(chance.choice(self.keys))
            if self.cluster.readers:
                self._read_cold(chance.choice(self.keys))

    def read_once(self, key: Key) -> None:
        process = self._leader(key)
        if process is not None:
            network = self.world.network
            network.send(self.world.ether, process.loop, self._fetch, process, key)

    def _fetch(self, process: BrokerProcess, key: Key) -> None:
        partition = process.partition(*key)
        if partition is not None and partition.is_leader:
            process.loop.create_task(self._fetched(process, partition, key))

    async def _fetched(self, process: BrokerProcess, partition: Partition, key: Key) -> None:
        checks = self.cluster.checks
        offset, epoch = self._positions.get(key, 0), partition.leader_epoch
        # Each answer shows a log start, which must not go back.
        checks.client_saw_start(key, partition.log_start_offset, process.node_id, epoch)
        answer = consumer_reads.fetch(partition, offset, max_bytes=4000, min_one=True)
        # As Kafka's consumer with auto.offset.reset=earliest.
        if answer.error.name == "offset_out_of_range":
            self._positions[key] = partition.log_start_offset
            return
        if answer.error.value:
            return
        remote, data = answer.remote is not None, answer.data
        # Noted before the read: a deletion that is acknowledged meanwhile does not count.
        too_late = checks.remote_is_deleted
        # The offset is in the tier, and the read goes through the remote log manager's threads.
        if answer.remote is not None:
            manager = partition.context.remote
            if manager is None:
                return
            deadline_s = self.world.now_s + 1.0
            try:
                found = await manager.read(partition, offset, answer.remote.max_bytes, deadline_s)
            except (RemoteOffsetOutOfRange, RemoteUnavailable, TimeoutError):
                return
            data = bytes(found.data)
            if too_late and data:
                checks.fail("8", f"{key}: broker {process.node_id} read {offset} after the Delete")
        checks.consumed(key, data, remote=remote, node=process.node_id, epoch=epoch)
        self._go_on(key, offset, answer.high_watermark, data, remote=remote)

    def _read_cold(self, key: Key) -> None:
        """One consumer reads at a Reader, at any offset: the log start may be unknown to it."""
        chance = self.world.chance
        process = self.cluster.machines[chance.choice(self.cluster.readers)].alive
        offset = chance.randrange(self.cluster.checks.ledgers[key].end + 1)
        if process is not None:
            network = self.world.network
            network.send(self.world.ether, process.loop, self._fetch_cold, process, key, offset)

    def _fetch_cold(self, process: BrokerProcess, key: Key, offset: int) -> None:
        if process.is_reader:
            process.loop.create_task(self._fetched_cold(process, key, offset))

    async def _fetched_cold(self, process: BrokerProcess, key: Key, offset: int) -> None:
        checks = self.cluster.checks
        # Noted before the read: a deletion that is acknowledged meanwhile does not count.
        deleted_to, too_late = checks.ledgers[key].deleted_to, checks.remote_is_deleted
        result = await process.read_as_reader(key, offset)
        if not result.data:
            return
        self.read_from_readers += 1
        if offset < deleted_to:
            checks.fail(
                "2", f"{key}: Reader {process.node_id} served {offset}, deleted is to {deleted_to}"
            )
        if too_late:
            checks.fail("8", f"{key}: Reader {process.node_id} served {offset} after the Delete")
        epoch = result.leader_epoch
        checks.consumed(key, bytes(result.data), remote=True, node=process.node_id, epoch=epoch)

    def _go_on(self, key: Key, offset: int, end: int, data: bytes, *, remote: bool) -> None:
        for batch in batches_of(data):
            offset = max(offset, batch.last_offset + 1)
            self.read += 1
            self.read_remote += remote
        # At the end it restarts, so that every offset is read often, in either tier.
        self._positions[key] = 0 if offset >= end else offset

    def read_whole(self, key: Key) -> None:
        """One consumer reads all that the leader says is there; ``unread`` says why it has not."""
        process = self._leader_of(key)
        partition = None if process is None else process.partition(*key)
        if process is not None and partition is not None and partition.is_leader:
            self.unread[key] = "it takes too long"
            process.loop.create_task(self._read_whole(process, partition, key))

    async def _read_whole(self, process: BrokerProcess, partition: Partition, key: Key) -> None:
        checks, epoch = self.cluster.checks, partition.leader_epoch
        offset, end = partition.log_start_offset, partition.high_watermark
        while offset < end:
            try:
                data, remote = await self._read_at(partition, offset)
            except (RemoteOffsetOutOfRange, RemoteUnavailable, TimeoutError, LookupError) as error:
                if offset >= partition.log_start_offset:
                    self.unread[key] = f"{offset} of {end}: {error!r}"
                    return
                offset = partition.log_start_offset  # it has expired meanwhile
                continue
            checks.consumed(key, data, remote=remote, node=process.node_id, epoch=epoch)
            # No data below the end ends the loop with a reason.
            offset = max((batch.last_offset + 1 for batch in batches_of(data)), default=end + 1)
            if offset > end:
                self.unread[key] = f"nothing is answered below {end}"
                return
        del self.unread[key]

    async def _read_at(self, partition: Partition, offset: int) -> tuple[bytes, bool]:
        answer = consumer_reads.fetch(partition, offset, max_bytes=4000, min_one=True)
        if answer.error.value:
            raise LookupError(answer.error.name)
        manager = partition.context.remote
        if answer.remote is None or manager is None:
            return bytes(answer.data), False
        until_s = self.world.now_s + 5.0
        found = await manager.read(partition, offset, answer.remote.max_bytes, until_s)
        return bytes(found.data), True

    # ------------------------------------------------------------ users

    def delete_records(self, key: Key) -> None:
        """A RecordDeletion up to a part of what is there."""
        ledger, chance = self.cluster.checks.ledgers[key], self.world.chance
        # One in five uses -1, which is the high watermark.
        offset = -1 if chance.random() < 0.2 else chance.randrange(ledger.end + 1)
        self._delete(key, offset)

    def delete_again(self, key: Key) -> None:
        """The same once more (invariant 12)."""
        deletions = self.cluster.checks.deletions
        done = deletions.acknowledged(key)
        if done:
            self._delete(key, self.world.chance.choice(done))
            deletions.again.add(f"deletion-{self._deletions}")

    def _delete(self, key: Key, offset: int) -> None:
        self._deletions += 1
        self.cluster.checks.note(f"a user deletes {key[0]}-{key[1]} below {offset}")
        self.cluster.kube.create(
            "user",
            RECORD_DELETION,
            "default",
            {
                "metadata": {"name": f"deletion-{self._deletions}"},
                "spec": {
                    "topicRef": {"name": key[0]},
                    "partitions": [{"partition": key[1], "beforeOffset": offset}],
                },
            },
        )

    def saw(self, body: Json) -> None:
        """An object as a user sees it."""
        self.cluster.checks.deletions.saw(body)

    def tier(self, topic: str, *, enabled: bool, policy: str) -> None:
        """A user switches tiering on or off."""
        self.cluster.checks.note(f"a user sets tiering of {topic}: {enabled}, {policy}")
        self.cluster.kube.edit(
            TOPIC, topic, {"tiering": {"enabled": enabled, "disablePolicy": policy}}
        )
