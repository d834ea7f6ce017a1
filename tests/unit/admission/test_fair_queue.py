"""Fair shares of a budget that requests hold for some time."""

import asyncio

from tidemark_broker.admission.fair_share import FairQueue


async def test_bytes_in_service_are_limited_in_first_in_first_out_order() -> None:
    queue, begun, may_end = FairQueue(400), [], asyncio.Event()

    async def request(number: int, size: int) -> None:
        async with queue.admit(size, number % 2):
            begun.append(number)
            await may_end.wait()

    sizes = [90, 100, 100, 100, 20, 90]
    tasks = [asyncio.create_task(request(*item)) for item in enumerate(sizes)]
    await asyncio.sleep(0)
    # 90, 100, 100 and 100 bytes are in service. The fifth one waits.
    assert begun == [0, 1, 2, 3]
    may_end.set()
    await asyncio.gather(*tasks)
    assert begun == [0, 1, 2, 3, 4, 5]
    assert (queue._left, queue._used, queue._waiting) == (400, {}, {})


async def test_a_large_request_delays_only_its_client() -> None:
    """120 such connections of one client once delayed another client's request by 16 s."""
    queue, ended = FairQueue(400), []

    async def request(client: str) -> None:
        async with queue.admit(100, client):
            await asyncio.sleep(0)
        ended.append(client)

    tasks = [asyncio.create_task(request("bad")) for _ in range(120)]
    await asyncio.sleep(0)
    tasks += [asyncio.create_task(request(client)) for client in ("good", "other", "good")]
    await asyncio.gather(*tasks)
    assert max(number for number, client in enumerate(ended) if client != "bad") < 15


async def test_a_cancelled_request_takes_no_share() -> None:
    queue = FairQueue(400)

    async def request() -> None:
        async with queue.admit(100, "client"):
            await asyncio.sleep(60)

    tasks = [asyncio.create_task(request()) for _ in range(6)]
    await asyncio.sleep(0)
    tasks[3].cancel()  # waits
    tasks[0].cancel()  # is in service: its share passes on
    await asyncio.sleep(0)
    tasks[2].cancel()  # is admitted, but has not started
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (queue._left, queue._used, queue._waiting) == (400, {}, {})
    async with asyncio.timeout(5), queue.admit(1, "client"):
        pass
