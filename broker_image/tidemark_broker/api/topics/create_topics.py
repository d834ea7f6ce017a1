"""CreateTopics (19): each topic becomes a ``Topic`` object, and is answered once it has leaders.

Versions 2 to 7:

- 4: partitions and replication factor may be left to the cluster (KIP-464)
- 5: flexible, partitions, replication factor and configuration in the answer (KIP-525)
- 6: the client understands THROTTLING_QUOTA_EXCEEDED (KIP-599)
- 7: topic id

Version 3 has the fields of version 2.

Behaviour:

- CREATE on the cluster permits any topic, else CREATE on the topic is required.
- The configuration is returned to clients that may DESCRIBE_CONFIGS.
- A topic whose deletion has not ended cannot be created yet. The request waits for that until its
  time-out.
- One request may create at most 1000 topics.
"""

import asyncio
import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass

from kio.schema.create_topics.v7.request import CreatableTopic, CreateTopicsRequest
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32

from tidemark.backoff import Backoff
from tidemark.configuration.broker_keys import NUM_PARTITIONS
from tidemark.logfiles.names import CLUSTER_METADATA_TOPIC
from tidemark.wire.topics import (
    Assignment,
    ChangeKind,
    Setting,
    SettingOperation,
    TopicChange,
    TopicChangeResult,
)
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.configs.described_configs import SETTINGS_MAX, TOO_MANY, topic_configs
from tidemark_broker.api.schema import ThrottledAnswer, milliseconds
from tidemark_broker.api.table import QUOTA_EXCEEDED, Api, Call
from tidemark_broker.api.topic_change_requests import (
    AUTHORIZATION_FAILED,
    error_of,
    forward,
    is_led,
    wait_until_known,
)

#: Topics of one request. Each is answered with dozens of keys.
TOPICS_MAX = 1000
#: From this version a client understands THROTTLING_QUOTA_EXCEEDED.
_KNOWS_QUOTA = 6
#: Delay between two attempts while a topic of the same name is being deleted.
_AGAIN = Backoff(first_s=0.2, most_s=5.0)
_EXISTS = int(ErrorCode.topic_already_exists)


@dataclass(slots=True, kw_only=True)
class CreatableTopicConfigs:
    """One key of the created topic."""

    name: str
    value: str | None
    config_source: int
    read_only: bool = False
    is_sensitive: bool = False


@dataclass(slots=True, kw_only=True)
class CreatableTopicResult:
    """Result of one topic. ``topic_config_error_code`` is 29 if the other fields are withheld."""

    name: str
    error_code: ErrorCode
    error_message: str | None = None
    topic_id: uuid.UUID | None = None
    topic_config_error_code: int = 0
    num_partitions: int = -1
    replication_factor: int = -1
    configs: tuple[CreatableTopicConfigs, ...] | None = ()


@dataclass(slots=True, kw_only=True)
class CreateTopicsResponse(ThrottledAnswer):
    """Results, with each name once."""

    topics: tuple[CreatableTopicResult, ...]


async def handle(request: CreateTopicsRequest, call: Call) -> CreateTopicsResponse:
    """Create topics, and answer once their partitions have leaders.

    Rejected topics do not affect the others. With ``validate_only`` nothing is created.
    """
    requested = Counter[str](topic.name for topic in request.topics)
    refused = await _refused(requested, request.topics, call)
    # Validation changes nothing, so it uses no quota.
    if not request.validate_only:
        refused |= _over_quota(request, refused.keys(), call)
    creatable = [topic for topic in request.topics if topic.name not in refused]
    wait_s = milliseconds(request.timeout) / 1000
    results = await _created(creatable, call, wait_s, validate_only=request.validate_only)
    # ``all_of`` lets other requests run while a long list is built.
    answers = [*refused.values()]
    answers += await call.time_slice.collect(
        _answer(topic, results[topic.name], call) for topic in creatable
    )
    return CreateTopicsResponse(topics=tuple(answers))


async def _refused(
    requested: Mapping[str, int], topics: Iterable[CreatableTopic], call: Call
) -> dict[str, CreatableTopicResult]:
    """Return the results of the topics that are rejected before the operator is called, by name.

    ``requested`` counts how often each name occurs in the request.
    """
    if len(requested) > TOPICS_MAX:
        text = f"At most {TOPICS_MAX} topics are created at once."
        return {name: _error(name, ErrorCode.policy_violation, text) for name in requested}
    # CREATE on the cluster permits every name.
    denied: Iterable[str] = ()
    if not call.client.may(Operation.CREATE, ResourceType.CLUSTER):
        denied = await call.denied(Operation.CREATE, requested)
    refused = {name: _error(name, ErrorCode.topic_authorization_failed) for name in denied}
    # Kafka reserves this name for KRaft. Clients may not create it whatever their ACLs are.
    if CLUSTER_METADATA_TOPIC in requested:
        refused[CLUSTER_METADATA_TOPIC] = _error(
            CLUSTER_METADATA_TOPIC, ErrorCode.topic_authorization_failed
        )
    for name, times in requested.items():
        if times > 1:
            refused[name] = _error(name, ErrorCode.invalid_request, "Duplicate topic name.")
    for topic in topics:
        if len(topic.configs) > SETTINGS_MAX:
            refused.setdefault(topic.name, _error(topic.name, ErrorCode.invalid_request, TOO_MANY))
    return refused


def _over_quota(
    request: CreateTopicsRequest, refused: Set[str], call: Call
) -> dict[str, CreatableTopicResult]:
    found: dict[str, CreatableTopicResult] = {}
    for topic in request.topics:
        if topic.name in refused:
            continue
        partitions = len(topic.assignments) or topic.num_partitions
        # -1 means the cluster's default, which is also what the quota must count.
        if partitions == -1:
            partitions = int(call.services.cluster.cluster_config.get(NUM_PARTITIONS) or 1)
        if not call.may_mutate(partitions, refused_since=_KNOWS_QUOTA):
            found[topic.name] = _error(
                topic.name, ErrorCode.throttling_quota_exceeded, QUOTA_EXCEEDED
            )
    return found


def _error(name: str, code: ErrorCode, message: str = AUTHORIZATION_FAILED) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=code, error_message=message)


async def _created(
    topics: Sequence[CreatableTopic], call: Call, wait_s: float, *, validate_only: bool
) -> Mapping[str, TopicChangeResult]:
    """Have the operator create the topics, and return its result for each by name.

    Waits at most ``wait_s`` seconds. A topic without leaders by then gets REQUEST_TIMED_OUT,
    although it is being created.
    """
    loop = asyncio.get_running_loop()
    until_s = loop.time() + call.wait_s(wait_s)
    made_of = await call.time_slice.collect(_change(topic) for topic in topics)
    changes = dict(zip((topic.name for topic in topics), made_of, strict=True))
    results: dict[str, TopicChangeResult] = {}
    pending, again = list(changes), _AGAIN
    # Repeat for topics whose previous incarnation is still being deleted.
    while pending:
        left_s = until_s - loop.time()
        outcomes = await forward(
            call, [changes[name] for name in pending], wait_s=left_s, validate_only=validate_only
        )
        results.update(zip(pending, outcomes, strict=True))
        pending = [name for name in pending if _is_being_deleted(results[name], name, call)]
        again = again.failed(loop.time())
        if not pending or until_s < again.until_s:
            break
        await asyncio.sleep(again.until_s - loop.time())
    # A topic without leaders would fail the client's next Produce, so the answer waits for them.
    if not validate_only:
        made = [name for name, result in results.items() if not result.error_code]
        late = await wait_until_known(
            call, made, lambda name: _is_there(results[name], call), until_s - loop.time()
        )
        results.update(dict.fromkeys(late, _LATE))
    return results


def _is_being_deleted(result: TopicChangeResult, name: str, call: Call) -> bool:
    """True if the operator still has the topic but no broker does: its deletion has not ended."""
    return result.error_code == _EXISTS and name not in call.services.cluster.topics


def _is_there(result: TopicChangeResult, call: Call) -> bool:
    if result.topic_id is None:
        return False
    return is_led(call.services.cluster.by_id(result.topic_id), result.partitions, call)


_LATE = TopicChangeResult(
    error_code=int(ErrorCode.request_timed_out),
    error_message="the topic is being created and does not have leaders yet",
    topic_id=None,
)


def _change(topic: CreatableTopic) -> TopicChange:
    """Return the operator's change that creates the topic.

    -1 as partition count or replication factor means the default of the Cluster.
    """
    # A manual assignment replaces both numbers, as in Kafka.
    return TopicChange(
        kind=ChangeKind.CREATE,
        name=topic.name,
        topic_id=None,
        partitions=topic.num_partitions,
        replication_factor=i32(topic.replication_factor),
        assignments=tuple(
            Assignment(partition=assignment.partition_index, replicas=assignment.broker_ids)
            for assignment in topic.assignments
        ),
        settings=tuple(
            Setting(name=config.name, value=config.value, operation=SettingOperation.SET)
            for config in topic.configs
        ),
    )


def _answer(topic: CreatableTopic, result: TopicChangeResult, call: Call) -> CreatableTopicResult:
    """Return the Kafka result of one topic, with its configuration if the client may see it."""
    if result.error_code:
        return CreatableTopicResult(
            name=topic.name,
            error_code=error_of(result.error_code),
            error_message=result.error_message,
        )
    answer = CreatableTopicResult(
        name=topic.name, error_code=ErrorCode.none, topic_id=result.topic_id
    )
    # As in Kafka, a client without DESCRIBE_CONFIGS still creates the topic but sees no values.
    if not call.client.may(Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        answer.topic_config_error_code = int(ErrorCode.topic_authorization_failed)
        return answer
    answer.num_partitions = result.partitions
    answer.replication_factor = result.replication_factor
    answer.configs = _configs(topic, call)
    return answer


def _configs(topic: CreatableTopic, call: Call) -> tuple[CreatableTopicConfigs, ...]:
    given = {config.name: config.value for config in topic.configs if config.value is not None}
    described = topic_configs(given, call.services.cluster.cluster_config, call.services.entries)
    return tuple(
        CreatableTopicConfigs(name=key.name, value=key.value, config_source=key.config_source)
        for key in described
    )


API = Api(handle, versions=(2, 7), open_ended=True, waits=True)
