"""Rate limit for created and deleted partitions (KIP-599): the quota ``controller_mutation_rate``.

Each such change costs writes to the API server and work of the controller. A client over its quota
receives THROTTLING_QUOTA_EXCEEDED, and nothing is passed on. Versions that do not know that error
are served, and the connection is throttled (Kafka's strict and permissive quotas). Like all quotas
here, it is counted by each broker separately. Requests that the operator would reject for their
number of partitions are not counted.
"""

from tidemark_broker.api.table import Call
from tidemark_broker.quotas.table import QuotaKind

EXCEEDED = "The throttling quota has been exceeded."
#: The operator accepts no topic with more partitions.
_PARTITIONS_MAX = 10_000


def may_mutate(call: Call, partitions: int, *, refused_since: int) -> bool:
    """Return whether ``partitions`` may be created or deleted, and count them if so.

    ``refused_since`` is the first version that knows the error.
    """
    quotas = call.quotas
    if quotas is None or not quotas.holds(QuotaKind.MUTATION):
        return True
    # Strict mode: a request that is accepted may still exceed the quota by its own size (KIP-599).
    if call.version >= refused_since and quotas.room(QuotaKind.MUTATION) == 0:
        return False
    quotas.use(QuotaKind.MUTATION, partitions if 0 < partitions <= _PARTITIONS_MAX else 0)
    return True
