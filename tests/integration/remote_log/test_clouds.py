"""A broker copies segments to each kind of store, reads them and deletes them."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.clouds import AzureServer, GcsServer, VersityServer
from tests.forward_proxy import Deviation, Forwarded, ForwardProxy
from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.test_store_faults import all_is_well, copied_before
from tests.integration.remote_log.test_tier_exits import until_reported
from tests.integration.remote_log.tiered_host import TieredHost
from tests.s3 import administrator, fresh_bucket, only_without
from tidemark.tier.stores import bucket


class CloudTests:
    """A subclass has the fixture ``store``, and the answer of its store to a wrong clock."""

    wrong_clock = 403, "<Error><Code>RequestTimeTooSkewed</Code></Error>"

    @pytest.fixture
    def proxy(self, store: dict[str, Any]) -> Iterator[ForwardProxy]:
        """Yield a way to the store on which faults happen."""
        ((_, fields),) = store.items()
        with ForwardProxy(urlsplit(fields["endpoint"]).netloc) as made:
            yield made

    @pytest.fixture
    async def host(
        self, store: dict[str, Any], proxy: ForwardProxy, make_host: MakeHost
    ) -> TieredHost:
        """A broker whose store is behind the proxy, which outlives it."""
        ((kind, fields),) = store.items()
        host = make_host()
        host.store = {kind: {**fields, "endpoint": f"http://{proxy.address}"}}
        return host

    async def test_throttled_store_is_reported_and_recovers(
        self, host: TieredHost, proxy: ForwardProxy, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        # One repetition of each request, which is enough here.
        monkeypatch.setattr(bucket, "RETRIES", 1)
        await copied_before(host)
        answer = 429, "<Error><Code>SlowDown</Code></Error>"
        await _is_reported(host, proxy, answer, "StoreThrottled", "limits the rate", "raise")

    async def test_wrong_clock_is_reported_and_recovers(
        self, host: TieredHost, proxy: ForwardProxy
    ) -> None:
        await copied_before(host)
        await _is_reported(host, proxy, self.wrong_clock, "StoreClockSkewed", "correct the clock")

    async def test_answers_that_break_off_lose_and_repeat_nothing(
        self, host: TieredHost, proxy: ForwardProxy
    ) -> None:
        await copied_before(host)
        seen = len(proxy.requests)

        def deviate(request: Forwarded) -> Deviation | None:
            # Every second read breaks off in its body, every third write has no answer.
            number = len(proxy.requests)
            if request.method == "GET":
                return Deviation(body_bytes=100) if number % 2 else None
            return Deviation(is_lost=True) if number % 3 == 0 else None

        proxy.deviate = deviate
        await host.produce(300)
        await host.until(lambda: len(proxy.requests) > seen + 40, 30)
        proxy.deviate = lambda _: None
        await all_is_well(host, 600)


async def _is_reported(
    host: TieredHost, proxy: ForwardProxy, answer: tuple[int, str], reason: str, *words: str
) -> None:
    """Let the store answer only this, until the partition reports it; then it recovers."""
    proxy.deviate = lambda _: Deviation(answer=answer)
    await host.produce(300)
    await until_reported(host, reason, *words)
    proxy.deviate = lambda _: None
    await all_is_well(host, 600)


class TestBrokerOnAzure(CloudTests):
    wrong_clock = (
        403,
        (
            "<Error><Code>AuthenticationFailed</Code><AuthenticationErrorDetail>"
            "Request date header too old: 'x'</AuthenticationErrorDetail></Error>"
        ),
    )

    @pytest.fixture
    def store(self, azurite: AzureServer) -> dict[str, Any]:
        return {"azure": azurite.fresh()}


class TestBrokerOnGcs(CloudTests):
    wrong_clock = 401, "<Error><Code>AuthenticationRequired</Code>in a reasonable timeframe</Error>"

    @pytest.fixture
    def store(self, gcs: GcsServer) -> dict[str, Any]:
        return {"gcs": gcs.fresh()}


class TestBrokerOnMinio(CloudTests):
    @pytest.fixture
    def store(self, s3: dict[str, Any]) -> dict[str, Any]:
        return {"s3": s3}


class TestBrokerOnSecondS3(CloudTests):
    @pytest.fixture
    def store(self, versity: VersityServer) -> dict[str, Any]:
        return {"s3": fresh_bucket(versity)}

    async def test_policy_that_denies_writes_is_reported_and_recovers(
        self, make_host: MakeHost, store: dict[str, Any], versity: VersityServer
    ) -> None:
        account, (name,) = versity.create_account(), store["s3"]["buckets"]
        client = administrator(store["s3"])

        def allow(*denied: str) -> None:
            policy = only_without(denied, name, account["accessKeyId"])
            client.set_bucket_policy(name, json.dumps(policy))

        allow()
        host = make_host()
        host.store = {"s3": {**store["s3"], **account}}
        await copied_before(host)
        allow("s3:PutObject")
        await host.produce(300)
        await until_reported(host, "StoreAccessDenied", "It refused PUT")
        allow()
        await all_is_well(host, 600)

    async def test_revoked_credentials_are_reported_and_recover(
        self, make_host: MakeHost, store: dict[str, Any], versity: VersityServer
    ) -> None:
        account, (name,) = versity.create_account(), store["s3"]["buckets"]
        policy = only_without((), name, account["accessKeyId"])
        administrator(store["s3"]).set_bucket_policy(name, json.dumps(policy))
        host = make_host()
        host.store = {"s3": {**store["s3"], **account}}
        await copied_before(host)
        revoked = versity.revoke(account["accessKeyId"])
        await host.produce(300)
        await until_reported(host, "StoreAccessDenied", "correct the credentials")
        versity.restore(revoked)
        await all_is_well(host, 600)

    async def test_disabled_key_of_kms_is_reported_and_recovers(
        self, host: TieredHost, proxy: ForwardProxy
    ) -> None:
        await copied_before(host)
        answer = 400, "<Error><Code>KMS.DisabledException</Code></Error>"
        await _is_reported(host, proxy, answer, "StoreAccessDenied", "enable the key")
