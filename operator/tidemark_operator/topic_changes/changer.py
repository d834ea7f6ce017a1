"""Changes of topics by Kafka clients: read the object, decide, apply it without force.

The decisions are in :mod:`creation` and :mod:`alteration`; the API server's admission has the last
word. Two changes of one topic, or of two with colliding names, wait for each other, so that a
change sees the result of the one before. An answer means that the object is written; the reconciler
notifies the brokers.
"""

import asyncio
import uuid
import weakref
from collections.abc import Callable, Mapping

from kio.schema.errors import ErrorCode

from tidemark.configuration.broker_keys import DELETE_TOPICS
from tidemark.logfiles.names import COORDINATORS_TOPICS
from tidemark.message_text import count, numbered
from tidemark.wire.topics import (
    CHANGES_MAX,
    ChangeKind,
    ChangeTopicsRequest,
    ChangeTopicsResponse,
    PartitionResult,
    TopicChange,
    TopicChangeResult,
)
from tidemark_operator.controller import elections, reassignment
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.events import normal
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.controller.state.topic_index import collision_key
from tidemark_operator.controller.topics import owner_of
from tidemark_operator.kube.errors import Conflict, FieldConflict, KubeError, NotFound
from tidemark_operator.kube.kinds import CLUSTER, TOPIC, Json, Key, Kind, key_of
from tidemark_operator.objects.conversions import cluster_of
from tidemark_operator.objects.ownership import MANAGER
from tidemark_operator.reconcile.replication_factor import with_factor
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.topic_config import object_name
from tidemark_operator.topic_changes import alteration, creation
from tidemark_operator.topic_changes.refusal import (
    ChangeRefusal,
    check_allowed,
    of_api_server,
    refused,
)

#: Statuses change often, and every write of one makes a concurrent change conflict.
TRIES_MAX = 10
_NOT_STORED = "the decision was not stored. Retry the request"
_OVERTAKEN = "the topic was changed concurrently several times. Retry the request"
_REPLACED = "the topic was deleted and created again under the same name"


#: Changes that change or delete the object of a topic.
_OF_AN_OBJECT = {
    ChangeKind.GROW, ChangeKind.DELETE, ChangeKind.CONFIGURE, ChangeKind.REASSIGN,
}  # fmt: skip


class TopicChanger:
    """Changer of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    async def change(self, request: ChangeTopicsRequest) -> ChangeTopicsResponse:
        """Apply all changes of a request; each has its own result."""
        if len(request.changes) > CHANGES_MAX:
            refusal = refused(ErrorCode.invalid_request, f"more than {CHANGES_MAX} changes")
            return _response([refusal.result()] * len(request.changes))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._one(request, change)) for change in request.changes]
        return _response([task.result() for task in tasks])

    async def _one(self, request: ChangeTopicsRequest, change: TopicChange) -> TopicChangeResult:
        """Perform one change, exclusively for its topic name; errors become its result."""
        topic = self._known(change)
        name = change.name if topic is None else topic.name
        # Locks by collision key: `a.b` and `a_b` would collide as names of metrics.
        lock = self._locks.setdefault(collision_key(name or ""), asyncio.Lock())
        try:
            async with lock:
                return await self._change(request, change)
        except ChangeRefusal as refusal:
            return refusal.result()
        except InvalidResource as error:
            return refused(ErrorCode.invalid_config, str(error)).result()
        except KubeError as error:
            return of_api_server(error).result()

    async def _change(self, request: ChangeTopicsRequest, change: TopicChange) -> TopicChangeResult:
        """Apply a Kafka client's change to the Kubernetes objects, with retries after conflicts.

        Each write is conditional on the object version that was read. A late write (of an operator
        that was paused, or whose answer was not awaited) therefore cannot undo later changes
        (invariant 24). Raises :class:`ChangeRefusal` with Kafka's error, or ``KubeError``.
        """
        for _ in range(TRIES_MAX):
            try:
                return await self._changed(request, change)
            except FieldConflict:  # another manager's field: a retry cannot help
                raise
            except NotFound:  # the object was deleted a moment ago
                if change.kind in _OF_AN_OBJECT:
                    raise _unknown(change) from None
                raise
            except Conflict:
                topic = self._known(change)
                if topic is not None:
                    # Read the object again: the next try works on its newest version.
                    await self._services.client.refresh(TOPIC.key(topic.key))
        raise refused(ErrorCode.not_controller, _OVERTAKEN)

    async def _changed(
        self, request: ChangeTopicsRequest, change: TopicChange
    ) -> TopicChangeResult:
        """Perform one try of a Kafka client's change, and return its result for the client.

        The kind of the change decides which objects it needs. Raises ``Conflict`` if another writer
        was faster.
        """
        # Changes that need no existing Topic object.
        if change.kind == ChangeKind.CREATE:
            return await self._create(request, change)
        if change.kind == ChangeKind.CONFIGURE_CLUSTER:
            return await self._configure_cluster(request, change, alteration.cluster_configured)
        if change.kind == ChangeKind.CONFIGURE_GROUP:
            return await self._configure_cluster(request, change, alteration.group_configured)
        # Changes of replicas and leaders need the topic, but not its object.
        topic = self._found(change)
        if change.kind == ChangeKind.ELECT:
            return await self._elect(topic, change)
        if change.kind == ChangeKind.REASSIGN:
            return await self._reassign(request, topic, change)
        key = TOPIC.key(topic.key)
        # Ownership of fields is only in the API server's version of the object.
        body = await self._services.client.api.get(TOPIC, key.namespace, key.name)
        # The name may belong to a recreated object; the state does not know it yet.
        if uuid.UUID(body["metadata"]["uid"]) != topic.uid:
            if change.name is None:
                raise refused(ErrorCode.unknown_topic_id, _REPLACED)
            raise refused(ErrorCode.not_controller, _REPLACED)
        state = self._services.state
        if change.kind == ChangeKind.DELETE:
            return await self._delete(request, topic, key, body)
        if change.kind == ChangeKind.GROW:
            patch = alteration.grown(state, topic, body, change)
            summary = f"{count(topic.partitions, 'partition', 'becomes')} {change.partitions}"
        elif change.kind == ChangeKind.CONFIGURE:
            patch = alteration.configured(state, topic, body, change)
            summary = _keys(change)
        else:
            raise refused(ErrorCode.invalid_request, f"{change.kind} is not a topic change")
        self._check_allowed(topic)
        written = await self._apply(request, TOPIC, patch, "ChangedByClient", summary)
        return _done(topic.id, written)

    async def _configure_cluster(
        self,
        request: ChangeTopicsRequest,
        change: TopicChange,
        configured: Callable[[Json, TopicChange], Json | None],
    ) -> TopicChangeResult:
        """Change the Cluster's configuration; ``configured`` returns the patch."""
        key = self._services.cluster_key
        body = await self._services.client.api.get(CLUSTER, key.namespace, key.name)
        patch = configured(body, change)
        if patch is not None:
            check_allowed(
                self._services.state.cluster,
                None,
                f"Cluster {key.namespaced_name}",
                "change the Cluster object",
            )
            await self._apply(request, CLUSTER, patch, "ChangedByClient", _keys(change))
        return TopicChangeResult(error_code=int(ErrorCode.none), error_message=None, topic_id=None)

    def _check_allowed(self, topic: TopicInfo, verb: str = "change") -> None:
        """Check that Kafka clients may change a Topic's spec. Raises :class:`ChangeRefusal`."""
        cluster = self._services.state.cluster
        check_allowed(cluster, topic, f"Topic {topic.key}", f"{verb} the Topic object")

    def _known(self, change: TopicChange) -> TopicInfo | None:
        state = self._services.state
        if change.name is not None:
            return owner_of(state, change.name)
        return None if change.topic_id is None else state.topics.by_id(change.topic_id)

    def _found(self, change: TopicChange) -> TopicInfo:
        topic = self._known(change)
        if topic is not None:
            return topic
        if change.name is not None and change.kind == ChangeKind.CONFIGURE:
            alteration.check_configurable(change.name)
        raise _unknown(change)

    # ------------------------------------------------------------ one each

    async def _create(self, request: ChangeTopicsRequest, change: TopicChange) -> TopicChangeResult:
        """Create the Topic object for CreateTopics."""
        services, topic = self._services, change.name or ""
        namespace, cluster = services.cluster_key.namespace, services.cluster_key.name

        def is_taken(name: str) -> bool:
            existing = services.objects.get(TOPIC.key(f"{namespace}/{name}"))
            return existing is not None and not _describes(existing, cluster, topic)

        name = object_name(cluster, topic, is_taken)
        body = creation.manifest(services.state, change, namespace=namespace, name=name)
        # Without its own topics a coordinator would serve no group and no transaction. Its broker
        # requests them with its own settings.
        if not (change.automatic and topic in COORDINATORS_TOPICS):
            remedy = f"create a Topic object for topic {topic}"
            place = f"Cluster {services.cluster_key.namespaced_name}"
            check_allowed(services.state.cluster, None, place, remedy)
        written = await self._apply(request, TOPIC, body, "CreatedByClient", f"topic {topic}")
        topic_id = None if request.validate_only else uuid.UUID(written["metadata"]["uid"])
        return _done(topic_id, written)

    async def _delete(
        self, request: ChangeTopicsRequest, topic: TopicInfo, key: Key, body: Json
    ) -> TopicChangeResult:
        """Delete the Topic object for DeleteTopics."""
        # Kafka's switch comes first, so that a client gets Kafka's answer.
        if not self._services.state.cluster.flag(DELETE_TOPICS, default=True):
            text = f"Topic deletion is disabled: {DELETE_TOPICS} is false in the Cluster"
            raise refused(ErrorCode.topic_deletion_disabled, text)
        alteration.check_deletion(topic, body)
        self._check_allowed(topic, "delete")
        if not request.validate_only:
            self._emit(request, key, "DeletedByClient", f"topic {topic.name}")
            await self._services.client.delete(TOPIC, key, uid=str(body["metadata"]["uid"]))
            self._services.queue.add(key)
        return _done(topic.id, body)

    # ------------------------------------------------------------ leaders and replicas

    async def _elect(self, topic: TopicInfo, change: TopicChange) -> TopicChangeResult:
        """Elect leaders for ElectLeaders (KIP-460)."""
        partitions = [assignment.partition for assignment in change.assignments]
        elected = await self._services.committer.try_decide(
            lambda draft: elections.elect_as_requested(
                draft, topic, partitions, unclean=change.unclean
            ),
            f"an election of {topic.key}",
        )
        if elected is None:
            raise refused(ErrorCode.not_controller, _NOT_STORED)
        return _in_parts(topic, elected)

    async def _reassign(
        self, request: ChangeTopicsRequest, topic: TopicInfo, change: TopicChange
    ) -> TopicChangeResult:
        """Start moves of replicas (AlterPartitionReassignments).

        If the reassignment changes the number of replicas of all partitions,
        ``spec.replicationFactor`` follows it. A dry run checks first that the field may be written;
        otherwise replicas would move, and the operator would move them back to what the spec says.
        """
        targets = {assignment.partition: assignment.replicas for assignment in change.assignments}

        def decide(draft: Draft) -> reassignment.Moves:
            return reassignment.reassign(draft, topic, targets, keeps_factor=change.keeps_factor)

        services, key = self._services, TOPIC.key(topic.key)
        # Decide without a commit first, to learn the resulting replication factor.
        planned = decide(Draft(services.state))
        patch: Json | None = None
        # Another owner of the factor makes the dry run conflict, and the client gets its name.
        if planned.replication_factor != topic.replication_factor:
            self._check_allowed(topic)
            body = await services.client.api.get(TOPIC, key.namespace, key.name)
            patch = with_factor(body, planned.replication_factor)
            await services.client.apply(TOPIC, patch, manager=MANAGER, dry_run=True)
        # The state may have changed since, so the decision is made again and committed.
        moves = await services.committer.try_decide(decide, f"a reassignment of {topic.key}")
        if moves is None:
            raise refused(ErrorCode.not_controller, _NOT_STORED)
        # The moves are committed; if this write fails, the reconciler repeats it.
        if patch is not None and moves.replication_factor == planned.replication_factor:
            former = count(topic.replication_factor, "replica", "becomes")
            summary = f"{former} {moves.replication_factor}"
            await self._apply(request, TOPIC, patch, "ChangedByClient", summary)
        self._emit(request, key, "ReassignedByClient", numbered("partition", targets))
        services.queue.add(key)
        none = ErrorCode.none, None
        return _in_parts(topic, {part: found or none for part, found in moves.results.items()})

    async def _apply(
        self, request: ChangeTopicsRequest, kind: Kind, patch: Json, reason: str, summary: str
    ) -> Json:
        """Apply a patch, or only check it for a ``validate_only`` request; emit the audit Event."""
        services = self._services
        written = await services.client.apply(
            kind, patch, manager=MANAGER, dry_run=request.validate_only
        )
        if not request.validate_only:
            key = key_of(written)
            services.queue.add(key)
            self._emit(request, key, reason, summary)
        return written

    def _emit(self, request: ChangeTopicsRequest, key: Key, reason: str, summary: str) -> None:
        """Emit the audit Event: the change, the principal and its host."""
        text = f"{summary}, by {request.principal} at {request.host} through Kafka's API"
        self._services.events.emit(normal(key.kind, key.namespaced_name, reason, text))


def _unknown(change: TopicChange) -> ChangeRefusal:
    by_name = change.name is not None
    unknown = ErrorCode.unknown_topic_or_partition if by_name else ErrorCode.unknown_topic_id
    return refused(unknown, "This server does not host this topic.")


def _keys(change: TopicChange) -> str:
    return f"configuration: {', '.join(setting.name for setting in change.settings)[:300]}"


def _describes(body: Json, cluster: str, topic: str) -> bool:
    name = body["spec"].get("topicName") or body["metadata"]["name"]
    return cluster_of(body) == cluster and name == topic


def _done(topic_id: uuid.UUID | None, body: Json) -> TopicChangeResult:
    return TopicChangeResult(
        error_code=int(ErrorCode.none),
        error_message=None,
        topic_id=topic_id,
        partitions=int(body["spec"]["partitions"]),
        replication_factor=int(body["spec"]["replicationFactor"]),
    )


def _in_parts(
    topic: TopicInfo, found: Mapping[int, tuple[ErrorCode, str | None]]
) -> TopicChangeResult:
    return TopicChangeResult(
        error_code=int(ErrorCode.none),
        error_message=None,
        topic_id=topic.id,
        parts=tuple(
            PartitionResult(partition=partition, error_code=int(code), error_message=message)
            for partition, (code, message) in found.items()
        ),
    )


def _response(results: list[TopicChangeResult]) -> ChangeTopicsResponse:
    return ChangeTopicsResponse(error_code=int(ErrorCode.none), results=tuple(results))
