"""Apache Kafka as the judge of quotas: the same requests under the same quota, and both brokers say
for how long their client is throttled.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from tests import apache_kafka
from tests.integration.api.api_broker import running
from tests.kafka_programs import java, kafka_jars
from tests.unit.api import api_requests
from tests.user_states import quota, user_states
from tidemark.wire.connection import KafkaConnection

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.full]

TOPIC, CLIENT = "t", "measured"
BYTES_PER_S = 50_000
#: Of one request each; a second of quota, twelve, and as much again.
PRODUCED = (50_000, 600_000, 600_000)


@pytest.fixture
def judge(tmp_path: Path) -> Iterator[str]:
    """Bootstrap server of an Apache Kafka that limits the client."""
    jars = kafka_jars()
    with apache_kafka.running(tmp_path) as started:
        admin = AdminClient({"bootstrap.servers": started.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1)])[TOPIC].result(30)
        java(
            jars,
            "kafka.admin.ConfigCommand",
            *("--bootstrap-server", started.bootstrap, "--alter"),
            *("--add-config", f"producer_byte_rate={BYTES_PER_S}"),
            *("--entity-type", "clients", "--entity-name", CLIENT),
        )
        yield started.bootstrap


async def throttled_ms(host: str, port: int) -> list[int]:
    """Return the throttle time of each request; each uses a connection that is not muted."""
    told = []
    for size in PRODUCED:
        # A throttled connection is muted, which would add its time to the next request.
        connection = await KafkaConnection.connect(host, port, client_id=CLIENT)
        try:
            request = api_requests.produce(9, TOPIC, api_requests.batch(bytes(size)), acks=1)
            answer: Any = await connection.request(request, api_requests.answer_type(0, 9), 30)
            told.append(round(answer.throttle_time.total_seconds() * 1000))
        finally:
            await connection.close()
    return told


async def test_client_is_throttled_as_long_as_by_kafka(judge: str, tmp_path: Path) -> None:
    host, _, port = judge.rpartition(":")
    theirs = await throttled_ms(host, int(port))
    # The same requests, to a broker with the same limit.
    async with running(tmp_path / "ours", {}) as broker:
        await broker.create(TOPIC)
        limit = quota(None, CLIENT, produce=BYTES_PER_S)
        broker.broker.users.apply(user_states(authorize=False, quotas=(limit,)))
        ours = await throttled_ms("127.0.0.1", broker.port)
    # The first request fits the quota. The others exceed it by twelve seconds' worth each, and the
    # throttle time follows from the window (ClientQuotaManager).
    assert theirs[0] == ours[0] == 0
    for mine, kafkas in zip(ours[1:], theirs[1:], strict=True):
        assert kafkas > 1000
        assert mine == pytest.approx(kafkas, rel=0.1)
