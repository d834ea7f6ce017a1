"""``tidemark restore`` from an S3 that its options name, into a cluster that a kubeconfig names."""

import asyncio
from typing import Any

import pytest
from click.testing import Result
from typer.testing import CliRunner

from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.remote_log.tiered_host import CLUSTER as LOST
from tests.integration.remote_log.tiered_host import TOPIC, TOPIC_ID, TieredHost
from tests.s3 import fresh_bucket
from tidemark.ids import id_text
from tidemark.leader_recovery import LeaderRecoveryState
from tidemark.tier.identity import read_identity
from tidemark_broker.log import appending
from tidemark_cli.main import app
from tidemark_operator.kube import kinds
from tidemark_operator.resources.names import OFFERED_ANNOTATION

pytestmark = pytest.mark.full

KEYS = ("accessKeyId", "secretAccessKey")


async def written_and_lost(world: ClusterWorld, s3: dict[str, Any]) -> TieredHost:
    """Fill a tier with a topic and lose the cluster; return the closed host."""
    host = TieredHost(world.folder, world.folder)
    host.store = {"s3": s3}
    # 1 MiB is the smallest segment.bytes that the restored Topic may have.
    host.config["segment.bytes"] = "1048576"
    await host.apply()
    await host.produce(300)
    # Close the segment, so that it is copied although it is small.
    appending.roll(host.partition.log, 1)
    await host.copied()
    await host.until(lambda: bool(list(host.tier().topics.all())))
    await host.close()
    return host


async def new_cluster(world: ClusterWorld, s3: dict[str, Any]) -> None:
    """Create a Cluster that uses the tier of the lost one."""
    meta = {"name": "keys", "annotations": {OFFERED_ANNOTATION: "Cluster"}}
    secret = {"metadata": meta, "stringData": {key: s3[key] for key in KEYS}}
    await world.api.create(kinds.SECRET, world.namespace, secret)
    spec = {key: value for key, value in s3.items() if key not in KEYS}
    body = {
        "apiVersion": kinds.CLUSTER.api_version,
        "kind": "Cluster",
        "metadata": {"name": "demo"},
        "spec": {
            "config": {"remote.log.storage.system.enable": "true"},
            "remoteStorage": {"s3": spec | {"credentialsSecretRef": {"name": "keys"}}},
        },
    }
    await world.api.create(kinds.CLUSTER, world.namespace, body)


async def restore(s3: dict[str, Any], *arguments: str, keys: bool = True) -> Result:
    named = ["--endpoint", s3["endpoint"], "--buckets", s3["buckets"][0], "--prefix", s3["prefix"]]
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    env = {name: s3[key] if keys else None for name, key in zip(names, KEYS, strict=True)}
    env["AWS_EC2_METADATA_DISABLED"] = "true"
    command = ["restore", *named, "--region", s3["region"], *arguments]
    return await asyncio.to_thread(CliRunner().invoke, app, command, env=env)


async def test_topic_of_a_lost_cluster_is_restored_from_s3(world: ClusterWorld, minio: Any) -> None:
    s3 = fresh_bucket(minio)
    lost = await written_and_lost(world, s3)
    await new_cluster(world, s3)
    peer = await world.start_broker(1, await world.start_operator())
    # The store belongs to another cluster until it is restored.
    refused = await world.condition(kinds.CLUSTER, "demo", "RemoteStorageReady", "False")
    assert LOST in refused["message"]
    into = ("--kubeconfig", str(world.kubeconfig), "--from-cluster", LOST)
    target = (*into, "--namespace", world.namespace, "--cluster", "demo")

    # Incomplete options are refused before anything is written.
    for arguments, keys, expected in (
        (into, True, "needs the new Cluster: add --namespace and --cluster"),
        (target, False, "AWS_ACCESS_KEY_ID"),
        (
            (*target[:3], "another", *target[4:]),
            True,
            f"is owned by cluster {LOST}, not by another",
        ),
    ):
        result = await restore(s3, *arguments, keys=keys)
        assert (result.exit_code, expected in " ".join(result.output.split())) == (1, True), (
            result.output
        )

    # The dry run names topic, id and end, and creates nothing.
    shown = await restore(s3, *target, "--dry-run")
    assert shown.exit_code == 0, shown.output
    assert f"{TOPIC} (id {id_text(TOPIC_ID)})" in shown.output
    assert f"next offset {lost.head().highest_remote_offset + 1}" in shown.output
    assert await world.is_deleted(kinds.TOPIC, TOPIC)

    done = await restore(s3, *target, "--replication-factor", "1")
    assert done.exit_code == 0, done.output
    # The topic is recovering until its broker has taken over from the tier.
    await world.until(lambda: (TOPIC, 0) in peer.rows, "the broker is to take it over")
    assert peer.topics[TOPIC].topic_id == TOPIC_ID
    row = peer.rows[TOPIC, 0]
    assert (row.leader, row.leader_recovery_state) == (1, LeaderRecoveryState.RECOVERING)
    # Never below the old epoch, otherwise the tier would refuse the new leader.
    assert row.leader_epoch >= lost.head().leader_epoch
    # The identity of the store now names the new cluster.
    _, owner = read_identity(lost.tier().store)
    assert owner == await world.cluster_id()
    await world.condition(kinds.CLUSTER, "demo", "RemoteStorageReady", "True")
    # A repeated restore changes nothing.
    repeated = await restore(s3, *target)
    assert "already exists; left unchanged" in repeated.output
