"""Where a Service leads from, as it was last seen: memory, which the next controller fills anew."""

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WayIn:
    """How clients outside reach one listener of one broker, or of any. ``host`` "": the address of
    the node, by ``by_external_ip`` its ExternalIP; ``problem``: why there is no way yet, and
    ``refused`` that it takes a person."""

    host: str = ""
    port: int = 0
    by_external_ip: bool = False
    problem: str | None = None
    refused: bool = False
