"""Before and between terms: the choice of the Cluster, and causes that block a takeover."""

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.loop_turns import many_turns
from tests.unit.operator_shell.shell_world import NAMESPACE, NoEvents, ShellWorld
from tidemark.tls.files import TlsFiles
from tidemark_operator.certificates import certificate_stores
from tidemark_operator.certificates.certificate_stores import SecretStore
from tidemark_operator.certificates.certificates import OwnLeaf
from tidemark_operator.clock import utc_now
from tidemark_operator.controller.epochs import EPOCH_MAX
from tidemark_operator.health import verdict
from tidemark_operator.jobs.kubernetes import KubernetesJobs
from tidemark_operator.kube.errors import ApiServerUnavailable, NotFound
from tidemark_operator.kube.kinds import (
    CLUSTER,
    LEASE,
    MANY,
    PARTITION_SLICE,
    TOPIC,
    Json,
    ObjectList,
)
from tidemark_operator.leadership.elector import protect_lease
from tidemark_operator.leadership.terms import EpochTooLow, NotLeading
from tidemark_operator.listener.standby_discovery import ControllerSearches
from tidemark_operator.metrics import Metrics
from tidemark_operator.resources.names import LEASE_FINALIZER
from tidemark_operator.settings import OperatorSettings
from tidemark_operator.term import own_certificate, term_runner
from tidemark_operator.term.broker_requests import BrokerRequests
from tidemark_operator.term.term_runner import TermRunner


class Shell(ShellWorld):
    """World with the term runner of one operator."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.own_leaf = OwnLeaf(utc_now)
        self.runner = TermRunner(
            OperatorSettings(namespace=NAMESPACE, **settings),
            "op",
            Metrics(),
            leads=lambda: self.leads,
            requests=BrokerRequests(),
            own_leaf=self.own_leaf,
            store_of=lambda api: SecretStore(api, NAMESPACE),
            jobs_of=lambda api: KubernetesJobs(api, NAMESPACE),
        )

    async def find_cluster(self) -> str:
        return await self.runner._discovery.find(self.api)  # type: ignore[arg-type]

    @contextlib.asynccontextmanager
    async def leading(self) -> AsyncIterator[None]:
        """Run a term until the end of the block."""
        leading = asyncio.create_task(self.runner._try(self.api, FakeServer(), NoEvents()))  # type: ignore[arg-type]
        async with asyncio.timeout(20):
            while self.runner._term is None:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0)
            yield
        leading.cancel()
        await asyncio.gather(leading, return_exceptions=True)
        self.own_leaf.close()

    async def until_ready(self, *parts: str) -> None:
        """Wait until each part of the Cluster's condition Ready contains the given text."""
        while True:
            with contextlib.suppress(KeyError, StopIteration):
                found = self.condition(CLUSTER, "main", "Ready")
                if all(part in text for part, text in zip(parts, found, strict=True)):
                    return
            await asyncio.sleep(0.01)

    async def try_a_term(self) -> None:
        await self.runner._try(self.api, object(), NoEvents())  # type: ignore[arg-type]


def older(name: str) -> dict[str, Any]:
    return {"name": name, "creationTimestamp": "2020-01-01T00:00:00Z"}


async def test_the_oldest_cluster_of_the_namespace_is_controlled() -> None:
    shell = Shell()
    shell.make(CLUSTER, "young", {})
    shell.make(CLUSTER, "old", {}, metadata=older("old"))
    assert await shell.find_cluster() == "old"


async def test_the_cluster_that_the_settings_name_is_controlled() -> None:
    shell = Shell(cluster="young")
    shell.make(CLUSTER, "young", {})
    shell.make(CLUSTER, "old", {}, metadata=older("old"))
    assert await shell.find_cluster() == "young"


async def test_cluster_created_later_is_found_at_once() -> None:
    shell = Shell()
    finding = asyncio.create_task(shell.find_cluster())
    # The first list has found no Cluster: the loop now waits for the watch.
    while "list_all Cluster " not in shell.api.calls:  # noqa: ASYNC110 - nothing to await
        await asyncio.sleep(0)
    shell.runner.follower.arrived.append((shell.make(CLUSTER, "main", {}), False))
    shell.runner.follower.drain()
    assert await asyncio.wait_for(finding, 5) == "main"


async def test_an_operator_that_started_before_the_definitions_waits_for_them() -> None:
    shell = Shell()
    # The CRDs are installed after the operator starts.
    shell.api.fail("list_all Cluster", NotFound(404, "no such resource"))
    finding = asyncio.create_task(shell.find_cluster())
    while "list_all Cluster " not in shell.api.calls:  # noqa: ASYNC110 - nothing to await
        await asyncio.sleep(0)
    await many_turns()
    # With the Lease, /healthz reports the missing definitions instead of failing.
    shell.runner.won()
    assert "Install the resource definitions" in shell.runner.pulse().excuse
    shell.runner.follower.arrived.append((shell.make(CLUSTER, "main", {}), False))
    shell.runner.follower.drain()
    async with asyncio.timeout(5):
        assert await finding == "main"


async def test_without_the_lease_no_cluster_is_looked_for() -> None:
    shell = Shell()
    shell.leads = False
    with pytest.raises(NotLeading):
        await shell.find_cluster()
    assert not shell.api.calls


async def test_the_last_epoch_is_reported_and_not_exceeded() -> None:
    shell = Shell()
    shell.make_cluster()
    # The next epoch would exceed the largest one that the wire format can carry.
    shell.runner._floor = EPOCH_MAX
    await shell.try_a_term()
    ready = shell.condition(CLUSTER, "main", "Ready")
    assert ready[:2] == ("False", "EpochsExhausted")
    assert shell.condition(CLUSTER, "main", "Stalled")[0] == "True"
    assert "controller" not in shell.status(CLUSTER, "main")


async def test_unusable_slices_are_reported_once() -> None:
    shell = Shell()
    shell.make_cluster()
    async with shell.term():
        pass
    # A newer version wrote a row in a format that this version cannot read.
    shell.server._objects[PARTITION_SLICE.kind, "main-05"]["partitions"] = ["9|newer"]
    await shell.try_a_term()
    status, _, message = shell.condition(CLUSTER, "main", "Stalled")
    assert status == "True"
    assert "slice 5" in message
    shell.runner.won()
    pulse = shell.runner.pulse()
    assert pulse.without_term_s is not None
    assert "slice 5" in pulse.excuse, "a restart of the process would not help"
    shell.journal.clear()
    # The second attempt meets the same slice.
    await shell.try_a_term()
    assert shell.journal == [], "the conditions say it, and no epoch is spent on it"


async def test_takeover_exceeds_the_epoch_that_a_broker_has_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell()
    shell.make_cluster()

    async def ends(*_: object) -> None:
        raise EpochTooLow(41)

    monkeypatch.setattr(shell.runner, "_one_term", ends)
    await shell.try_a_term()
    assert shell.runner._floor == 41


async def test_term_stopped_without_a_condition_is_unhealthy() -> None:
    shell = Shell()
    shell.make_cluster()
    shell.runner.won()
    # The API server is unreachable for the whole takeover, including its status.
    shell.api.fail("list_all Topic", ApiServerUnavailable(503, "down"), times=100)
    await shell.try_a_term()
    pulse = shell.runner.pulse()
    assert pulse.leads
    assert pulse.without_term_s is not None
    assert not pulse.excuse


async def test_a_watch_that_never_began_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The epoch may be the only write of a term, so its watch event must arrive."""
    shell = Shell()
    shell.make_cluster()
    shell.runner.won()

    # A term that writes its epoch and then does nothing.
    class IdleTerm:
        def __init__(self, *_: object, **__: object) -> None:
            self.began = term_began

        async def run(self) -> None:
            self.began.set()
            await asyncio.Future()

        def deliver(self, body: Json, gone: bool) -> None:
            shell.runner.follower.objects.put(body)

    term_began = asyncio.Event()
    monkeypatch.setattr(term_runner, "Term", IdleTerm)
    leading = asyncio.create_task(shell.try_a_term())
    async with asyncio.timeout(20):
        await term_began.wait()
    # The write of the epoch is not confirmed by a watch event yet.
    pulse = shell.runner.pulse()
    assert pulse.silent is not None
    assert pulse.silent[0] == CLUSTER.kind
    assert not verdict(pulse, stand_still_s=-1.0)[0]
    body = shell.server.find(CLUSTER, "main")
    assert body is not None
    # The event arrives, and the watch counts as healthy.
    shell.runner.follower.arrived.append((body, False))
    shell.runner.follower.drain()
    assert shell.runner.pulse().silent is None
    assert b"\ntidemark_operator_term 1.0\n" in shell.runner._metrics.render()
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)
    assert b"\ntidemark_operator_term 0.0\n" in shell.runner._metrics.render()


async def test_watch_of_each_kind_must_start() -> None:
    """Without writes, nothing else reveals a watch that never starts."""
    shell = Shell()
    shell.runner.won()
    following = asyncio.create_task(shell.runner.follower.follow(NeverServed()))  # type: ignore[arg-type]
    await many_turns()
    # Each kind's first list clears its part of the verdict.
    for kind in MANY:
        silent = shell.runner.pulse().silent
        assert silent is not None
        assert silent[0] == kind.kind
        shell.runner.follower.list_finished(kind, set(), 7)
    assert shell.runner.pulse().silent is None
    # The watch of Topics ends and is requested again.
    shell.runner.follower.before_list(TOPIC)
    silent = shell.runner.pulse().silent
    assert silent is not None, "it has to restart, and may be refused"
    assert silent[0] == TOPIC.kind
    following.cancel()


class NeverServed:
    """API server that never answers."""

    async def pages(self, *_: object) -> AsyncIterator[ObjectList]:
        await asyncio.Future()
        yield ObjectList(resource_version=0)


async def test_an_unreadable_object_does_not_block_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shell = Shell()
    cluster, topic = shell.make_cluster(), shell.make_topic("t")
    for body in ({"kind": "Cluster"}, cluster):
        # The unreadable object arrives first, so that it could block the second one.
        shell.runner.follower.arrived.append((body, False))
    shell.runner.follower.drain()
    for body in ({"kind": "Topic", "metadata": None}, topic):
        shell.runner.follower.list_item(TOPIC, body, 0)
    assert shell.runner.follower.objects.keys(CLUSTER)
    assert shell.runner.follower.objects.keys(TOPIC)
    assert caplog.text.count("cannot be processed") == 2


async def test_restored_api_server_ends_the_term_and_doubts_all_rows() -> None:
    """Objects of a list that are older than the known ones reach no decision of this term."""
    shell = Shell()
    shell.make_cluster()
    topic = shell.make_topic("t")
    leading = asyncio.create_task(shell.runner._try(shell.api, FakeServer(), NoEvents()))  # type: ignore[arg-type]
    shell.runner.won()
    async with asyncio.timeout(20):
        while shell.runner._term is None:  # noqa: ASYNC110 - nothing to await
            await asyncio.sleep(0)
    await many_turns()
    state = shell.runner._term.services.state
    known = shell.runner.follower.before_list(TOPIC)
    # A list with a lower version than the known one: etcd was restored from a backup.
    shell.runner.follower.list_started(TOPIC, known - 1, known)
    old = {**topic, "spec": {**topic["spec"], "partitions": 9}}
    shell.runner.follower.list_item(TOPIC, old, known - 1)
    async with asyncio.timeout(20):
        await leading
    # The restored spec has 9 partitions, which this term must not act upon.
    assert state.topics[f"{NAMESPACE}/t"].partitions == 1
    assert shell.runner._behind, "and the next controller doubts every row"


async def test_a_takeover_that_finds_a_restored_api_restarts() -> None:
    shell = Shell()
    shell.make_cluster()
    shell.make_topic("t")
    shell.runner.won()
    shell.runner.follower.watch_event({**shell.make_broker(1), "kind": "Broker"}, False)
    # The restored server continues at version 3, below what the watch has delivered.
    version, shell.server._version = shell.server._version, 3
    assert version > 100
    await shell.try_a_term()
    assert "rebuilding" not in shell.status(CLUSTER, "main")
    assert shell.runner._behind
    leading = asyncio.create_task(shell.runner._try(shell.api, FakeServer(), NoEvents()))  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        while shell.runner._term is None:  # noqa: ASYNC110 - nothing to await
            await asyncio.sleep(0)
    assert shell.status(CLUSTER, "main")["rebuilding"]["reason"] == "SlicesBehind"
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_an_object_deleted_while_its_watch_was_down_is_missing_in_the_list() -> None:
    shell = Shell()
    shell.make_cluster()
    shell.make_topic("kept")
    shell.make_topic("deleted")
    leading = asyncio.create_task(shell.runner._one_term(shell.api, FakeServer(), NoEvents()))  # type: ignore[arg-type]
    async with asyncio.timeout(20):
        while shell.runner._term is None:  # noqa: ASYNC110 - nothing to await
            await asyncio.sleep(0)
    await many_turns()
    kept, deleted = (shell.key(TOPIC, name) for name in ("kept", "deleted"))
    assert shell.runner.follower.objects.keys(TOPIC) == {kept, deleted}
    # The relist lacks the deleted Topic, although no event announced its deletion.
    shell.runner.follower.list_finished(TOPIC, {kept}, shell.server.version)
    assert shell.runner.follower.objects.keys(TOPIC) == {kept}
    assert "ns/deleted" not in shell.runner._term.services.state.topics
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


def full_disk(*_: object) -> None:
    raise OSError("no space left on device")


async def test_term_starts_after_the_own_certificate_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a certificate no broker can connect, while the Lease blocks every other operator."""
    shell = Shell()
    shell.make_cluster()
    shell.runner.won()
    # The second try must not assume that the leaf of the first one was written.
    with monkeypatch.context() as patched:
        patched.setattr(certificate_stores, "_write", full_disk)
        for _ in range(2):
            await shell.runner._try(shell.api, FakeServer(), NoEvents())  # type: ignore[arg-type]
            assert shell.runner._term is None
    status, reason, message = shell.condition(CLUSTER, "main", "Ready")
    assert (status, reason) == ("False", "CertificatesUnusable")
    assert "no space left on device" in message
    # /healthz fails, and the next try leads.
    pulse = shell.runner.pulse()
    assert not pulse.excuse, "another process may be able to: /healthz fails in time"
    assert not verdict(pulse, stand_still_s=-1.0)[0]
    async with shell.leading():
        assert shell.own_leaf.files.contexts().digest


async def test_failed_renewal_of_the_own_certificate_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell()
    shell.make_cluster()
    monkeypatch.setattr(own_certificate, "FOLLOW_AUTHORITY_S", 0.01)
    async with shell.leading():
        following = asyncio.create_task(shell.runner.follow_authority(shell.api))  # type: ignore[arg-type]
        with monkeypatch.context() as patched:
            patched.setattr(certificate_stores, "_write", full_disk)
            # The folder with the certificate is lost, and the disk is full.
            shutil.rmtree(shell.own_leaf.files.folder)
            await shell.until_ready("False", "CertificatesUnusable", "no space left on device")
        # Once the disk has room, the next pass writes the certificate and clears the condition.
        await shell.until_ready("False", "NoBrokers", "no broker is live")
        assert TlsFiles(shell.own_leaf.files.folder).contexts().digest
        following.cancel()


class FakeServer:
    """Control listener without any client."""

    searches = ControllerSearches()

    def begin_term(self, *_: object, **__: object) -> None: ...

    def end_term(self) -> None: ...


def lease(shell: Shell) -> Json:
    body = shell.server.find(LEASE, "tidemark-operator")
    assert body is not None
    return body


async def test_the_lease_is_kept_while_a_cluster_needs_a_controller() -> None:
    shell = Shell()
    meta = {"metadata": {"name": "tidemark-operator"}}
    shell.server.create("elector", LEASE, NAMESPACE, meta)
    api: Any = shell.api
    # The second pass changes nothing.
    for _ in range(2):
        await protect_lease(api, NAMESPACE, "tidemark-operator")
    assert lease(shell)["metadata"]["finalizers"] == [LEASE_FINALIZER]
    # The deletion of the namespace deletes the Lease too, but the Cluster still exists.
    shell.server.delete("namespace controller", LEASE, "tidemark-operator")
    await protect_lease(api, NAMESPACE, "tidemark-operator")
    assert lease(shell)["metadata"]["deletionTimestamp"]
    # Without any Cluster, the loop releases the Lease.
    finding = asyncio.create_task(shell.find_cluster())
    async with asyncio.timeout(5):
        while shell.server.find(LEASE, "tidemark-operator"):  # noqa: ASYNC110 - nothing to await
            await asyncio.sleep(0)
    finding.cancel()


async def test_deleted_cluster_is_torn_down_between_terms() -> None:
    shell = Shell()
    shell.make_cluster()
    async with shell.term():
        pass
    shell.server.delete("user", CLUSTER, "main")
    # The operator that takes over next finds the Cluster being deleted.
    await shell.try_a_term()
    assert not shell.server.of_kind(CLUSTER)
    assert not shell.server.of_kind(PARTITION_SLICE)
