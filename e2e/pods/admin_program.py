"""What runs in the client's pod: a topic is made or deleted as a Kafka client does it.

Arguments: create or delete, bootstrap server, topic. Printed is "done", or what was answered
instead.
"""

import sys

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError


def main(what: str, bootstrap: str, topic: str) -> str:
    """What came of it."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap, request_timeout_ms=30_000)
    try:
        if what == "create":
            admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
        else:
            admin.delete_topics([topic])
    except KafkaError as error:
        return f"{type(error).__name__}: {error}"
    finally:
        admin.close()
    return "done"


if __name__ == "__main__":
    print(main(*sys.argv[1:]))
