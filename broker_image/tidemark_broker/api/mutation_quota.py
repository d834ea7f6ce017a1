"""How many partitions a client may have created and deleted a second (KIP-599): the quota
``controller_mutation_rate``.

Each costs writes to the API server and work of the one controller. A client that is over its quota
is told so with THROTTLING_QUOTA_EXCEEDED, and nothing is passed on; in versions that do not know
that error it is served, and its connection rests (Kafka's strict and permissive quotas). Counted on
each broker by itself, as all quotas here are; what the operator would refuse for its number of
partitions is not counted.
"""

from tidemark_broker.api.table import Call
from tidemark_broker.quotas.table import QuotaKind

EXCEEDED = "The throttling quota has been exceeded."
#: The operator takes no topic of more.
_PARTITIONS_MAX = 10_000


def may_mutate(call: Call, partitions: int, *, refused_since: int) -> bool:
    """May so many partitions be created or deleted? They are counted if so. ``refused_since``: the
    first version that knows the error."""
    quotas = call.quotas
    if quotas is None or not quotas.holds(QuotaKind.MUTATION):
        return True
    if call.version >= refused_since and quotas.room(QuotaKind.MUTATION) == 0:
        return False
    quotas.use(QuotaKind.MUTATION, partitions if 0 < partitions <= _PARTITIONS_MAX else 0)
    return True
