"""In whose name a broker asks the controller: proof that it is the process that registered last."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Session:
    """What the answer to a registration gave; ``token`` is a secret of the two ends."""

    broker_id: int
    broker_epoch: int
    token: bytes = field(repr=False)
