"""``tidemark restore``: the topics of a lost cluster, from what lies in its tier."""

import time
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import typer

from tidemark.annotations import RESTORE_FROM_TIER
from tidemark.ids import id_text
from tidemark.logfiles.names import COORDINATORS_TOPICS
from tidemark.tier import topic_restore
from tidemark.tier.conditional_writes import check_conditional_writes
from tidemark.tier.head import ManifestError
from tidemark.tier.identity import hand_over
from tidemark.tier.objects import StoreError
from tidemark.tier.topic_restore import Restorable, TierOrigin
from tidemark_cli.commands.common import DEFAULT_DIR, DirOption, console, fail, open_cluster
from tidemark_cli.commands.stores import (
    BucketsOption,
    EndpointOption,
    OpenTier,
    PathOption,
    PrefixOption,
    RegionOption,
    named_store,
    open_named,
)
from tidemark_cli.local.kube import Kube, KubeError
from tidemark_operator.resources.topic_config import spec_of_kafka_config
from tidemark_operator.topic_changes.object_names import object_name


def restore(
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
    directory: DirOption = DEFAULT_DIR,
    kubeconfig: Annotated[
        Path | None, typer.Option(help="Kubeconfig of the new cluster, if it is not local.")
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="Namespace of the new Cluster, with --kubeconfig.")
    ] = "",
    cluster: Annotated[str, typer.Option(help="Name of the new Cluster, with --kubeconfig.")] = "",
    path: PathOption = "",
    endpoint: EndpointOption = "",
    buckets: BucketsOption = "",
    prefix: PrefixOption = "",
    region: RegionOption = "",
) -> None:
    """Recreate the topics of a lost cluster from its tier.

    The new Cluster's remoteStorage must be that tier. Records that were not copied are lost.
    --dry-run shows the last offset of each partition.
    """
    found = open_named(named_store(path, endpoint, buckets, prefix, region), directory)
    target = _Target.of(directory, kubeconfig, namespace, cluster)
    try:
        new_id = target.cluster_id()
        _check_owner(found, from_cluster, new_id)
        topics = _chosen(topic_restore.restorable(found.tier), names or [])
        other = others(topics, target.topics())
        if other:
            fail("; ".join(other))
        for topic in topics:
            _show(topic, replication_factor)
        if dry_run:
            _say(f"{len(topics)} topics; no topic was restored")
            return
        check_conditional_writes(found.tier.store, now_ms=time.time_ns() // 1_000_000)
        hand_over(found.tier.store, from_cluster, new_id)
        present = target.topics()  # once: a list of all for each of them would be n lists of n
        for topic in topics:
            own = _restore(found, target, topic, present, from_cluster, new_id, replication_factor)
            present[topic.topic.name] = {"metadata": {"name": own}}
    except (StoreError, ManifestError, KubeError) as error:
        fail(f"{error}; what was done so far stays: the same command goes on from there")
    finally:
        target.kube.close()
    _say(f"{len(topics)} topics; brokers take them over from the tier: tidemark status")


class _Target:
    """The cluster in which the topics are made."""

    def __init__(self, kube: Kube, cluster: str) -> None:
        self.kube = kube
        self.cluster = cluster

    @classmethod
    def of(
        cls, directory: Path, kubeconfig: Path | None, namespace: str, cluster: str
    ) -> "_Target":
        """That of the options, or the local one."""
        if kubeconfig is None:
            local = open_cluster(directory)
            return cls(local.kube(), local.settings.cluster)
        if not namespace or not cluster:
            fail("with --kubeconfig name the new Cluster: --namespace and --cluster")
        return cls(Kube(kubeconfig, namespace), cluster)

    def cluster_id(self) -> str:
        """The new cluster's; ends with a hint while it has none."""
        body = self.kube.get("Cluster", self.cluster)
        if body is None:
            fail(f"there is no Cluster {self.cluster}: make it, with this tier as remoteStorage")
        found = (body.get("status") or {}).get("clusterId")
        if not found:
            fail(f"Cluster {self.cluster} has no id yet: start the operator")
        return str(found)

    def topics(self) -> dict[str, dict[str, Any]]:
        """All Topics by their names in Kafka."""
        return {
            str(body["spec"].get("topicName", body["metadata"]["name"])): body
            for body in self.kube.objects("Topic")
        }


def _check_owner(found: OpenTier, from_cluster: str, new_id: str) -> None:
    """Whoever restores says whose data he takes over."""
    owner, where = found.cluster_id, found.tier.store.describe()
    if not from_cluster:
        whose = "already the new cluster's" if owner == new_id else f"of cluster {owner}"
        fail(
            f"{where} is {whose}: name the lost cluster, which must never run again, with "
            f"--from-cluster {'ID' if owner == new_id else owner}"
        )
    if from_cluster == new_id:
        fail(f"{new_id} is the cluster that is to have the topics: name the lost one")
    if owner not in (from_cluster, new_id):
        fail(f"{where} is of cluster {owner}, not of {from_cluster}")


def _chosen(all_topics: Any, patterns: Sequence[str]) -> list[Restorable]:
    """Topics of the coordinators are not tiered, and made by brokers."""
    topics = [
        each
        for each in all_topics
        if each.topic.name not in COORDINATORS_TOPICS
        and (not patterns or any(fnmatchcase(each.topic.name, text) for text in patterns))
    ]
    if not topics:
        fail("no topic of that name is in the tier" if patterns else "no topic is in the tier")
    taken: dict[str, Restorable] = {}
    for each in topics:
        other = taken.setdefault(each.topic.name, each)
        if other is not each:
            ids = f"{id_text(other.topic.topic_id)} and {id_text(each.topic.topic_id)}"
            fail(
                f"{each.topic.name} is the name of several topics in the tier ({ids}): restore the "
                f"others by name, or remove topics/ID.json of the one that is not wanted"
            )
    return topics


def others(topics: Sequence[Restorable], present: Mapping[str, Any]) -> list[str]:
    """What to do about Topics that have a name which is to be restored and are not that topic, such
    as one that a client has made in the new cluster. Nothing is said to be restored then."""
    found = ((topic, present.get(topic.topic.name)) for topic in topics)
    return [
        f"Topic {body['metadata']['name']} has the name {topic.topic.name} and is another topic "
        f"than the tier's (id {id_text(topic.topic.topic_id)}): delete it if it is not needed, or "
        "name the topics that are to be restored without it; no topic was restored"
        for topic, body in found
        if body is not None and not _is_restored(topic, body)
    ]


def _is_restored(topic: Restorable, body: Mapping[str, Any]) -> bool:
    """By its id, or, before it has one, by what an earlier run has written."""
    topic_id = (body.get("status") or {}).get("topicId")
    if topic_id:
        return bool(topic_id == id_text(topic.topic.topic_id))
    text = (body["metadata"].get("annotations") or {}).get(RESTORE_FROM_TIER, "")
    try:
        return TierOrigin.parse(text).topic_id == topic.topic.topic_id
    except ValueError:
        return False


def _show(found: Restorable, replication_factor: int) -> None:
    state, factor = found.tiering.state.name.capitalize(), _factor(found, replication_factor)
    _say(
        f"{found.topic.name} (id {id_text(found.topic.topic_id)}): {found.partitions} partitions, "
        f"{factor} replicas, tiering {state}, tiered epoch {found.tiering.epoch}"
    )
    for partition in range(found.partitions):
        start, end = found.offsets.get(partition, (0, 0))
        _say(f"  partition {partition}: offsets {start} to {end}, {end} is the next one")


def _factor(found: Restorable, asked: int) -> int:
    return asked or found.topic.replication_factor or 1


def _restore(
    found: OpenTier,
    target: _Target,
    topic: Restorable,
    present: Mapping[str, Any],
    from_cluster: str,
    new_id: str,
    replication_factor: int,
) -> str:
    """One topic, and the name of its Topic; one that is there already was restored by an earlier
    run."""
    name = topic.topic.name
    if name in present:
        own = str(present[name]["metadata"]["name"])
        _say(f"{name}: Topic {own} is there already; left as it is")
        return own
    now_ms = time.time_ns() // 1_000_000
    origin = topic_restore.claim(
        found.tier, topic, from_cluster=from_cluster, to_cluster=new_id, now_ms=now_ms
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
    _say(f"{name}: Topic {own} made")
    return own


def _say(line: str) -> None:
    console.print(line, highlight=False, markup=False, soft_wrap=True)
