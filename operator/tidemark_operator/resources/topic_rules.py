"""CEL rules of ``Topic``, by their place in its schema.

Rules that name ``oldSelf`` are transition rules. Those at the root use ``oldSelf.status``, which an
update of the main resource contains. They hold for an unchanged object: otherwise they would block
the removal of a finalizer.
"""

from tidemark.logfiles.names import COORDINATORS_TOPICS
from tidemark.tiering import STEPS
from tidemark_operator.resources.config_rules import cel_list
from tidemark_operator.resources.durations import cel_is_duration
from tidemark_operator.resources.quantities import cel_is_quantity
from tidemark_operator.resources.schema import Rule


def _is_compacted(topic: str) -> str:
    """Return CEL: the spec of ``topic`` (an expression) enables compaction."""
    config = f"{topic}.config"
    return (
        f"(has({config}) && 'cleanup.policy' in {config} && "
        f"string({config}['cleanup.policy']).contains('compact'))"
    )


_NAME = "(has({0}.spec.topicName) ? {0}.spec.topicName : {0}.metadata.name)"

TOPIC_RULES = (
    # KIP-950: brokers already work on the disablement that the status shows.
    Rule(
        rule=(
            "!has(oldSelf.status) || !has(oldSelf.status.tiering) || "
            "oldSelf.status.tiering.state != 'Disabling' || "
            "(has(self.spec.tiering) == has(oldSelf.spec.tiering) && "
            "(!has(self.spec.tiering) || self.spec.tiering == oldSelf.spec.tiering))"
        ),
        message=(
            "TIERED_STORAGE_DISABLEMENT_IN_PROGRESS: spec.tiering cannot "
            "change while status.tiering.state is Disabling. Wait for the "
            "state Disabled, then apply again."
        ),
        field_path=".spec.tiering",
        reason="FieldValueForbidden",
    ),
    # Kafka cannot rename a topic.
    Rule(
        rule=f"{_NAME.format('self')} == {_NAME.format('oldSelf')}",
        message=(
            "the topic name is immutable. Restore the previous name, or create "
            "another Topic and copy the data."
        ),
        field_path=".spec.topicName",
    ),
    Rule(
        # A number that has not been placed may be lowered, for example a typing error in a paused
        # Topic. The status has the number before a broker, or Apache Kafka, receives a partition.
        rule=(
            "self.spec.partitions >= oldSelf.spec.partitions || !has(oldSelf.status) || "
            "(has(oldSelf.status.partitionsPlaced) ? "
            "self.spec.partitions >= oldSelf.status.partitionsPlaced : "
            "!has(oldSelf.status.topicId))"
        ),
        message=(
            "partitions cannot be lower than status.partitionsPlaced, because "
            "Kafka cannot remove a partition"
        ),
        field_path=".spec.partitions",
    ),
    Rule(
        rule=(
            "!has(self.spec.topicName) || "
            f"!(self.spec.topicName in {cel_list(sorted(COORDINATORS_TOPICS))}) || "
            "self.spec.partitions == oldSelf.spec.partitions"
        ),
        message=(
            "the number of partitions of this internal topic is immutable, "
            "because it determines where the state of each group or "
            "transactional id is stored"
        ),
        field_path=".spec.partitions",
    ),
    Rule(
        rule="has(self.spec.topicName) || self.metadata.name.size() <= 249",
        message="the object's name exceeds Kafka's limit of 249 characters for a topic "
        "name. Set spec.topicName.",
        field_path=".spec.topicName",
    ),
    Rule(
        # Kafka does not compact tiered topics (KIP-405): data in the tier would stay uncompacted.
        rule=(
            "!has(oldSelf.status) || !has(oldSelf.status.tiering) || "
            "(oldSelf.status.tiering.state == 'Disabled' && "
            "has(oldSelf.status.tiering.remoteSegments) && "
            "oldSelf.status.tiering.remoteSegments == 0) || "
            f"{_is_compacted('oldSelf.spec')} || !{_is_compacted('self.spec')}"
        ),
        message=(
            "cleanup.policy cannot become compact while the topic has data in "
            "the remote tier. Disable tiering with disablePolicy Delete and "
            "wait for state Disabled and status.tiering.remoteSegments 0."
        ),
        field_path=".spec.config",
    ),
)

_WHOLE_NUMBER = "^[0-9]{1,18}$"
_LOCAL_TIME = "self.tiering.localRetention.time"
_LOCAL_SIZE = "string(self.tiering.localRetention.size)"
_TOTAL_TIME = "string(self.config['retention.ms'])"
_TOTAL_SIZE = "string(self.config['retention.bytes'])"


def _has_local(field: str, key: str) -> str:
    return (
        "has(self.tiering) && has(self.tiering.localRetention) && "
        f"has(self.tiering.localRetention.{field}) && has(self.config) && '{key}' in self.config"
    )


_LEAST_LAG = "string(self.config['min.compaction.lag.ms'])"
_MOST_LAG = "string(self.config['max.compaction.lag.ms'])"

SPEC_RULES = (
    Rule(
        rule=(
            "!has(self.config) || !('min.compaction.lag.ms' in self.config) || "
            "!('max.compaction.lag.ms' in self.config) || "
            f"!{_LEAST_LAG}.matches('{_WHOLE_NUMBER}') || "
            f"!{_MOST_LAG}.matches('{_WHOLE_NUMBER}') || "
            f"int({_LEAST_LAG}) <= int({_MOST_LAG})"
        ),
        message="min.compaction.lag.ms exceeds max.compaction.lag.ms. Lower it.",
        message_expression=(
            f"'min.compaction.lag.ms ' + {_LEAST_LAG} + ' exceeds "
            f"max.compaction.lag.ms ' + {_MOST_LAG} + '. Lower it, or raise "
            "max.compaction.lag.ms.'"
        ),
        field_path=".config",
    ),
    Rule(
        # Kafka stores the state of groups and transactions by key: without compaction it grows for
        # ever.
        rule=(
            f"!has(self.topicName) || !(self.topicName in {cel_list(sorted(COORDINATORS_TOPICS))})"
            " || ((!has(self.tiering) || !self.tiering.enabled) && has(self.config) && "
            "'cleanup.policy' in self.config && "
            "string(self.config['cleanup.policy']) == 'compact')"
        ),
        message=(
            "this internal topic stores the state of groups or transactions. "
            "It needs config cleanup.policy: compact and cannot be tiered."
        ),
        field_path=".topicName",
    ),
    Rule(
        rule=f"!has(self.tiering) || !self.tiering.enabled || !{_is_compacted('self')}",
        message=(
            "a compacted topic cannot be tiered. Set cleanup.policy to delete, or disable tiering."
        ),
        field_path=".tiering",
    ),
    Rule(
        # Only if both values are valid: their own rules report invalid ones.
        rule=(
            f"!({_has_local('time', 'retention.ms')}) || "
            f"!{cel_is_duration(_LOCAL_TIME)} || "
            f"!{_TOTAL_TIME}.matches('{_WHOLE_NUMBER}') || "
            f"duration({_LOCAL_TIME}).getMilliseconds() <= int({_TOTAL_TIME})"
        ),
        message="tiering.localRetention.time exceeds retention.ms. Lower it.",
        message_expression=(
            f"'tiering.localRetention.time ' + {_LOCAL_TIME} + ' exceeds "
            f"retention.ms ' + {_TOTAL_TIME} + '. Lower it, or raise "
            "retention.ms.'"
        ),
        field_path=".tiering.localRetention",
    ),
    Rule(
        rule=(
            f"!({_has_local('size', 'retention.bytes')}) || "
            f"!{cel_is_quantity(_LOCAL_SIZE)} || "
            f"!{_TOTAL_SIZE}.matches('{_WHOLE_NUMBER}') || "
            f"quantity({_LOCAL_SIZE}).compareTo(quantity({_TOTAL_SIZE})) <= 0"
        ),
        message="tiering.localRetention.size exceeds retention.bytes. Lower it.",
        message_expression=(
            f"'tiering.localRetention.size ' + {_LOCAL_SIZE} + ' exceeds "
            f"retention.bytes ' + {_TOTAL_SIZE} + '. Lower it, or raise "
            "retention.bytes.'"
        ),
        field_path=".tiering.localRetention",
    ),
)

STATUS_RULES = (
    Rule(
        rule="!has(oldSelf.topicId) || has(self.topicId)",
        message="topicId cannot be removed",
        field_path=".topicId",
    ),
    Rule(
        rule="!has(oldSelf.tiering) || has(self.tiering)",
        message="status.tiering cannot be removed",
        field_path=".tiering",
    ),
)

_TIERING_STEPS = ", ".join(
    f"['{before.name.capitalize()}', '{after.name.capitalize()}']" for before, after in STEPS
)

TIERING_STATUS_RULES = (
    Rule(
        rule=(f"self.state == oldSelf.state || [oldSelf.state, self.state] in [{_TIERING_STEPS}]"),
        message="the tiering state changes only from Enabled to Disabling to Disabled to Enabled",
        field_path=".state",
    ),
    Rule(
        # Brokers acknowledge by epoch, so an answer to an earlier disablement must not count.
        rule=(
            "self.state != 'Disabling' || oldSelf.state == 'Disabling' || self.epoch > "
            "oldSelf.epoch"
        ),
        message="a disablement requires a higher tiered epoch",
        field_path=".epoch",
    ),
    Rule(
        rule=(
            "oldSelf.state != 'Disabling' || (has(self.policy) == has(oldSelf.policy) && "
            "(!has(self.policy) || self.policy == oldSelf.policy))"
        ),
        message="policy cannot change while state is Disabling",
        field_path=".policy",
    ),
    Rule(
        rule="self.state != 'Disabling' || has(self.policy)",
        message="state Disabling requires a policy",
        field_path=".policy",
    ),
)
