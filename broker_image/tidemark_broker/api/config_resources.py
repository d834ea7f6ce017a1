"""What configuration requests are about, by the numbers of Kafka's ``ConfigResource.Type``."""

import enum

#: Settings of one resource in a request; there are dozens of keys.
SETTINGS_MAX = 1000
TOO_MANY = f"At most {SETTINGS_MAX} settings are taken of one resource."


class ConfigResource(enum.IntEnum):
    """Those that are served."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32
