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
        "Produce * null records", "", "Kafka's handler throws NullPointerException, and neither "
        "this request nor one behind it is ever answered; ours says INVALID_RECORD",
        theirs=SILENCE
    ),
    Difference(
        "Produce *records null", "", "as null records", theirs=SILENCE
    ),
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
    Difference(
        "Produce * named twice", "*", "Kafka appends the last of the two and drops the others "
        "without a word; ours appends none"
    ),
    Difference(
        "Produce * twice", "*", "as named twice"
    ),
    # What is said beside a code.
    Difference(
        "Produce *", "*.error_message", "Kafka says what is wrong only of single records; ours "
        "always does, which clients show", ours="<error_message>", theirs="<absent>"
    ),
    # Requests that Kafka does not answer.
    Difference(
        "AddPartitionsToTxn v[45] blank*", "", "Kafka never answers a request without "
        "transactions, nor what is behind it; ours has nothing to do and says so", theirs=SILENCE
    ),
    Difference(
        "AddPartitionsToTxn v[45] *transactions empty", "", "as above", theirs=SILENCE
    ),
    # Another cluster.
    Difference(
        "Fetch * as a follower", "*", "followers of our cluster use an Api of their own: nobody "
        "else is one"
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
