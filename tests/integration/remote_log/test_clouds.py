"""A broker copies segments to Google Cloud Storage and to Azure, reads them and deletes them."""

from typing import Any

import pytest

from tests.clouds import AzureServer, GcsServer
from tests.integration.remote_log.conftest import MakeHost
from tests.integration.remote_log.test_store_faults import all_is_well, copied_before
from tidemark.tiering import DisablePolicy, TieringState


class CloudTests:
    """A subclass has the fixture ``store``."""

    async def test_segments_are_copied_read_and_deleted(
        self, make_host: MakeHost, store: dict[str, Any]
    ) -> None:
        host = make_host()
        host.store = store
        await copied_before(host)
        await host.produce(300)
        # Reads what local retention has deleted, and looks for orphans.
        await all_is_well(host, 600)
        await host.apply(
            tiering_state=int(TieringState.DISABLING), tiered_epoch=1, disable_policy=1
        )
        await host.acknowledged(1, DisablePolicy.DELETE)
        await host.until(lambda: not host.objects())

    async def test_missing_bucket_is_reported_and_recovers(
        self, make_host: MakeHost, store: dict[str, Any]
    ) -> None:
        ((kind, fields),) = store.items()
        names = "containers" if kind == "azure" else "buckets"
        host = make_host()
        host.store = {kind: {**fields, names: ["no-such-bucket"]}}
        await host.apply()
        await host.until(lambda: "BucketMissing" in host.remote.status().error)
        host.store = store
        await host.apply()
        await host.until(lambda: host.remote.status().error == "")


class TestBrokerOnAzure(CloudTests):
    @pytest.fixture
    def store(self, azurite: AzureServer) -> dict[str, Any]:
        return {"azure": azurite.fresh()}


class TestBrokerOnGcs(CloudTests):
    @pytest.fixture
    def store(self, gcs: GcsServer) -> dict[str, Any]:
        return {"gcs": gcs.fresh()}
