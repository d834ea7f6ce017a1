"""CreatePartitions, AlterConfigs and DeleteTopics for a Topic, or for the Cluster's configuration.

Each function returns the fields that Kafka's clients own from now on (:mod:`ownership`), as a patch
to apply, or raises Kafka's error.
"""

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark.configuration.problems import problems
from tidemark.configuration.table import DYNAMIC, GROUP
from tidemark.wire.topics import (
    DISABLEMENT_IN_PROGRESS,
    Assignment,
    TopicChange,
)
from tidemark_operator.controller import protection
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.controller.status import deletion_grace
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json, Kind
from tidemark_operator.objects.ownership import Path, holder, patch_of
from tidemark_operator.resources.assignments import assignments_text, parse_assignments
from tidemark_operator.resources.cluster import GROUPS_MAX
from tidemark_operator.resources.names import ASSIGNMENT_ANNOTATION
from tidemark_operator.topic_changes.creation import (
    as_map,
    check_assignments,
    check_brokers,
    check_configuration,
    check_count,
    check_legal,
    known_as,
)
from tidemark_operator.topic_changes.refusal import ChangeRefusal, refused
from tidemark_operator.topic_changes.settings import (
    TopicSettings,
    changed,
    check_names,
    new_value,
)


def grown(state: ControllerState, topic: TopicInfo, body: Json, change: TopicChange) -> Json:
    """Return the patch of a Topic for CreatePartitions (more partitions).

    ``change.assignments`` number the added partitions from 0. Raises :class:`ChangeRefusal` with
    Kafka's error.
    """
    _check_present(topic)
    if topic.is_internal:
        # The coordinator of each group or transactional id is found by a hash over the partitions.
        text = (
            f"the number of partitions of {topic.name} is fixed, because it "
            "determines where each group or transactional id is stored"
        )
        raise refused(ErrorCode.invalid_partitions, text)
    # Kafka has different messages for an equal and for a lower number.
    present, requested = _present(state, topic), change.partitions
    if requested == present:
        raise refused(ErrorCode.invalid_partitions, f"Topic already has {present} partition(s).")
    if requested < present:
        text = (
            f"The topic {topic.name} currently has {present} partition(s); "
            f"{requested} would not be an increase."
        )
        raise refused(ErrorCode.invalid_partitions, text)
    check_count(requested)
    patch = patch_of(body)
    patch["spec"]["partitions"] = requested
    # Without assignments, enough brokers must be there to place the new partitions.
    if change.assignments:
        _assign(state, topic, body, change, patch)
    else:
        check_brokers(state, dataclasses.replace(topic, assignments={}))
    return patch


def _present(state: ControllerState, topic: TopicInfo) -> int:
    """Return the number of a topic's partitions; a restored manifest may have a lower number."""
    return max(topic.partitions, state.partitions_of(topic))


def _assign(
    state: ControllerState, topic: TopicInfo, body: Json, change: TopicChange, patch: Json
) -> None:
    """Add a client's replica assignments of the added partitions to the patch's annotation.

    Raises :class:`ChangeRefusal` if the assignments are invalid.
    """
    added = change.partitions - _present(state, topic)
    if len(change.assignments) != added:
        text = (
            f"Attempted to add {added} additional partition(s), but only "
            f"{len(change.assignments)} assignment(s) were specified."
        )
        raise refused(ErrorCode.invalid_replica_assignment, text)
    # Kafka numbers the new partitions from 0; the annotation has their final numbers.
    moved = tuple(
        Assignment(
            partition=_present(state, topic) + assignment.partition, replicas=assignment.replicas
        )
        for assignment in change.assignments
    )
    check_assignments(state, moved, topic.replication_factor)
    annotations = body["metadata"].get("annotations") or {}
    former = parse_assignments(annotations.get(ASSIGNMENT_ANNOTATION, ""))
    text = assignments_text({**former, **as_map(moved)})
    patch["metadata"].setdefault("annotations", {})[ASSIGNMENT_ANNOTATION] = text


def configured(state: ControllerState, topic: TopicInfo, body: Json, change: TopicChange) -> Json:
    """Return the patch of a Topic for IncrementalAlterConfigs or AlterConfigs.

    Raises :class:`ChangeRefusal` with Kafka's error.
    """
    _check_present(topic)
    before = TopicSettings.of(body["spec"])
    after = changed(before, change.settings, replaces_all=change.replaces_all)
    # A disablement in progress must not be changed (KIP-950): brokers already work on it.
    if topic.tiering.is_disabling and after.tiering != before.tiering:
        text = (
            f"TIERED_STORAGE_DISABLEMENT_IN_PROGRESS: tiering of {topic.name} "
            "is being disabled. Change it when status.tiering.state is "
            "Disabled"
        )
        raise ChangeRefusal(DISABLEMENT_IN_PROGRESS, text)
    # Check the resulting Topic as the controller would read it.
    spec = {name: value for name, value in body["spec"].items() if name not in _DESCRIBED}
    check_configuration(state, known_as(state, {**body, "spec": spec | _as_spec(after)}))
    return _with_leaves(TOPIC, body, _as_spec(before), _as_spec(after))


def cluster_configured(body: Json, change: TopicChange) -> Json | None:
    """Return the patch of the Cluster's ``spec.config`` for dynamic settings of all brokers.

    For IncrementalAlterConfigs or AlterConfigs of the default broker resource. Returns None if
    nothing changes. Raises :class:`ChangeRefusal`.
    """
    before = {name: str(value) for name, value in (body["spec"].get("config") or {}).items()}
    static = "Cannot update these configs dynamically"
    check_names(change.settings, DYNAMIC, ErrorCode.invalid_request, static)
    # AlterConfigs replaces all dynamic keys. Static ones stay, since Kafka clients cannot set them.
    after: dict[str, str | None] = dict(before)
    if change.replaces_all:
        after = {name: value for name, value in before.items() if name not in DYNAMIC}
    after |= {setting.name: new_value(before, setting, DYNAMIC) for setting in change.settings}
    kept = {name: value for name, value in after.items() if value is not None}
    given = {name: kept[name] for name in kept if kept[name] != before.get(name)}
    # Kafka answers INVALID_REQUEST for brokers' settings, not INVALID_CONFIG.
    for problem in problems(given, DYNAMIC):
        raise refused(ErrorCode.invalid_request, problem)
    if kept == before:
        return None
    return _with_leaves(CLUSTER, body, {"config": before}, {"config": kept})


def group_configured(body: Json, change: TopicChange) -> Json | None:
    """Return the patch of the Cluster's ``spec.groups`` for settings of a consumer group (KIP-848).

    Returns None if nothing changes. Raises :class:`ChangeRefusal`.
    """
    name = change.name or ""
    groups = body["spec"].get("groups") or {}
    before = {key: str(value) for key, value in (groups.get(name) or {}).items()}
    check_names(change.settings, GROUP, ErrorCode.invalid_config, "Unknown group config name")
    after: dict[str, str | None] = {} if change.replaces_all else dict(before)
    after |= {setting.name: new_value(before, setting, GROUP) for setting in change.settings}
    kept = {key: value for key, value in after.items() if value is not None}
    for problem in problems(kept, GROUP):
        raise refused(ErrorCode.invalid_config, problem)
    # Clients choose the names, and the Cluster object has to stay small.
    if kept and name not in groups and len(groups) >= GROUPS_MAX:
        text = f"{GROUPS_MAX} groups already have a configuration. Remove one that is not used"
        raise refused(ErrorCode.policy_violation, text)
    if kept == before:
        return None
    return _with_leaves(CLUSTER, body, {"groups": {name: before}}, {"groups": {name: kept}})


_DESCRIBED = ("config", "tiering")


def _as_spec(described: TopicSettings) -> Json:
    spec: Json = {}
    if described.config:
        spec["config"] = dict(described.config)
    if described.tiering is not None:
        spec["tiering"] = dict(described.tiering)
    return spec


def check_deletion(topic: TopicInfo, body: Json) -> None:
    """Check that a Kafka client may delete a topic. Raises :class:`ChangeRefusal`.

    Refused are internal topics, protected topics, and a Topic that another field manager (for
    example GitOps) manages, because it would create the Topic again.
    """
    _check_present(topic)
    if topic.is_internal:
        text = f"{topic.name} is an internal topic. To delete it, delete Topic {topic.key}"
        raise refused(ErrorCode.policy_violation, text)
    if topic.protected:
        raise refused(ErrorCode.policy_violation, protection.refused_text(topic.key))
    # Kafka has no deletion that takes effect later.
    if topic.deletion_due_ms is not None:
        text = f"Topic {topic.key} is already being deleted: {deletion_grace.pending_text(topic)}"
        raise refused(ErrorCode.policy_violation, text)
    if topic.deletion_grace:
        text = (
            f"Topic {topic.key} has spec.deletionGracePeriod {topic.deletion_grace}, and a Kafka "
            "client's deletion is immediate. Delete the Topic object"
        )
        raise refused(ErrorCode.policy_violation, text)
    # Its manager would create the Topic again.
    owner = holder(body, ("spec",))
    if owner is not None:
        text = (
            f"Topic {topic.key} (spec) is managed by {owner}. Delete it there, "
            "not through Kafka's API"
        )
        raise refused(ErrorCode.policy_violation, text)


def check_configurable(name: str) -> None:
    """Check that a topic of that name could have a configuration. Raises :class:`ChangeRefusal`.

    Kafka's ``ConfigurationControlManager`` checks this before it looks for the topic.
    """
    if not name:
        raise refused(ErrorCode.invalid_request, "Default topic resources are not allowed.")
    check_legal(name)


def _check_present(topic: TopicInfo) -> None:
    if topic.deletion_ms is not None:
        text = f"Topic {topic.key} is being deleted"
        raise refused(ErrorCode.unknown_topic_or_partition, text)


# ---------------------------------------------------------------- patches


def _with_leaves(kind: Kind, body: Json, before: Json, after: Json) -> Json:
    """Return a patch with the fields that differ between two specs. Raises :class:`ChangeRefusal`.

    A field can only be removed if no other manager owns it: server-side apply would keep it.
    """
    patch = patch_of(body, kind)
    old, new = dict(_leaves(before)), dict(_leaves(after))
    for path, value in new.items():
        if old.get(path) != value:
            _set(patch["spec"], path, value)
    for path in old.keys() - new.keys():
        owner = holder(body, ("spec", *path))
        if owner is not None:
            text = f"spec.{'.'.join(path)} is managed by {owner}. Remove it there"
            raise refused(ErrorCode.policy_violation, text)
        _remove(patch["spec"], path)
    return patch


def _leaves(value: Mapping[str, Any], path: Path = ()) -> Iterator[tuple[Path, Any]]:
    for name, inner in value.items():
        if isinstance(inner, Mapping):
            yield from _leaves(inner, (*path, name))
        else:
            yield (*path, name), inner


def _set(fields: dict[str, Any], path: Path, value: object) -> None:
    for name in path[:-1]:
        fields = fields.setdefault(name, {})
    fields[path[-1]] = value


def _remove(fields: dict[str, Any], path: Path) -> None:
    """Remove a field, and the blocks that become empty."""
    head, *rest = path
    if not rest:
        fields.pop(head, None)
    elif head in fields:
        _remove(fields[head], tuple(rest))
        if not fields[head]:
            del fields[head]
