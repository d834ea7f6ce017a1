"""Findings of an audit reach the Topics that they concern through the store."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.unit.operator_shell.shell_world import ShellWorld
from tests.unit.operator_shell.test_exits import TIERING_SYSTEM, served
from tidemark.tier.maintenance.audit_record import TopicAudit, WorstFinding, write_record
from tidemark.tier.maintenance.findings import FindingKind
from tidemark.tier.metadata.layout import AUDIT_KEY, segment_key
from tidemark.tier.stores.directory import DirectoryStore
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller.status.remote_integrity import VALID_MS
from tidemark_operator.kube.kinds import TOPIC
from tidemark_operator.reconcile.cluster_reconciler import AuditReader, ClusterReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler

T = ShellWorld.key(TOPIC, "t")


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[ShellWorld]:
    """World with a served tiered topic, and a topic that never was tiered."""
    made = ShellWorld()
    made.make_cluster(
        {TIERING_SYSTEM: "true"}, remoteStorage={"filesystem": {"path": str(tmp_path)}}
    )
    made.make_broker(1)
    async with made.term():
        await made.start_broker(1)
        await ClusterReconciler(made.services).reconcile(made.services.cluster_key)
        made.make_topic(tiering={"enabled": True})
        made.make_topic("plain")
        assert await served(made)
        assert await served(made, "plain")
        yield made


def audited(world: ShellWorld, kind: FindingKind | None = None, *, age_ms: int = 0) -> TopicAudit:
    topic_id = world.services.state.topics["ns/t"].id
    key = segment_key("t", topic_id, 0, 10, topic_id) + ".log"
    return TopicAudit(
        topic_id=topic_id,
        name="t",
        at_ms=wall_ms() - age_ms,
        by="tidemark-1.2.3",
        manifests=1,
        versions=(4, 4),
        segments=2,
        size_bytes=5,
        counts={} if kind is None else {kind: 3},
        worst=() if kind is None else (WorstFinding(kind, 0, key, 10, 19),),
    )


async def read_audit(world: ShellWorld) -> tuple[str, str, str]:
    """Read the audit record, reconcile the queued Topics and return the condition."""
    await AuditReader(world.services).look()
    queue = world.services.queue
    while queue.depth:
        key = await queue.get()
        assert key == T, "a Topic that it does not concern is left alone"
        await TopicReconciler(world.services).reconcile(key)
        queue.done(key)
    return world.condition(TOPIC, "t", "RemoteIntegrity")


async def drained(world: ShellWorld) -> None:
    while world.services.queue.depth:
        world.services.queue.done(await world.services.queue.get())


async def test_a_topic_shows_the_last_audits_findings_until_the_next_one(
    world: ShellWorld, tmp_path: Path
) -> None:
    store = DirectoryStore(tmp_path)

    async def after(audit: TopicAudit) -> tuple[str, str, str]:
        write_record(store, [audit], replaces_all=True)
        return await read_audit(world)

    # No audit has run yet: the condition names the command that starts one.
    await drained(world)
    status, reason, message = await read_audit(world)
    assert (status, reason) == ("Unknown", "NotAudited")
    assert message.endswith("tidemark spark audit t")

    # A missing segment is damage, and the message locates the lost offsets.
    status, reason, message = await after(audited(world, FindingKind.MISSING))
    assert (status, reason) == ("False", "DamageFound")
    for text in ("3 Missing", "partition 0, offsets 10 to 19, data/t-", "before offset 20"):
        assert text in message
    (event,) = [item for item in world.events.emitted if item.reason == "DamageFound"]
    assert (event.key, event.message) == ("ns/t", message)

    # An outdated audit is no longer proof of integrity, but damage stays damage.
    old = audited(world, FindingKind.DAMAGED, age_ms=2 * VALID_MS)
    assert (await after(old))[:2] == ("False", "DamageFound"), "it does not heal with time"
    assert (await after(audited(world, FindingKind.GAP)))[1] == "ManifestContradicts"
    assert world.events.reasons.count("DamageFound") == 1, "one event when it became False"

    # A clean audit clears the condition, until it is older than its validity.
    status, reason, message = await after(audited(world))
    assert (status, reason) == ("True", "AuditPassed")
    assert "2 segments (5 bytes) of 1 partition are intact" in message
    assert (await after(audited(world, age_ms=VALID_MS + 1)))[:2] == ("Unknown", "AuditOutdated")
    assert (await after(audited(world, FindingKind.LINEAGE)))[0] == "False"
    # Damage in the tier never affects Ready, and an untiered topic has no such condition.
    assert world.condition(TOPIC, "t", "Ready")[:2] == ("True", "Serving")
    assert not [
        item
        for item in world.status(TOPIC, "plain")["conditions"]
        if item["type"] == "RemoteIntegrity"
    ]


async def test_equal_records_are_written_once_and_read_once_a_minute(
    world: ShellWorld, tmp_path: Path
) -> None:
    await drained(world)
    write_record(DirectoryStore(tmp_path), [audited(world)], replaces_all=True)
    await read_audit(world)
    world.journal.clear()
    reader = AuditReader(world.services)
    await reader.look()
    # The second read found the same record: nothing is queued or written.
    assert (world.services.queue.depth, world.journal) == (0, [])
    # A torn file within the same minute is not even read.
    (tmp_path / AUDIT_KEY).write_bytes(b"torn")
    await reader.look()
    assert world.services.state.cluster.audits is not None
    assert world.services.state.cluster.audits.problem == ""


async def test_unreadable_record_keeps_findings_and_proves_nothing(
    world: ShellWorld, tmp_path: Path
) -> None:
    await drained(world)
    store = DirectoryStore(tmp_path)
    for kind, expected in (
        (FindingKind.MISSING, ("False", "DamageFound")),
        (None, ("Unknown", "NotAudited")),
    ):
        write_record(store, [audited(world, kind)], replaces_all=True)
        await read_audit(world)
        # The exporter of the record was killed while it wrote: a prefix of the JSON remains.
        (tmp_path / AUDIT_KEY).write_bytes(b'{"formatVersion":1,"topics":')
        assert (await read_audit(world))[:2] == expected
    assert "is unreadable (it is no record of an audit)" in (await read_audit(world))[2]


async def test_finding_survives_unreadable_store_and_new_controller(
    world: ShellWorld, tmp_path: Path
) -> None:
    await drained(world)
    write_record(DirectoryStore(tmp_path), [audited(world, FindingKind.DAMAGED)], replaces_all=True)
    before = await read_audit(world)
    # A directory in place of the record makes the read fail with an OSError.
    (tmp_path / AUDIT_KEY).unlink()
    (tmp_path / AUDIT_KEY).mkdir()
    assert await read_audit(world) == before
    # A new controller has no audit in memory. It starts once with the store and once without.
    for store_is_there in (True, False):
        if not store_is_there:
            tmp_path.rename(tmp_path.with_name("elsewhere"))
        async with world.term():
            await ClusterReconciler(world.services).check_first()
            assert world.services.state.cluster.audits is None
            await TopicReconciler(world.services).reconcile(T)
            assert world.condition(TOPIC, "t", "RemoteIntegrity") == before
    assert world.events.reasons.count("DamageFound") == 1
