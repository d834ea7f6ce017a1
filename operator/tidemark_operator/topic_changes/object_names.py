"""Object name of a topic that a Kafka client creates.

Kafka's names may have capitals and underscores, Kubernetes' may not. The object has the topic's
name if that is valid and free. Otherwise its name is made of the valid characters and a hash of
cluster and topic.
"""

import hashlib
import re
from collections.abc import Callable

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?([.][a-z0-9]([a-z0-9-]*[a-z0-9])?)*")
_NAME_CHARS_MAX = 253
_SLUG_CHARS_MAX = 60
_HASH_CHARS = 10


def object_name(cluster: str, topic: str, is_taken: Callable[[str], bool]) -> str:
    """Return the object's name; ``is_taken``: the name belongs to the object of another topic."""
    if len(topic) <= _NAME_CHARS_MAX and _NAME.fullmatch(topic) and not is_taken(topic):
        return topic
    digest = hashlib.sha256(f"{cluster}/{topic}".encode()).hexdigest()[:_HASH_CHARS]
    slug = re.sub("[^a-z0-9]+", "-", topic.lower())[:_SLUG_CHARS_MAX].strip("-")
    return f"{slug}-{digest}" if slug else f"topic-{digest}"
