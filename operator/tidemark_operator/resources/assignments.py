"""Brokers of a topic's partitions in an annotation.

``0:1,2;1:2,3`` places partition 0 on brokers 1 and 2 (the preferred leader first), and partition 1
on 2 and 3. Kafka's CreateTopics and CreatePartitions can contain such assignments. An assignment
applies when a partition is placed, and never again.
"""

import re
from collections.abc import Mapping

_ASSIGNMENT = re.compile(r"([0-9]{1,9}):([0-9]{1,9}(?:,[0-9]{1,9})*)")


def assignments_text(assignments: Mapping[int, tuple[int, ...]]) -> str:
    """Return the text of the annotation."""
    return ";".join(
        f"{partition}:{','.join(map(str, brokers))}"
        for partition, brokers in sorted(assignments.items())
    )


def parse_assignments(text: str) -> dict[int, tuple[int, ...]]:
    """Return the brokers by partition.

    Invalid parts are ignored: anybody may edit an annotation.
    """
    found = {}
    for part in text.split(";"):
        match = _ASSIGNMENT.fullmatch(part.strip())
        if match is not None:
            brokers = tuple(map(int, match[2].split(",")))
            # A broker can have one replica of a partition only.
            found[int(match[1])] = tuple(dict.fromkeys(brokers))
    return found
