"""Which brokers the partitions of a topic are to be placed on, as an annotation has it:
``0:1,2;1:2,3`` is partition 0 on brokers 1 and 2 (the preferred leader first), partition 1 on 2
and 3.

Kafka's CreateTopics and CreatePartitions may say so. It counts when a partition is placed, and
never again.
"""

import re
from collections.abc import Mapping

_ASSIGNMENT = re.compile(r"([0-9]{1,9}):([0-9]{1,9}(?:,[0-9]{1,9})*)")


def assignments_text(assignments: Mapping[int, tuple[int, ...]]) -> str:
    """As the annotation has it."""
    return ";".join(
        f"{partition}:{','.join(map(str, brokers))}"
        for partition, brokers in sorted(assignments.items())
    )


def parse_assignments(text: str) -> dict[int, tuple[int, ...]]:
    """The brokers by partition. What is not written so counts for nothing: an annotation is
    anybody's."""
    found = {}
    for part in text.split(";"):
        match = _ASSIGNMENT.fullmatch(part.strip())
        if match is not None:
            brokers = tuple(map(int, match[2].split(",")))
            found[int(match[1])] = tuple(dict.fromkeys(brokers))
    return found
