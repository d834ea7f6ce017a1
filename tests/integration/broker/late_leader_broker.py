"""A broker that leads a little late: ``python late_leader_broker.py FOLDER --config F``.

While ``FOLDER/late`` exists, the next batch is refused as one that has come before the replica
leads; it takes so long that whatever a client has under way is there by then.
"""

import sys
import time
from pathlib import Path

from kio.schema.errors import ErrorCode

from tidemark_broker.main import main
from tidemark_broker.replication.partition import produce
from tidemark_broker.replication.partition.partition import Partition
from tidemark_broker.replication.types import ProduceResult


def install(folder: Path) -> None:
    """Put the fault before the append."""
    real = produce._refusal

    def late(partition: Partition, acks: int) -> ProduceResult | None:
        if not (folder / "late").exists():
            return real(partition, acks)
        time.sleep(1)
        (folder / "late").unlink()
        return ProduceResult(error=ErrorCode.not_leader_or_follower)

    produce._refusal = late


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    raise SystemExit(main(sys.argv[2:]))
