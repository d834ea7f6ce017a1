"""The store of a broker is not used before its identity is known. A store that does not answer, or
belongs to another cluster, is unavailable and never empty."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from tidemark.tier.metadata.layout import IDENTITY_KEY
from tidemark.tier.stores.objects import (
    ObjectNotFound,
    SegmentUnreadable,
    StoreError,
    StoreUnavailable,
)
from tidemark_broker.remote_log import store
from tidemark_broker.remote_log.settings import RemoteSettings
from tidemark_broker.remote_log.store import StoreGuard

CLUSTER = "cluster-a"


class WatchedGuard:
    """Guard with short check intervals, and a counter of the times it became usable."""

    def __init__(self) -> None:
        self.usable = 0
        settings = RemoteSettings(interval_s=0.02, backoff_s=0.01)
        clock = asyncio.get_running_loop().time
        self.guard = StoreGuard(settings, clock, self._changed, lambda: 0)

    def _changed(self) -> None:
        self.usable += 1

    def configure(self, folder: Path, store_id: str = "", cluster: str = CLUSTER) -> None:
        config = json.dumps({"filesystem": {"path": str(folder)}})
        self.guard.configure(config, store_id, cluster)

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(10):
            while not condition():  # noqa: ASYNC110  the guard checks by itself
                await asyncio.sleep(0.005)

    async def verified(self) -> str:
        await self.until(lambda: bool(self.guard.status().store_id))
        return self.guard.status().store_id

    async def failed(self, reason: str) -> None:
        await self.until(lambda: self.guard.status().error.startswith(f"{reason}: "))
        # Every use must fail with the same reason that the status shows.
        with pytest.raises(StoreUnavailable) as caught:
            self.guard.tier()
        assert caught.value.reason == reason


@pytest.fixture
async def watched(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[WatchedGuard]:
    monkeypatch.setattr(store, "_CHECK_PAUSE_S", 0.005)
    made = WatchedGuard()
    yield made
    await made.guard.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "tier"
    made.mkdir()
    return made


def _identity(folder: Path) -> Path:
    return folder / IDENTITY_KEY


async def test_a_broker_without_a_store_has_no_error(watched: WatchedGuard) -> None:
    assert watched.guard.status().error == ""
    with pytest.raises(StoreUnavailable, match="no remote storage is configured"):
        watched.guard.tier()


async def test_a_store_is_not_used_before_its_identity_is_known(
    watched: WatchedGuard, folder: Path
) -> None:
    watched.configure(folder)
    for use in (watched.guard.tier, lambda: watched.guard.verify(watched.guard.tier())):
        with pytest.raises(StoreUnavailable, match="not verified yet"):
            use()
    store_id = await watched.verified()
    assert json.loads(_identity(folder).read_text())["storeId"] == store_id
    watched.guard.verify(watched.guard.tier())
    assert (watched.usable, watched.guard.status().error) == (1, "")


async def test_an_accepted_identity_is_never_created(watched: WatchedGuard, folder: Path) -> None:
    # An empty directory, for example an unmounted volume, must not become the store of a cluster
    # that has one.
    watched.configure(folder, store_id="the-accepted-one")
    await watched.failed("WrongStore")
    assert not _identity(folder).exists()
    assert watched.usable == 0


async def test_the_store_of_another_cluster_is_rejected(
    watched: WatchedGuard, folder: Path
) -> None:
    watched.configure(folder)
    store_id = await watched.verified()
    watched.configure(folder, store_id, cluster="cluster-b")
    await watched.failed("WrongStore")
    watched.configure(folder, store_id)
    assert await watched.verified() == store_id


async def test_a_missing_store_is_unavailable_until_it_returns(
    watched: WatchedGuard, folder: Path
) -> None:
    watched.configure(folder)
    store_id = await watched.verified()
    away = folder.rename(folder.with_name("away"))
    watched.guard.suspect(ObjectNotFound("missing"))
    await watched.failed("StoreDirectoryMissing")
    # An empty directory in its place is another store.
    folder.mkdir()
    await watched.failed("WrongStore")
    folder.rmdir()
    away.rename(folder)
    await watched.until(lambda: not watched.guard.status().error)
    assert (watched.guard.status().store_id, watched.usable) == (store_id, 2)
    watched.guard.tier()


async def test_an_unreadable_segment_requests_no_check_of_the_store(
    watched: WatchedGuard, folder: Path
) -> None:
    """Consumers retry their reads of it, until the key is there or the broker is upgraded."""
    watched.configure(folder)
    await watched.guard.close()
    wake_up = watched.guard._wake_up
    wake_up.clear()
    watched.guard.suspect(SegmentUnreadable("newer", reason="ObjectVersionUnsupported"))
    await asyncio.sleep(0)
    assert not wake_up.is_set()
    watched.guard.suspect(StoreError("failed"))
    await asyncio.sleep(0)
    assert wake_up.is_set()


async def test_a_replaced_store_is_noticed_while_unused(
    watched: WatchedGuard, folder: Path
) -> None:
    watched.configure(folder)
    await watched.verified()
    fields = json.loads(_identity(folder).read_text())
    # Another volume was mounted at the same path. Only the periodic check can notice it.
    _identity(folder).write_text(json.dumps({**fields, "storeId": "another"}))
    await watched.failed("WrongStore")


async def test_a_repeated_configuration_is_not_verified_again(
    watched: WatchedGuard, folder: Path
) -> None:
    """The controller repeats the configuration with every snapshot, later with the identity that
    was found."""
    watched.configure(folder)
    store_id = await watched.verified()
    tier = watched.guard.tier()
    for _ in range(2):
        watched.configure(folder, store_id)
        assert watched.guard.tier() is tier
    assert watched.usable == 1


async def test_a_removed_configuration_disables_the_store(
    watched: WatchedGuard, folder: Path
) -> None:
    watched.configure(folder)
    await watched.verified()
    # The Cluster no longer has a remote storage.
    watched.guard.configure("", "", CLUSTER)
    assert watched.guard.status().error == ""
    with pytest.raises(StoreUnavailable, match="no remote storage is configured"):
        watched.guard.tier()
