"""Several hosts in this process that replicate to each other over loopback, on one tier.

The test acts as the controller. It grants a proposed ISR with current epochs, and notifies every
host, as a controller would.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.tiering import DisablePolicy
from tidemark.wire import control
from tidemark_broker.broker import every
from tidemark_broker.replication.partition import Partition, isr_and_high_watermark

_STALE = 95  # INVALID_UPDATE_VERSION


class TieredCluster:
    def __init__(self, folder: Path, tier: Path, **config: Any) -> None:
        self._folder, self._tier, self._config = folder, tier, config
        self.hosts: dict[int, TieredHost] = {}
        self.config: dict[str, str] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retries: dict[int, asyncio.Task[None]] = {}

    async def start(self, *nodes: int) -> None:
        """Begin or restart brokers; states come with the next :meth:`apply`."""
        for node in nodes:
            host = TieredHost(self._folder, self._tier, node_id=node, **self._config)
            await host.listen()
            host.context.propose_isr = self._propose
            # A new host starts with the controller's current topic and rows.
            if self.hosts:
                any_host = next(iter(self.hosts.values()))
                host.topic, host.rows = any_host.topic, dict(any_host.rows)
            self.hosts[node] = host
            # Every 50 ms, as the retry timer of a broker process.
            self._retries[node] = asyncio.create_task(every(0.05, host.broker.manager.retry))

    async def stop(self, node: int) -> None:
        self._retries.pop(node).cancel()
        await self.hosts.pop(node).close()

    async def apply(self, *only: int, **changes: Any) -> None:
        """Change the row or the topic and push it to every host (or to some of them)."""
        for host in self.hosts.values():
            topic = {k: v for k, v in changes.items() if hasattr(host.topic, k)}
            row = {k: v for k, v in changes.items() if hasattr(host.row, k)}
            host.topic = replace(host.topic, **topic)
            # Every change has a new partition epoch, otherwise brokers would ignore it as stale.
            host.row = replace(host.row, partition_epoch=host.row.partition_epoch + 1, **row)
        await self.push(*only)

    async def push(self, *only: int) -> None:
        brokers = tuple(host.state_of_broker() for host in self.hosts.values())
        for node, host in tuple(self.hosts.items()):
            if only and node not in only:
                # Hosts that are left out play brokers whose command is late.
                continue
            host.brokers = brokers
            host.config |= self.config
            assert not await host.broker.manager.apply(host.states())

    async def until_in_sync(self, *nodes: int) -> None:
        """Wait until the ISR has exactly these brokers."""
        any_host = next(iter(self.hosts.values()))
        await any_host.until(lambda: set(any_host.row.isr) == set(nodes))

    async def until_verified(self) -> None:
        """Wait until every broker has read the store's identity, and has probed the store."""
        for host in self.hosts.values():
            await host.until(lambda host=host: not host.remote.status().error)

    async def disable(
        self, tiered_epoch: int, policy: DisablePolicy
    ) -> dict[int, control.DisableRemoteTopicResult]:
        """Request the disablement from every host until each has acknowledged."""
        done: dict[int, control.DisableRemoteTopicResult] = {}
        hosts = {node: host for node, host in self.hosts.items() if not host.is_reader}
        async with asyncio.timeout(15):
            while len(done) < len(hosts):
                for node, host in hosts.items():
                    # 300 ms: the controller repeats its request, so a host that waits for another
                    # must not block it.
                    result = await host.disable(tiered_epoch, policy, timeout_ms=300)
                    if not result.error_code:
                        done[node] = result
        return done

    async def close(self) -> None:
        for node in tuple(self.hosts):
            await self.stop(node)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _propose(self, partition: Partition, change: control.IsrChange) -> None:
        # The answer is asynchronous, as that of the controller's request.
        task = asyncio.create_task(self._answer(partition, change))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, partition: Partition, change: control.IsrChange) -> None:
        row = next(iter(self.hosts.values())).rows[change.partition]
        # AlterPartition is accepted only under the current epochs (KIP-497), so races between
        # proposals are seen.
        known = (row.leader_epoch, row.partition_epoch)
        error = 0 if known == (change.leader_epoch, change.partition_epoch) else _STALE
        if not error:
            manifest = row.manifest or change.remote_manifest
            row = replace(
                row,
                isr=change.new_isr,
                manifest=manifest,
                leader_recovery_state=change.leader_recovery_state,
                partition_epoch=row.partition_epoch + 1,
            )
            for host in self.hosts.values():
                host.rows[change.partition] = row
        result = control.IsrResult(
            topic_id=change.topic_id,
            partition=change.partition,
            error_code=error,
            leader=row.leader,
            leader_epoch=row.leader_epoch,
            partition_epoch=row.partition_epoch,
            isr=row.isr,
            leader_recovery_state=row.leader_recovery_state,
        )
        # The proposing leader receives the result before the states, as from the operator.
        isr_and_high_watermark.answered(partition, change, result)
        await self.push()
