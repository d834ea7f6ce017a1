"""Stock clients as they come: no option set but the address, with a group, idempotent where that is
their default. What a group has read it does not read again, and what came in between it does.
"""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
from default_clients import COMMANDS, talk_of
from local_cluster import RunningCluster
from stock_clients import PYTHON_CLIENTS

pytestmark = [pytest.mark.slow, pytest.mark.full]

NAMES = [*COMMANDS, "kcat"]
COUNT = 50
BETWEEN = [f"between {number}" for number in range(10)]


def talk_twice(cluster: RunningCluster, topic: str, client: str) -> tuple[list[str], list[str]]:
    """Run two members one after the other, with records written between them, and return what
    they received.
    """
    talk = talk_of(client)
    first = talk(cluster.bootstrap, topic, f"group-{topic}", "first", COUNT)
    produce, _ = PYTHON_CLIENTS["confluent-kafka"]
    produce(cluster.bootstrap, topic, [value.encode() for value in BETWEEN], lambda _: None)
    return first, talk(cluster.bootstrap, topic, f"group-{topic}", "second", COUNT)


@pytest.fixture(scope="module")
def talks(cluster: RunningCluster) -> Iterator[dict[str, Future[tuple[list[str], list[str]]]]]:
    """All of them side by side: most of their time they wait."""
    topics = {name: cluster.new_topic() for name in NAMES}
    with ThreadPoolExecutor(3) as threads:
        yield {name: threads.submit(talk_twice, cluster, topics[name], name) for name in NAMES}


@pytest.mark.parametrize("client", NAMES)
def test_client_with_defaults_resumes_where_its_group_stopped(
    talks: dict[str, Future[tuple[list[str], list[str]]]], client: str
) -> None:
    first, second = talks[client].result()
    # Probes are there to find out when the member has a position.
    said = [f"first {number}" for number in range(COUNT)]
    assert [value for value in first if value != "probe"] == said
    # The second member starts at the committed offset, not at the end of the log: records that were
    # written between the two runs come first.
    said = [*BETWEEN, *(f"second {number}" for number in range(COUNT))]
    assert [value for value in second if value != "probe"] == said
