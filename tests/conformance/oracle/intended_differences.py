"""Intended differences between our answers and Apache Kafka's, each with its reason.

A line that explains nothing in a run of the whole table fails it: the list only shrinks.
"""

import fnmatch
from dataclasses import dataclass

from tests.conformance.oracle.sides import SILENT

SILENCE = SILENT.decode()


@dataclass(frozen=True, slots=True)
class Difference:
    """Difference in the cases ``case``, at the answer's field ``path`` ("" for a closed connection
    or a missing answer):

    ``ours`` instead of Kafka's ``theirs``. All may have stars.
    """

    case: str
    path: str
    reason: str
    ours: str = "*"
    theirs: str = "*"

    def explains(self, case: str, path: str, ours: object, theirs: object) -> bool:
        """Return whether this is the difference in question."""
        return all(
            fnmatch.fnmatchcase(str(found), pattern)
            for found, pattern in (
                (case, self.case), (path, self.path), (ours, self.ours), (theirs, self.theirs)
            )
        )  # fmt: skip


ON_PURPOSE = (
    # Unreadable input.
    Difference(
        "Produce * unknown codec", "*", "Kafka throws IllegalArgumentException, so "
        "UNKNOWN_SERVER_ERROR; ours names what it is: UNSUPPORTED_COMPRESSION_TYPE"
    ),
    Difference(
        "Produce * poison, *", "*", "what cannot be read throws whatever it throws in Kafka, so "
        "UNKNOWN_SERVER_ERROR, which says nothing and is sent again; ours says INVALID_RECORD",
        ours="invalid_record", theirs="unknown_server_error"
    ),
    Difference(
        "Produce * poison, offset deltas*", "*", "Kafka rewrites packed batches whose offsets are "
        "not 0 to n-1, and takes others as they are; ours never rewrites records, and refuses both"
    ),
    Difference(
        "Produce * log append time", "*", "Kafka refuses a client's LogAppendTime on topics of "
        "LogAppendTime, and takes off the mark on others; ours refuses it on both"
    ),
    # What is said beside a code.
    Difference(
        "* v*", "*error_message", "Kafka leaves the text to the client's own table; ours says what "
        "is wrong", ours="<error_message>", theirs="<absent>"
    ),
    # Requests that Kafka does not answer.
    *(
        Difference(
            case, "", "Kafka's handler throws, and neither this request nor one behind it is ever "
            "answered; ours is", theirs=SILENCE
        )
        for case in (
            "Produce * null records", "Produce *records null", "AddPartitionsToTxn v[45] blank*",
            "AddPartitionsToTxn v[45] *transactions empty", "WriteTxnMarkers *topics twice",
            "WriteTxnMarkers *partition_indexes twice", "WriteTxnMarkers *partition_indexes with 0",
            "AlterConfigs * resources twice", "JoinGroup v[0-3] *protocols twice",
            "JoinGroup v[0-3] *metadata noise",
        )
    ),
    # What Kafka does not expect.
    *(
        Difference(
            case, "*", "a number that means nothing throws in Kafka, so UNKNOWN_SERVER_ERROR; "
            "ours says what is wrong, or reads it as the kind that is usual",
            theirs="unknown_server_error"
        )
        for case in (
            "IncrementalAlterConfigs *", "CreatePartitions * 20000 *", "WriteTxnMarkers *",
            "DescribeTopicPartitions * topics.name empty", "Fetch * isolation_level *",
            "Fetch * session_id largest", "ListOffsets * isolation_level *",
        )
    ),
    *(
        Difference(case, "*", "what goes with UNKNOWN_SERVER_ERROR in Kafka")
        for case in (
            "DescribeTopicPartitions * topics.name empty", "Fetch * isolation_level *",
            "Fetch * session_id largest", "ListOffsets * isolation_level *",
        )
    ),
    Difference(
        "WriteTxnMarkers * markers.producer_id -2", "*", "Kafka takes a producer of -2; ours none "
        "below zero"
    ),
    *(
        Difference(
            f"{api} *", "", "of a kind that means nothing: Kafka ends the connection, ours says "
            "SECURITY_DISABLED where no ACLs decide, else INVALID_REQUEST", theirs="closed"
        )
        for api in ("DescribeAcls", "CreateAcls", "DeleteAcls")
    ),
    # What is named twice, or not at all.
    *(
        Difference(
            case, "*", "what one request names twice: Kafka answers once, or does the last "
            "of both; ours answers both, or says INVALID_REQUEST"
        )
        for case in (
            "DeleteRecords *twice", "ListOffsets *twice", "OffsetForLeaderEpoch *twice",
            "ElectLeaders *twice", "ElectLeaders *with 0", "WriteTxnMarkers *markers twice",
            "DescribeTransactions *twice", "IncrementalAlterConfigs *resources twice",
            "CreateTopics *one key twice", "CreateTopics *configs twice", "Produce *twice",
        )
    ),
    *(
        Difference(
            f"{case} empty", "*", "Kafka leaves out a topic of which no partition is named; ours "
            "answers each that is named"
        )
        for case in (
            "* topics.partitions", "WriteTxnMarkers * markers.topics",
            "WriteTxnMarkers *partition_indexes", "Produce *partition_data",
        )
    ),
    *(
        Difference(
            f"{api} * timeout {number}", "*", "no time at all: REQUEST_TIMED_OUT before Kafka's "
            "controller looks at it; ours is answered where nothing has to be waited for"
        )
        for api in (
            "ElectLeaders", "AlterPartitionReassignments", "DeleteTopics", "CreatePartitions",
            "CreateTopics",
        )
        for number in (0, -1)
    ),
    # What is not served, or is not there.
    Difference(
        "Frame a version of ApiVersions too new", "*api_keys", "Kafka names ApiVersions alone, "
        "ours all that it serves, as Kafka did before 2.4"
    ),
    Difference(
        "Metadata v1[23] * topics.name null", "*", "neither a name nor an id: Kafka's handler "
        "throws, so nothing of the whole request is answered; ours is but of that topic"
    ),
    Difference(
        "JoinGroup * new group*", "*member_id", "an id that the coordinator has thought of"
    ),
    Difference(
        "JoinGroup v[0-3] new group*", "generation_id", "a group's first member joins in epoch 2, "
        "in ours in 1"
    ),
    Difference(
        "ConsumerGroupDescribe v0 new group*of no member", "*", "a group whose last member of "
        "KIP-848's protocol has left is one of classic members at once in Kafka, a moment later in "
        "ours"
    ),
    Difference(
        "ConsumerGroup*", "*epoch", "a group's first member joins in epoch 2, in ours in 1"
    ),
    Difference(
        "ConsumerGroupHeartbeat v0 * member_id empty", "*member_id", "an id that the coordinator "
        "has thought of"
    ),
    Difference(
        "JoinGroup * group_instance_id empty", "*", "Kafka makes the member's id of the instance's "
        "though it is empty, ours of the client's"
    ),
    Difference(
        "AlterReplicaLogDirs *topics.name too long", "*", "Kafka looks at the name before it "
        "looks for the directory"
    ),
    Difference(
        "CreatePartitions * topics.assignments empty", "*", "an empty list of assignments is none "
        "here; Kafka misses one for each partition"
    ),
    # Configuration.
    Difference(
        "CreateTopics * configured by an empty list", "*", "Kafka 4.3 takes an empty "
        "cleanup.policy for: keep all; here that is said by retention.ms=-1"
    ),
    Difference(
        "IncrementalAlterConfigs * validates no policy", "*", "as above"
    ),
    Difference(
        "CreatePartitions * 51 of __consumer_offsets", "*", "more partitions of the coordinators' "
        "topic would give every group another coordinator, which knows nothing of it"
    ),
    *(
        Difference(
            f"{api} * validates that of all brokers", "*", "a key that no broker has: Kafka keeps "
            "it, or misses others; ours says that there is none"
        )
        for api in ("AlterConfigs", "IncrementalAlterConfigs")
    ),
    Difference(
        "* v*", "*.configs.retention.ms.synonyms", "the default is log.retention.ms here; Kafka's "
        "is log.retention.hours, which it does not count among the synonyms"
    ),
    *(
        Difference(f"DescribeConfigs * {case}", f"*.configs.{path}", reason)
        for case, path, reason in (
            ("*", "*.documentation", "words of our own"),
            ("assigned*", "*", "a broker has keys and defaults of its own; ours are in its file"),
        )
    ),
    # Another cluster.
    *(
        Difference(
            f"Fetch * {case}", "*", "followers of our cluster use an Api of their own: no other "
            "client is one"
        )
        for case in ("as a follower", "plain: replica_id *", "plain: replica_state.replica_id *")
    ),
    Difference(
        "DescribeLogDirs *", "*partition_size", "what one of both has refused is not in its log"
    ),
    Difference(
        "DescribeGroups v0 static*", "*member_assignment", "the assignment of the generation "
        "before, which Kafka tells of until the next one is synced"
    ),
    Difference(
        "* v*", "*.configs.remote.log.disable.policy", "a key of ours (KIP-950)", theirs="None"
    ),
    Difference(
        "* v*", "*.configs.remote.copy.lag.*", "KIP-1241, which Kafka 4.3 does not have",
        theirs="None"
    ),
    Difference(
        "* v*", "*.configs.tidemark.remote.copy.*", "a key of ours (spec.tiering.maxLag, paused)",
        theirs="None"
    ),
    Difference(
        "* v*", "*.configs.tidemark.remote.compression", "a key of ours", theirs="None"
    ),
    Difference(
        "*AlterConfigs v* to an unsupported disable policy", "*error_code", "KIP-950 "
        "specifies INVALID_REQUEST; Kafka does not know the key and answers INVALID_CONFIG",
        ours="invalid_request", theirs="invalid_config"
    ),
    Difference(
        "* v*", "*.configs.min.insync.replicas.config_source", "Kafka 4 writes an entry of its own "
        "for KIP-966 into every new cluster", theirs="3"
    ),
    Difference(
        "CreateTopics v7 *", "*.topic_id", "Kafka makes an id for what is only validated, and "
        "forgets it", ours="None"
    ),
    Difference(
        "ApiVersions *", "*api_keys*", "each side lists what it serves"
    ),
    Difference(
        "ApiVersions *", "*features*", "each side lists what it has"
    ),
)  # fmt: skip


def explained(case: str, path: str, ours: object, theirs: object) -> Difference | None:
    """The line that says why, if there is one."""
    return next((item for item in ON_PURPOSE if item.explains(case, path, ours, theirs)), None)


def is_silent(case: str) -> bool:
    """Return whether Kafka does not answer the case."""
    return any(
        item.theirs == SILENCE and fnmatch.fnmatchcase(case, item.case) for item in ON_PURPOSE
    )
