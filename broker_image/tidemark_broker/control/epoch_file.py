"""Highest controller epoch that this broker has obeyed, stored before anything is obeyed.

A controller with a lower epoch was superseded and does not know it yet. Its commands are rejected,
also after a restart of the broker.
"""

import json
import logging
from pathlib import Path

from tidemark_broker.log import StorageError
from tidemark_broker.log.files import replace_file
from tidemark_broker.replication.threads import in_role_thread

logger = logging.getLogger(__name__)


class ControllerEpoch:
    """The stored epoch.

    ``highest`` is -1 before the first controller. ``commit``, the last commit received in that
    epoch, is only in memory: it costs no write, and most brokers live longer than it is needed.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.highest = _read(path)
        self.commit = -1

    def is_stale(self, epoch: int) -> bool:
        """True for the epoch of a superseded controller."""
        return epoch < self.highest

    async def accept(self, epoch: int) -> bool:
        """Obey this epoch from now on, durably. Return False if it is stale."""
        if self.is_stale(epoch):
            return False
        if epoch > self.highest:
            # Written before the epoch counts: a crash must not make the broker obey an older
            # controller.
            data = json.dumps({"version": 1, "controllerEpoch": epoch}).encode()
            await in_role_thread(replace_file, self._path, data)
            # A higher epoch may have been accepted during the write.
            if epoch > self.highest:
                self.highest, self.commit = epoch, -1
                logger.info("controller epoch %d", epoch)
        return epoch == self.highest


def _read(path: Path) -> int:
    try:
        data = json.loads(path.read_bytes())
        return int(data["controllerEpoch"])
    except FileNotFoundError:
        return -1
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{path} is not readable: {error}") from error
