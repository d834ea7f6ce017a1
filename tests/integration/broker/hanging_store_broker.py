"""A broker whose store may hang: ``python hanging_store_broker.py FOLDER --config F``.

While ``FOLDER/hang`` exists, no write of an object to a tier's directory returns; ``FOLDER/hung``
appears with the first of them.
"""

import sys
import time
from pathlib import Path
from typing import Any

from tidemark.tier.stores.directory import DirectoryStore
from tidemark_broker.main import main


def install(folder: Path) -> None:
    """Put the fault before the store's writes."""
    for name in ("create", "replace"):
        real = getattr(DirectoryStore, name)

        def late(self: DirectoryStore, *args: Any, real: Any = real) -> Any:
            while (folder / "hang").exists():
                (folder / "hung").touch()
                time.sleep(0.02)
            return real(self, *args)

        setattr(DirectoryStore, name, late)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    raise SystemExit(main(sys.argv[2:]))
