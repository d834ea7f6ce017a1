"""Which tests of which suites ``make test`` runs: some ten seconds of each, on the cluster that all
conformance tests share. So kafka-go's are not among them, which want a broker on a certain port,
nor sarama's, which want five behind proxies.
"""

import re

from tests.suites.catalogue import SUITES
from tests.suites.recorded_results import OURS, RESULTS, load
from tests.suites.suite import Ready

#: Suite → what the names of its tests have.
SHORT = {
    "franz-go": r"^(TestPing|TestConsumeRegex|TestGroupSimple|TestIssue865|TestPooling)$",
    "java-tools": r"^(compatibility_of_clients|leader_election_command|transactions_command)$",
    # Not delete_records: it wants what three brokers have in its first poll: a busy machine fails.
    "kafka-python": (
        r"::test_(create_delete_topics|delete_records_with_errors"
        r"|kafka_consumer__offset_commit_resume|kafka_consumer_offsets_for_time)$"
    ),
}


def has_been_run(name: str) -> bool:
    """All of it, against ours, and it was written down."""
    record = load(RESULTS.read_text("utf-8")).get(name)
    return record is not None and OURS in record.sides


def selected(name: str) -> tuple[Ready, list[str]]:
    """The suite with all that it needs, and those of its tests. Raises
    :class:`tests.suites.packages.Missing`."""
    ready = SUITES[name].prepare()
    return ready, [test for test in ready.tests if re.search(SHORT[name], test)]


def ensure_short() -> None:
    """Get and build those that ``make test`` will run. Raises
    :class:`tests.suites.packages.Missing`."""
    for name in SHORT:
        if has_been_run(name):
            SUITES[name].prepare()
