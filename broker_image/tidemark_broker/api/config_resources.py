"""What configuration requests are about, by the numbers of Kafka's ``ConfigResource.Type``."""

import enum


class ConfigResource(enum.IntEnum):
    """Those that are served."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
