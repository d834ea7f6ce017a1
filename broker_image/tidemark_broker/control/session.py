"""Identity of a session, as proof that this process is the one that registered last."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ControllerSession:
    """Result of a registration. ``token`` is a secret between broker and controller."""

    broker_id: int
    broker_epoch: int
    token: bytes = field(repr=False)
