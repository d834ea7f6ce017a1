"""A world of the operator's shell whose process can end at any of its calls.

The calls are those to the API server, those to a broker, and the push of decided states.
"""

import asyncio
import copy
import functools
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tests.unit.operator_shell.shell_world import FakeEngine, FakeJobs, ShellWorld
from tests.unit.operator_shell.test_record_deletion_reconciler import deleted, points
from tidemark.wire import control
from tidemark.wire.control import (
    DeleteRemoteTopicResponse,
    DisableRemoteTopicRequest,
    DisableRemoteTopicResponse,
    DisableRemoteTopicResult,
)
from tidemark_operator.controller import isr, snapshot
from tidemark_operator.controller.state.export_values import DesiredJob, JobSeen
from tidemark_operator.controller.state.model import NO_LEADER
from tidemark_operator.kube.kinds import BROKER, CLUSTER, EXPORT, RECORD_DELETION, TOPIC, Kind
from tidemark_operator.pods.export_job import ExportRunIdentity
from tidemark_operator.reconcile.broker_reconciler import BrokerReconciler
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.export_reconciler import ExportReconciler
from tidemark_operator.reconcile.record_deletion_reconciler import RecordDeletionReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler
from tidemark_operator.reconcile.workers import Reconcile
from tidemark_operator.term.pacemaker import Pacemaker

#: No flow takes more passes than that.
PASSES = 20
#: Number of passes without a write or a request that count as an end.
QUIET_PASSES = 2


class KillSwitch:
    """Counter of calls that ends the process at call number ``ends_at``.

    Neither that call nor any later one returns. With ``after``, that call still has its effect.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.ends_at: int | None = None
        self.after = False
        self.ended = asyncio.Event()

    def begins(self, ends_at: int | None = None, *, after: bool = False) -> None:
        self.calls, self.ends_at, self.after = 0, ends_at, after
        self.ended = asyncio.Event()

    async def call(self, act: Callable[[], Awaitable[Any]]) -> Any:
        number = self.calls
        self.calls += 1
        if self.ends_at is None or number < self.ends_at:
            return await act()
        if number == self.ends_at and self.after:
            await act()
        self.ended.set()
        # A call of a dead process never returns. An exception would run handlers that a kill does
        # not.
        return await asyncio.Future()


class MortalApi(FakeKubeApi):
    """API whose calls are counted."""

    def __init__(self, server: FakeApiServer, life: KillSwitch) -> None:
        super().__init__(server)
        self.life = life

    async def _call(self, verb: Callable[..., Any], *args: Any, writes: bool, who: str = "") -> Any:
        call = super()._call
        return await self.life.call(lambda: call(verb, *args, writes=writes, who=who))


class MortalEngine(FakeEngine):
    """Engine whose requests to brokers are counted."""

    def __init__(self, journal: list[str], life: KillSwitch) -> None:
        super().__init__(journal)
        self.life = life

    async def _answer(self, method: str, node_id: int, request: Any) -> Any:
        answer = super()._answer
        return await self.life.call(lambda: answer(method, node_id, request))


class MortalJobs(FakeJobs):
    """Jobs that are counted as calls and complete at once; their creator may end."""

    def __init__(self, journal: list[str], life: KillSwitch) -> None:
        super().__init__(journal)
        self.life = life

    async def look(self, run: ExportRunIdentity) -> JobSeen:
        look = super().look
        seen: JobSeen = await self.life.call(lambda: look(run))
        return seen

    async def start(self, run: ExportRunIdentity, wanted: DesiredJob) -> None:
        assert not self.seen, "one job at a time"

        async def begin() -> None:
            self.run(run.key, run.number, lag=0)

        await self.life.call(begin)

    async def stop(self, run: ExportRunIdentity) -> None:
        async def end() -> None:
            self.seen.pop((run.key, run.number), None)

        await self.life.call(end)


class WallClock:
    """Replacement of :mod:`time` in the operator's clock; it advances on command."""

    def __init__(self) -> None:
        self._now_ns = 1_800_000_000_000_000_000

    def time_ns(self) -> int:
        return self._now_ns

    def minute_passes(self) -> None:
        self._now_ns += 60_000_000_000


class MortalWorld(ShellWorld):
    """World whose brokers fulfil every request."""

    def __init__(self, clock: WallClock, server: FakeApiServer | None = None) -> None:
        super().__init__()
        self.clock = clock
        self.server = server or self.server
        self.life = KillSwitch()
        self.api = MortalApi(self.server, self.life)
        self.engine = MortalEngine(self.journal, self.life)
        self.jobs = MortalJobs(self.journal, self.life)
        # Every broker succeeds at once: the only failure in these tests is the kill itself.
        self.engine.answers = {
            "disable_tiering": self._disabled,
            "empty_tier": lambda *_: DeleteRemoteTopicResponse(error_code=0),
            "deletion_points": points,
            "delete_records": deleted,
        }

    def begin(self, tier: Path, brokers: Sequence[int]) -> None:
        """Objects of users; ``tier``: the folder that is the remote store."""
        self.make_cluster(
            {"remote.log.storage.system.enable": "true"},
            remoteStorage={"filesystem": {"path": str(tier)}},
        )
        for node_id in brokers:
            self.make_broker(node_id)

    def again(self) -> "MortalWorld":
        """Return a copy of this world in its present state."""
        # The API server's objects and the jobs survive a kill. The operator's memory does not.
        other = MortalWorld(self.clock, copy.deepcopy(self.server))
        other.busy = self.busy
        other.jobs.seen = dict(self.jobs.seen)
        return other

    def _disabled(
        self, node_id: int, request: DisableRemoteTopicRequest
    ) -> DisableRemoteTopicResponse:
        # Only partitions with a row are acknowledged, under their present leader epoch.
        state = self.services.state
        rows = {part: state.row((request.topic_id, part)) for part in request.partitions}
        return DisableRemoteTopicResponse(
            broker_epoch=state.brokers[node_id].broker_epoch,
            tiered_epoch=request.tiered_epoch,
            error_code=0,
            results=tuple(
                DisableRemoteTopicResult(
                    partition=part,
                    error_code=0,
                    leader_epoch=row.leader_epoch,
                    is_leader=row.leader == node_id,
                )
                for part, row in rows.items()
                if row is not None
            ),
        )

    # ------------------------------------------------------------ a life of the operator

    async def lives(self) -> None:
        """Take over and continue until everything is done or the operator is killed."""

        async def led() -> None:
            async with self.term():
                # Brokers register with every new controller before the first reconcile.
                for body in self.server.of_kind(BROKER):
                    await self.start_broker(int(body["spec"]["nodeId"]))
                await self._passes()

        leading = asyncio.create_task(led())
        ended = asyncio.create_task(self.life.ended.wait())
        # A killed life never finishes on its own: the first of "done" and "killed" ends it.
        await asyncio.wait({leading, ended}, return_when=asyncio.FIRST_COMPLETED)
        for task in (leading, ended):
            if task is leading and task.done():
                # Raise the error of a life that failed rather than being killed.
                task.result()
            task.cancel()
        await asyncio.gather(leading, ended, return_exceptions=True)

    async def _passes(self) -> None:
        """Run rounds of reconciling, heartbeats and replication until two rounds change nothing."""
        services = self.services
        reconcilers: dict[Kind, Reconcile] = {
            CLUSTER: ClusterReconciler(services).reconcile,
            BROKER: BrokerReconciler(services, self.reflector).reconcile,
            TOPIC: TopicReconciler(services).reconcile,
            RECORD_DELETION: RecordDeletionReconciler(services).reconcile,
            EXPORT: ExportReconciler(services).reconcile,
        }
        pacemaker = Pacemaker(services, self.questions)
        quiet = 0
        for _ in range(PASSES):
            # Reconcile every object as if the watch had just delivered it.
            before = self._happened()
            for kind, reconcile in reconcilers.items():
                for body in self.server.of_kind(kind):
                    services.objects.put(body)
                    await reconcile(self.key(kind, body["metadata"]["name"]))
            # Then the periodic work of the term, and the tasks that the reconcilers started.
            await pacemaker._turn(1)
            await self.quiet()
            # Brokers acknowledge the decided states. A kill can also strike before an
            # acknowledgement.
            for node_id in list(services.state.brokers):
                await self.life.call(functools.partial(self._apply_snapshot, node_id))
            await self._catch_up()
            # Time passes, so that reconcilers continue that wait for an interval.
            self.clock.minute_passes()
            quiet = quiet + 1 if self._happened() == before else 0
            if quiet == QUIET_PASSES:
                return
        raise AssertionError(f"not settled after {PASSES} passes")

    def _happened(self) -> tuple[int, int]:
        """Return the number of writes and of requests."""
        return self.server.version, len(self.engine.requests)

    async def _apply_snapshot(self, node_id: int) -> None:
        """A broker applies the present snapshot."""
        services = self.services
        state = services.state
        request = snapshot.full(state)
        answer = control.PartitionStatesResponse(
            error_code=0, broker_epoch=state.brokers[node_id].broker_epoch, errors=()
        )
        state.take_states(node_id, request, answer)
        services.deletions.take(state, node_id, request, answer)

    async def _catch_up(self) -> None:
        """Add every replica that is outside the ISR, as leaders do."""
        state = self.services.state
        for row in list(state.all_rows()):
            if row.leader == NO_LEADER or set(row.isr) == set(row.hosts):
                continue
            change = control.IsrChange(
                topic_id=row.topic_id,
                partition=row.partition,
                leader_epoch=row.leader_epoch,
                partition_epoch=row.partition_epoch,
                # All hosts are in sync at once: replication itself is not simulated.
                new_isr=row.hosts,
                remote_manifest=False,
            )
            proposal = control.AlterPartitionRequest(
                broker_id=row.leader,
                broker_epoch=state.brokers[row.leader].broker_epoch,
                changes=(change,),
            )
            await self.services.committer.decide(
                functools.partial(isr.alter_partition, request=proposal)
            )
