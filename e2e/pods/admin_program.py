"""Program in the client's pod that creates or deletes a topic as a Kafka client does.

Arguments: create or delete, bootstrap server, topic. It prints "done" or the error.
"""

import sys

from kafka.admin import KafkaAdminClient, NewTopic
from kafka.errors import KafkaError


def main(what: str, bootstrap: str, topic: str) -> str:
    """Return "done" or the error."""
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
