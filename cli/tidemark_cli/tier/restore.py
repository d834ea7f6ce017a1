"""``tidemark restore``: recreate the topics of a lost cluster from its tier."""

import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.annotations import RESTORE_FROM_TIER
from tidemark.ids import id_text
from tidemark.logfiles.names import COORDINATORS_TOPICS
from tidemark.message_text import count
from tidemark.tier.conditional_writes import check_conditional_writes
from tidemark.tier.identity import hand_over
from tidemark.tier.maintenance import topic_restore
from tidemark.tier.maintenance.topic_restore import Restorable, TierOrigin
from tidemark.tier.metadata.head import ManifestError
from tidemark.tier.open import Tier
from tidemark.tier.segments.integrity import ObjectVersionUnsupported
from tidemark.tier.stores.objects import StoreError
from tidemark_cli.common import console, fail, open_cluster
from tidemark_cli.option_groups import option_groups
from tidemark_cli.tier.stores import OpenTier, TierOptions
from tidemark_kube.client import KubeClient, KubeRequestError
from tidemark_operator.resources.topic_config import object_name, spec_of_kafka_config


@option_groups
def restore(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME]...", help="Only these topics, such as orders or 'orders-*'."
        ),
    ] = None,
    from_cluster: Annotated[
        str, typer.Option(help="Id of the lost cluster. It must never run again.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show what would be restored, and change nothing.")
    ] = False,
    replication_factor: Annotated[
        int, typer.Option(min=0, help="Replicas of each topic. 0: as before.")
    ] = 0,
    tier: TierOptions,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Kubeconfig of the new cluster, if it is not local.")
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="Namespace of the new Cluster, with --kubeconfig.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="Name of the new Cluster, with --kubeconfig.")] = "",
) -> None:
    """Recreate the topics of a lost cluster from its tier.

    The new Cluster's remoteStorage must be that tier. Records that were not copied are lost.
    --dry-run shows the last offset of each partition.
    """
    opened = tier.open()
    target = _Target.of(tier.directory, kubeconfig, namespace, cluster)
    try:
        new_id = target.cluster_id()
        # Every check precedes the first write: a conflict leaves tier and cluster unchanged.
        _check_owner(opened, from_cluster, new_id)
        topics = checked(opened.tier, target.topics(), names or [])
        for topic in topics:
            _show(topic, replication_factor)
        if dry_run:
            _say(f"{count(len(topics), 'topic')}; no topic was restored")
            return
        check_conditional_writes(opened.tier.store, now_ms=time.time_ns() // 1_000_000)
        # The tier's identity changes first: brokers of the new cluster open only a tier of their
        # own.
        hand_over(opened.tier.store, from_cluster, new_id)
        present = target.topics()  # listed once: listing per topic would be quadratic
        for topic in topics:
            own = _restore(opened, target, topic, present, from_cluster, new_id, replication_factor)
            present[topic.topic.name] = {"metadata": {"name": own}}
    except ObjectVersionUnsupported as error:
        fail(f"{error}; run tidemark restore of that version")
    except (StoreError, ManifestError, KubeRequestError) as error:
        fail(f"{error}; the topics restored so far stay: run the same command again to continue")
    finally:
        target.kube.close()
    _say(f"{count(len(topics), 'topic')}; brokers restore them from the tier: see tidemark status")


class _Target:
    """Cluster in which the topics are created."""

    def __init__(self, kube: KubeClient, cluster: str) -> None:
        self.kube = kube
        self.cluster = cluster

    @classmethod
    def of(
        cls, directory: Path, kubeconfig: Path | None, namespace: str, cluster: str
    ) -> "_Target":
        """Return the cluster that the options name, or the local one."""
        if kubeconfig is None:
            local = open_cluster(directory)
            return cls(local.kube(), local.settings.cluster)
        if not namespace or not cluster:
            fail("--kubeconfig needs the new Cluster: add --namespace and --cluster")
        return cls(KubeClient(kubeconfig, namespace), cluster)

    def cluster_id(self) -> str:
        """Return the new cluster's id; exit with a hint while it has none."""
        body = self.kube.get("Cluster", self.cluster)
        if body is None:
            fail(
                f"Cluster {self.cluster} does not exist: create it with this tier as remoteStorage"
            )
        cluster_id = (body.get("status") or {}).get("clusterId")
        if not cluster_id:
            fail(f"Cluster {self.cluster} has no id yet: start the operator, then retry")
        return str(cluster_id)

    def topics(self) -> dict[str, dict[str, Any]]:
        """Return all Topics by their names in Kafka."""
        return {
            str(body["spec"].get("topicName", body["metadata"]["name"])): body
            for body in self.kube.objects("Topic")
        }


def _check_owner(opened: OpenTier, from_cluster: str, new_id: str) -> None:
    """Exit unless ``--from-cluster`` names the cluster that owned the tier.

    Restoring takes over the tier's data, so the user must confirm which cluster is lost.
    ``new_id``: ID of the new cluster.
    """
    owner, where = opened.cluster_id, opened.tier.store.describe()
    if not from_cluster:
        whose = (
            "already owned by the new cluster" if owner == new_id else f"owned by cluster {owner}"
        )
        fail(
            f"{where} is {whose}: name the lost cluster, which must never run again, with "
            f"--from-cluster {'ID' if owner == new_id else owner}"
        )
    if from_cluster == new_id:
        fail(f"{new_id} is the new cluster: name the lost one with --from-cluster")
    # After an interrupted run the new cluster already owns the tier, and the command can be
    # repeated.
    if owner not in (from_cluster, new_id):
        fail(f"{where} is owned by cluster {owner}, not by {from_cluster}: check --from-cluster")


def checked(tier: Tier, present: Mapping[str, Any], patterns: Sequence[str]) -> list[Restorable]:
    """Return the topics to restore, after all checks of them.

    ``present``: existing Topics by name in Kafka. ``patterns``: see :func:`_chosen`. Exits if an
    existing Topic is another topic. Raises SegmentUnreadable if this version cannot restore one.
    """
    topics = _chosen(tier, patterns)
    conflicts = others(topics, present)
    if conflicts:
        fail("; ".join(conflicts))
    for topic in topics:
        topic_restore.check_producer_ids(tier, topic)
    return topics


def _chosen(tier: Tier, patterns: Sequence[str]) -> list[Restorable]:
    """Return the topics of the tier to restore, selected by name or pattern.

    The coordinators' topics are left out: they are not tiered, and brokers create them. Exits if
    none is left, or two topics have the same name.
    """
    topics = list(
        topic_restore.restorable(
            tier,
            lambda name: (
                name not in COORDINATORS_TOPICS
                and (not patterns or any(fnmatchcase(name, text) for text in patterns))
            ),
        )
    )
    if not topics:
        fail("no topic of that name is in the tier" if patterns else "no topic is in the tier")
    # Topics are restored by name: two ids under one name need a decision of the user.
    taken: dict[str, Restorable] = {}
    for topic in topics:
        same_name = taken.setdefault(topic.topic.name, topic)
        if same_name is not topic:
            ids = f"{id_text(same_name.topic.topic_id)} and {id_text(topic.topic.topic_id)}"
            fail(
                f"several topics in the tier have the name {topic.topic.name} ({ids}): restore the "
                "others by name, or remove topics/ID.json of the one that you do not need"
            )
    return topics


def others(topics: Sequence[Restorable], present: Mapping[str, Any]) -> list[str]:
    """Return a message for each existing Topic that has a restored topic's name and is another
    topic.

    A client may have created one in the new cluster. The command then restores no topic.
    """
    pairs = ((topic, present.get(topic.topic.name)) for topic in topics)
    return [
        f"Topic {body['metadata']['name']} has the name {topic.topic.name} but is not the topic in "
        f"the tier (id {id_text(topic.topic.topic_id)}): delete it if it is not needed, or name "
        "only the other topics; no topic was restored"
        for topic, body in pairs
        if body is not None and not _is_restored(topic, body)
    ]


def _is_restored(topic: Restorable, body: Mapping[str, Any]) -> bool:
    """Return whether a Topic is the restored one, by id, or else by its annotation."""
    topic_id = (body.get("status") or {}).get("topicId")
    if topic_id:
        return bool(topic_id == id_text(topic.topic.topic_id))
    text = (body["metadata"].get("annotations") or {}).get(RESTORE_FROM_TIER, "")
    try:
        return TierOrigin.parse(text).topic_id == topic.topic.topic_id
    except ValueError:
        return False


def _show(topic: Restorable, replication_factor: int) -> None:
    state, factor = topic.tiering.state.name.capitalize(), _factor(topic, replication_factor)
    _say(
        f"{topic.topic.name} (id {id_text(topic.topic.topic_id)}): "
        f"{count(topic.partitions, 'partition')}, {count(factor, 'replica')}, tiering {state}, "
        f"tiered epoch {topic.tiering.epoch}"
    )
    for partition in range(topic.partitions):
        start, end = topic.offsets.get(partition, (0, 0))
        _say(f"  partition {partition}: offsets {start} to {end}, next offset {end}")


def _factor(topic: Restorable, replication_factor: int) -> int:
    return replication_factor or topic.topic.replication_factor or 1


def _restore(
    opened: OpenTier,
    target: _Target,
    topic: Restorable,
    present: Mapping[str, Any],
    from_cluster: str,
    new_id: str,
    replication_factor: int,
) -> str:
    """Restore one topic by creating its Topic object, and return that object's name.

    ``present``: existing Topics by name in Kafka. An existing Topic is left unchanged, as an
    earlier run has created it. ``from_cluster`` and ``new_id``: IDs of the lost and the new
    cluster.
    """
    name = topic.topic.name
    if name in present:
        own = str(present[name]["metadata"]["name"])
        _say(f"{name}: Topic {own} already exists; left unchanged")
        return own
    now_ms = time.time_ns() // 1_000_000
    # The claim in the tier precedes the Topic, whose annotation refers to it.
    origin = topic_restore.claim(
        opened.tier, topic, from_cluster=from_cluster, to_cluster=new_id, now_ms=now_ms
    )
    objects = {str(body["metadata"]["name"]) for body in present.values()}
    own = object_name(target.cluster, name, lambda text: text in objects)
    spec: dict[str, Any] = {
        "clusterRef": {"name": target.cluster},
        "partitions": topic.partitions,
        "replicationFactor": _factor(topic, replication_factor),
        **spec_of_kafka_config(topic.topic.config, origin.tiering),
    }
    if own != name:
        spec["topicName"] = name
    target.kube.apply("Topic", own, spec, annotations={RESTORE_FROM_TIER: origin.text()})
    _say(f"{name}: Topic {own} created")
    return own


def _say(line: str) -> None:
    console.print(line, markup=False, soft_wrap=True)
