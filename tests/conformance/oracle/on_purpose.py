"""Where our answers differ from Apache Kafka's on purpose, each with its reason.

A line that explains nothing in a run of the whole table fails it: the list only shrinks.
"""

import fnmatch
from dataclasses import dataclass

from tests.conformance.oracle.sides import SILENT

SILENCE = SILENT.decode()


@dataclass(frozen=True, slots=True)
class Difference:
    """Of the cases ``case``, at the answer's field ``path`` ("" for a connection that is closed or
    an answer that is missing), ``ours`` where Kafka's is ``theirs``. All may have stars."""

    case: str
    path: str
    reason: str
    ours: str = "*"
    theirs: str = "*"

    def explains(self, case: str, path: str, ours: object, theirs: object) -> bool:
        """Is that the one?"""
        return all(
            fnmatch.fnmatchcase(str(found), pattern)
            for found, pattern in (
                (case, self.case), (path, self.path), (ours, self.ours), (theirs, self.theirs)
            )
        )  # fmt: skip


ON_PURPOSE = (
    # What nobody can read.
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
            case, "*", "a value that there is not throws in Kafka, so UNKNOWN_SERVER_ERROR; ours "
            "says INVALID_REQUEST or takes it for the one that does least",
            theirs="unknown_server_error"
        )
        for case in (
            "IncrementalAlterConfigs *", "CreatePartitions * 20000 *", "WriteTxnMarkers *",
            "DescribeTopicPartitions * topics.name empty", "Fetch * isolation_level *",
            "Fetch * session_id largest", "ListOffsets * isolation_level *",
        )
    ),
    *(
        Difference(case, "*", "what follows from that")
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
            f"{api} *", "", "a kind that there is not: Kafka ends the connection, ours says "
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
            "CreateTopics *one key twice", "Produce *twice",
        )
    ),
    *(
        Difference(
            f"{case} empty", "*", "Kafka leaves out a topic of which no partition is named; ours "
            "answers each that is named"
        )
        for case in (
            "* topics.partitions", "* topics.partition_indexes", "WriteTxnMarkers * markers.topics",
            "WriteTxnMarkers *partition_indexes", "Produce *partition_data",
        )
    ),
    *(
        Difference(
            f"{api} * timeout {number}", "*", "a time that has passed before Kafka's controller "
            "looks at the request; ours is answered if nothing has to be waited for",
            theirs=theirs
        )
        for api in (
            "ElectLeaders", "AlterPartitionReassignments", "DeleteTopics", "CreatePartitions",
            "CreateTopics",
        )
        for number in (0, -1)
        for theirs in ("request_timed_out", "<absent>")
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
    Difference(
        "* v*", "*.configs.retention.ms.synonyms", "the default is log.retention.ms here; Kafka's "
        "is log.retention.hours, which it does not count among the synonyms"
    ),
    *(
        Difference(
            f"{api} * of an unknown group", "*", "a group has no configuration of its own here: "
            "the broker's is for all"
        )
        for api in ("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs")
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
            f"Fetch * {case}", "*", "followers of our cluster use an Api of their own: nobody else "
            "is one"
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
    return next((each for each in ON_PURPOSE if each.explains(case, path, ours, theirs)), None)


def is_silent(case: str) -> bool:
    """Is it one that Kafka is not going to answer?"""
    return any(
        each.theirs == SILENCE and fnmatch.fnmatchcase(case, each.case) for each in ON_PURPOSE
    )
