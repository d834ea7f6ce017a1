"""A store that fails: a clear reason, a retry with a pause, healing by itself, nothing lost."""

import asyncio
import itertools
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.orphans import no_orphans
from tests.integration.remote_log.tiered_host import TieredHost
from tidemark.metrics import tier_table
from tidemark.tiering import DisablePolicy, TieringState
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
    """The fault is over: every record is there, in one line, and nothing beside them."""
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


async def test_a_change_that_says_nothing_of_the_store_leaves_it_in_use(host: TieredHost) -> None:
    await copied_before(host)
    silent = replace(
        host.states(), full=False, remote_storage="", store_id="", storage_as_before=True
    )
    assert not await host.broker.manager.apply(silent)
    await host.produce(300)
    await all_is_well(host, 600)


async def unavailable(host: TieredHost, reason: str, *words: str) -> None:
    """Status, summary and metric say so; reads are refused, local data is kept."""
    await host.until(lambda: host.remote.status().error.startswith(reason + ": "), 30)
    await host.until(lambda: host.summary.error_reason == reason, 30)
    for text in (host.remote.status().error, host.summary.error_message):
        assert all(word in text for word in words), text
        assert "Traceback" not in text
    assert host.gauge(tier_table.STORE_AVAILABLE) == 0
    assert host.gauge(tier_table.PARTITION_ERRORS) == 1
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
    assert not host.tier_path.exists()
    away.rename(host.tier_path)
    await all_is_well(host, 600)


async def test_a_file_where_the_folder_was(host: TieredHost) -> None:
    await copied_before(host)
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    host.tier_path.write_text("no folder")
    await host.produce(300)
    await unavailable(host, "StoreInputOutputError", "Not a directory")
    host.tier_path.unlink()
    away.rename(host.tier_path)
    await all_is_well(host, 600)


async def test_another_empty_folder_is_not_an_empty_tier(host: TieredHost) -> None:
    """The mount is missing, so its mount point is visible."""
    end = await copied_before(host)
    await host.upkeep.apply_retention()
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    host.tier_path.mkdir()
    await host.produce(300)
    await unavailable(host, "WrongStore", "tidemark.json")
    assert not [p for p in host.tier_path.rglob("*") if p.is_file() and p.name == "tidemark.json"]
    assert host.partition.log.highest_remote_offset == end
    for path in sorted(host.tier_path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    host.tier_path.rmdir()
    away.rename(host.tier_path)
    await all_is_well(host, 600)


async def test_a_data_folder_that_refuses_is_the_partitions_reason(host: TieredHost) -> None:
    """The store as a whole answers: only what goes below ``data`` fails."""
    await copied_before(host)
    data = host.tier_path / "data"
    away = data.rename(host.tier_path / "away")
    data.write_text("no folder")
    await host.produce(300)
    await host.until(lambda: host.summary.error_reason == "StoreNotAFile")
    assert not host.remote.status().error
    first = host.remote._shared.metrics.values()[tier_table.COPY_ERRORS]
    await host.until(lambda: host.remote._shared.metrics.values()[tier_table.COPY_ERRORS] > first)
    data.unlink()
    away.rename(data)
    await all_is_well(host, 600)
    await host.until(lambda: len(host.objects()) == 2 * len(host.live()))


async def test_a_store_that_fails_while_it_is_disabled(host: TieredHost) -> None:
    await copied_before(host)
    away = host.tier_path.rename(host.tier_path.with_name("away"))
    await host.apply(tiering_state=int(TieringState.DISABLING), tiered_epoch=1, disable_policy=1)
    result = await host.disable(1, DisablePolicy.DELETE, timeout_ms=2000)
    assert (result.error_code, "does not exist" in result.message) == (7, True)
    away.rename(host.tier_path)
    await host.until(lambda: not host.remote.status().error)

    await host.acknowledged(1, DisablePolicy.DELETE)
    await host.until(lambda: not host.objects())
    await no_orphans(host)


async def test_a_wrong_secret_key_is_named_and_corrected(
    make_host: MakeHost, s3: dict[str, Any]
) -> None:
    host = make_host()
    host.store = {"s3": s3}
    await copied_before(host)
    wrong = s3 | {"secretAccessKey": "wrong" * 8}
    host.store = {"s3": wrong}
    await host.apply()
    await host.produce(300)
    await unavailable(host, "StoreAccessDenied", "secret", s3["buckets"][0])
    assert "wrongwrong" not in host.remote.status().error + host.summary.error_message
    host.store = {"s3": s3}
    await host.apply()
    await all_is_well(host, 600)


async def test_an_endpoint_that_does_not_answer_and_then_does(
    make_host: MakeHost, s3: dict[str, Any]
) -> None:
    host = make_host()
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        host.store = {"s3": s3 | {"endpoint": f"http://127.0.0.1:{port}"}}
        await host.apply()
        await host.produce(300)
        await unavailable(host, "StoreUnreachable", f"127.0.0.1:{port}", "endpoint")
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
async def test_a_configuration_that_cannot_be_used_is_an_error_in_words(store: str) -> None:
    guard = StoreGuard(
        RemoteSettings(interval_s=0.05, backoff_s=0.05),
        asyncio.get_running_loop().time,
        lambda: None,
        lambda: 0,
    )
    try:
        guard.configure(store, "", "c")
        async with asyncio.timeout(30):
            while "NotVerified" in guard.status().error:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert guard.status().error
        assert guard.status().store_id == ""
    finally:
        await guard.close()


async def test_an_error_that_is_raised_often_does_not_grow(tmp_path: Path) -> None:
    guard = StoreGuard(RemoteSettings(), asyncio.get_running_loop().time, lambda: None, lambda: 0)
    depths = []
    for _ in range(3):
        with pytest.raises(Exception, match="remoteStorage") as caught:
            guard.tier()
        depths.append(len(caught.traceback))
    assert len(set(depths)) == 1


async def test_a_full_purgatory_does_not_stop_the_loop(host: TieredHost) -> None:
    await copied_before(host)
    host.context.purgatory._operations_max = 0
    began = asyncio.get_running_loop().time()
    await host.produce(300)
    await host.copied()
    assert asyncio.get_running_loop().time() - began < 5


async def test_an_unforeseen_error_is_tried_again_too(host: TieredHost) -> None:
    await copied_before(host)
    clock = host.context.wall_ms

    def broken() -> int:
        raise ZeroDivisionError("a clock without ticks")

    host.context.wall_ms = broken
    log_start.delete_records(host.partition, 50)
    await host.until(lambda: host.summary.error_reason == "RemoteLogError")
    assert "a clock without ticks" in host.summary.error_message
    assert host.head().log_start_offset == 0
    host.context.wall_ms = clock
    await host.until(lambda: not host.summary.error_reason)
    assert host.head().log_start_offset == 50
