"""Where our answers differ from Apache Kafka's on purpose, each with its reason.

A line that explains nothing in a run of the whole table fails it: the list only shrinks.
"""

import fnmatch
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Difference:
    """``case`` and ``path`` may have stars; ``path`` is that of the answer's field, "" for a
    connection that is closed or an answer that is missing."""

    case: str
    path: str
    reason: str

    def explains(self, case: str, path: str) -> bool:
        """Is that the one?"""
        return fnmatch.fnmatchcase(case, self.case) and fnmatch.fnmatchcase(path, self.path)


ON_PURPOSE = (
    Difference(
        "Produce * null records", "*", "Kafka's handler throws NullPointerException, for all "
        "partitions of the request; ours says INVALID_RECORD of the one"
    ),
    Difference(
        "Produce * unknown codec", "*", "Kafka throws IllegalArgumentException, so "
        "UNKNOWN_SERVER_ERROR; ours names what it is: UNSUPPORTED_COMPRESSION_TYPE"
    ),
    Difference(
        "Produce * named twice", "*", "Kafka appends the last of the two and drops the others "
        "without a word; ours appends none"
    ),
    Difference(
        "Produce * offset deltas*", "*", "Kafka rewrites packed batches whose offsets are not 0 to "
        "n-1, and takes others as they are; ours never rewrites records, and refuses both"
    ),
    Difference(
        "Fetch * as a follower", "*", "followers of our cluster use an Api of their own: nobody "
        "else is one"
    ),
    Difference(
        "ApiVersions *", "*api_keys*", "each side lists what it serves"
    ),
    Difference(
        "ApiVersions *", "*features*", "each side lists what it has"
    ),
)  # fmt: skip


def explained(case: str, path: str) -> Difference | None:
    """The line that says why, if there is one."""
    return next((each for each in ON_PURPOSE if each.explains(case, path)), None)
