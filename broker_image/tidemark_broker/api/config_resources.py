"""Resource types of configuration requests, by the numbers of Kafka's ``ConfigResource.Type``."""

import enum

#: Settings of one resource in a request. Dozens of keys exist, so more can only be abuse.
SETTINGS_MAX = 1000
TOO_MANY = f"At most {SETTINGS_MAX} settings are accepted for one resource."


class ConfigResource(enum.IntEnum):
    """Resource types that this broker supports."""

    TOPIC = 2
    BROKER = 4
    BROKER_LOGGER = 8
    GROUP = 32
