"""A failing store: a specific reason, retries with a pause, recovery without intervention."""

import asyncio
import itertools
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.aws import forget_providers
from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.orphans import no_orphans
from tests.integration.remote_log.tiered_host import NOW_MS, TieredHost
from tidemark.metrics import tier_table
from tidemark.tiering import DisablePolicy, TieringState
from tidemark_broker.log import flushing
from tidemark_broker.remote_log.settings import RemoteSettings
from tidemark_broker.remote_log.store import StoreGuard
from tidemark_broker.replication.partition import log_start
from tidemark_broker.replication.remote import RemoteUnavailable


async def copied_before(host: TieredHost) -> int:
    await host.apply()
    await host.produce(300)
    await host.copied()
    return host.partition.log.highest_remote_offset


async def all_is_well(host: TieredHost, records: int) -> None:
    """Verify that the fault is over: all records are tiered in one sequence, without orphans."""
    await host.until(lambda: not host.remote.status().error, 30)
    await host.until(lambda: host.gauge(tier_table.STORE_AVAILABLE) == 1)
    await host.copied()
    await host.until(lambda: not host.summary.error_reason)
    ranges = host.live()
    assert ranges[0][0] == 0
    assert all(a[1] + 1 == b[0] for a, b in itertools.pairwise(ranges))
    await host.upkeep.apply_retention()
    end = host.partition.log.local_log_start_offset
    assert await host.read_tier(0, end) == list(range(4, end, 5))
    assert host.partition.next_offset == records
    await no_orphans(host)


async def test_states_without_a_store_keep_the_current_store(host: TieredHost) -> None:
    await copied_before(host)
    # The form in which the controller repeats states without the storage configuration.
    silent = replace(
        host.states(), full=False, remote_storage="", store_id="", storage_as_before=True
    )
    assert not await host.broker.manager.apply(silent)
    await host.produce(300)
    await all_is_well(host, 600)


async def unavailable(host: TieredHost, reason: str, *expected: str) -> None:
    """Verify that status, summary and metric report it, reads are refused, and local data stays."""
    await host.until(lambda: host.remote.status().error.startswith(reason + ": "), 30)
    await host.until(lambda: host.summary.error_reason == reason, 30)
    for text in (host.remote.status().error, host.summary.error_message):
        assert all(word in text for word in expected), text
        assert "Traceback" not in text
    assert host.gauge(tier_table.STORE_AVAILABLE) == 0
    assert host.gauge(tier_table.PARTITION_ERRORS) == 1
    # Local retention must not delete what cannot be copied.
    start = host.partition.log.local_log_start_offset
    await host.upkeep.apply_retention()
    assert host.partition.log.local_log_start_offset == start
    with pytest.raises(RemoteUnavailable):
        await host.remote.read(host.partition, 0, 100, asyncio.get_running_loop().time() + 20)


async def test_folder_that_disappears_and_returns(host: TieredHost) -> None:
    await copied_before(host)
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    await host.produce(300)
    await unavailable(host, "StoreDirectoryMissing", "does not exist", "mount")
    # The broker does not create the folder: it could be a mount point.
    assert not host.tier_path.exists()
    away.rename(host.tier_path)
    await all_is_well(host, 600)


async def test_folder_that_disappears_is_an_error_of_idle_topics(host: TieredHost) -> None:
    """Nothing is produced, and without limits of retention nothing expires."""
    await copied_before(host)
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    await unavailable(host, "StoreDirectoryMissing", "does not exist", "mount")
    away.rename(host.tier_path)
    await all_is_well(host, 300)


async def test_file_in_place_of_the_folder_is_reported_and_recovers(host: TieredHost) -> None:
    await copied_before(host)
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    # ENOTDIR is an error of the store, not of a single object.
    host.tier_path.write_text("no folder")
    await host.produce(300)
    await unavailable(host, "StoreInputOutputError", "Not a directory")
    host.tier_path.unlink()
    away.rename(host.tier_path)
    await all_is_well(host, 600)


async def test_another_empty_folder_is_not_an_empty_tier(host: TieredHost) -> None:
    """The mount is missing, so its mount point is visible."""
    end = await copied_before(host)
    # The records so far are only in the tier that is about to be hidden.
    await host.upkeep.apply_retention()
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    # An empty directory in its place, as a mount point without its mount.
    host.tier_path.mkdir()
    await host.produce(300)
    await unavailable(host, "WrongStore", "tidemark.json")
    # No identity was written: the directory must not become a second, empty tier.
    assert not [p for p in host.tier_path.rglob("*") if p.is_file() and p.name == "tidemark.json"]
    # The tier's end stays known although the store shows nothing.
    assert host.partition.log.highest_remote_offset == end
    for path in sorted(host.tier_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    host.tier_path.rmdir()
    away.rename(host.tier_path)
    await all_is_well(host, 600)


async def test_unusable_data_folder_is_an_error_of_the_partition(host: TieredHost) -> None:
    """The store as a whole answers: only what goes below ``data`` fails."""
    await copied_before(host)
    data = host.tier_path / "data"
    away = data.rename(host.tier_path / "away")
    data.write_text("no folder")
    await host.produce(300)
    await host.until(lambda: host.summary.error_reason == "StoreNotAFile")
    assert not host.remote.status().error
    # At least one further attempt after the reason was reported.
    first = host.remote._shared.metrics.values()[tier_table.COPY_ERRORS]
    await host.until(lambda: host.remote._shared.metrics.values()[tier_table.COPY_ERRORS] > first)
    data.unlink()
    away.rename(data)
    await all_is_well(host, 600)
    await host.until(lambda: len(host.objects()) == 2 * len(host.live()))


async def test_delete_disablement_waits_for_a_failed_store(host: TieredHost) -> None:
    await copied_before(host)
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    await host.apply(tiering_state=int(TieringState.DISABLING), tiered_epoch=1, disable_policy=1)
    # A Delete cannot be acknowledged without the store; error 7 is REQUEST_TIMED_OUT.
    result = await host.disable(1, DisablePolicy.DELETE, timeout_ms=2000)
    assert (result.error_code, "does not exist" in result.message) == (7, True)
    away.rename(host.tier_path)
    await host.until(lambda: not host.remote.status().error)

    await host.acknowledged(1, DisablePolicy.DELETE)
    await host.until(lambda: not host.objects())
    await no_orphans(host)


async def test_wrong_secret_key_is_reported_and_recovers(
    make_host: MakeHost, s3: dict[str, Any]
) -> None:
    host = make_host()
    host.store = {"s3": s3}
    await copied_before(host)
    # The tier is in use when its credentials become invalid.
    wrong = s3 | {"secretAccessKey": "wrong" * 8}
    host.store = {"s3": wrong}
    await host.apply()
    await host.produce(300)
    await unavailable(host, "StoreAccessDenied", "secret", s3["buckets"][0])
    # The secret itself is not in any message.
    assert "wrongwrong" not in host.remote.status().error + host.summary.error_message
    host.store = {"s3": s3}
    await host.apply()
    await all_is_well(host, 600)


async def test_broker_without_an_identity_reports_the_sources_and_recovers(
    make_host: MakeHost, s3: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    forget_providers()
    host = make_host()
    keyless = {name: s3[name] for name in ("endpoint", "region", "buckets", "prefix")}
    host.store = {"s3": keyless}
    await host.apply()
    await host.produce(300)
    await unavailable(
        host, "StoreCredentialsMissing", "AWS_ACCESS_KEY_ID is not set", "web identity", "container"
    )
    # The pod gets an identity, without a change of the Cluster.
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3["accessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3["secretAccessKey"])
    await host.produce(300)
    await all_is_well(host, 600)
    # What the controller sends has no key. The host is closed with the keys of the test.
    assert s3["secretAccessKey"] not in json.dumps(host.store)
    host.store = {"s3": s3}
    await host.apply()
    forget_providers()


async def test_unreachable_endpoint_is_reported_and_recovers(
    make_host: MakeHost, s3: dict[str, Any]
) -> None:
    host = make_host()
    # A bound port that is not listened on refuses connections.
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        host.store = {"s3": s3 | {"endpoint": f"http://127.0.0.1:{port}"}}
        await host.apply()
        await host.produce(300)
        await unavailable(host, "StoreUnreachable", f"127.0.0.1:{port}", "endpoint")
    # The first store was never reached, so another one may take its place.
    host.store = {"s3": s3}
    await host.apply()
    await host.produce(300)
    await all_is_well(host, 600)


@pytest.mark.parametrize(
    "store",
    [
        "{",
        '{"s3": {}}',
        '{"filesystem": {}}',
        '{"s3":{"endpoint":"no url", "buckets":["b"], "accessKeyId":"a", "secretAccessKey":"s"}}',
        '{"filesystem": {"path": "/dev/null/no"}}',
    ],
)
async def test_unusable_configuration_is_reported_as_an_error(store: str) -> None:
    guard = StoreGuard(
        # 50 ms instead of the default, so that the first check ends soon.
        RemoteSettings(interval_s=0.05, backoff_s=0.05),
        asyncio.get_running_loop().time,
        lambda: None,
        lambda: 0,
    )
    try:
        guard.configure(store, "", "c")
        # NotVerified is the state before the first check.
        async with asyncio.timeout(30):
            while "NotVerified" in guard.status().error:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert guard.status().error
        assert guard.status().store_id == ""
    finally:
        await guard.close()


async def test_repeatedly_raised_error_does_not_grow_its_traceback(tmp_path: Path) -> None:
    guard = StoreGuard(RemoteSettings(), asyncio.get_running_loop().time, lambda: None, lambda: 0)
    # One exception object raised repeatedly would collect a traceback entry each time.
    depths = []
    for _ in range(3):
        with pytest.raises(Exception, match="remoteStorage") as caught:
            guard.tier()
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


async def test_full_purgatory_does_not_stop_copies(host: TieredHost) -> None:
    await copied_before(host)
    # No operation may wait, so the loop's own wait is refused.
    host.context.purgatory._operations_max = 0
    began_s = asyncio.get_running_loop().time()
    await host.produce(300)
    await host.copied()
    # Copies are delayed, but not by the retry interval of an error.
    assert asyncio.get_running_loop().time() - began_s < 5


async def test_damaged_local_segment_is_not_copied(host: TieredHost) -> None:
    copied_end = await copied_before(host)
    # Damage a closed segment that waits for the store: a bit of its last record.
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    await host.produce(300)
    log = host.partition.log
    (segment, *_) = log.segment_infos(copied_end + 1)
    path = flushing.segment_files(log, segment.base_offset).log
    sound = path.read_bytes()
    path.write_bytes(sound[:-1] + bytes([sound[-1] ^ 1]))
    away.rename(host.tier_path)
    await host.until(lambda: host.summary.error_reason == "StorageError", 30)
    for expected in (
        f"broker 1: {path}",
        "CRC of the batch",
        "Elect a replica",
        "RecordDeletion before",
    ):
        assert expected in host.summary.error_message
    assert log.highest_remote_offset == copied_end
    # With its bytes back, it is copied like any other.
    path.write_bytes(sound)
    await all_is_well(host, 600)


async def test_damaged_local_indexes_do_not_enter_the_tier(host: TieredHost) -> None:
    copied_end = await copied_before(host)
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    await host.produce(300)
    log = host.partition.log
    flushing.flush(log)
    *closed, _ = log.segment_infos(copied_end + 1)
    for segment in closed:
        # Their ends are right, as when the log was opened.
        path = flushing.segment_files(log, segment.base_offset).log
        index = path.with_suffix(".index")
        data = bytearray(index.read_bytes())
        assert len(data) >= 24
        for position in range(15, len(data) - 8, 8):
            data[position] ^= 1
        index.write_bytes(data)
        path.with_suffix(".timeindex").write_bytes(b"damaged")
    away.rename(host.tier_path)
    await all_is_well(host, 600)
    # Each batch is found alone, by offset and by time.
    end = closed[-1].next_base_offset
    for offset in range(copied_end + 1, end, 5):
        assert await host.read_tier(offset, offset + 5, 100) == [offset + 4]
        found = await host.remote.offset_by_timestamp(host.partition, NOW_MS + offset)
        assert found is not None
        assert found.offset == offset


async def test_unexpected_errors_are_retried(host: TieredHost) -> None:
    await copied_before(host)
    clock = host.context.wall_ms

    # A programming error, of which no code path knows.
    def broken() -> int:
        raise ZeroDivisionError("a clock without ticks")

    host.context.wall_ms = broken
    log_start.delete_records(host.partition, 50)
    await host.until(lambda: host.summary.error_reason == "RemoteLogError")
    assert "a clock without ticks" in host.summary.error_message
    # The failed step changed nothing, and is executed again.
    assert host.head().log_start_offset == 0
    host.context.wall_ms = clock
    await host.until(lambda: not host.summary.error_reason)
    assert host.head().log_start_offset == 50
