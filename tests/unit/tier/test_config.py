"""Configuration of remote stores: its JSON, its location, and invalid values."""

import json
from pathlib import Path

import pytest

from tidemark.tier.open import open_tier
from tidemark.tier.stores.config import (
    KINDS,
    FilesystemConfig,
    ensure_place,
    from_json,
    location_of,
    moved,
    open_stores,
    to_json,
)
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.s3_config import S3Config

S3 = {
    "endpoint": "http://127.0.0.1:9000",
    "region": "eu-west-1",
    "buckets": ["one", "two"],
    "prefix": "a/b",
    "accessKeyId": "key",
    "secretAccessKey": "hidden",
}
SETTINGS = {
    "roleArn": "arn:aws:iam::123456789012:role/tier",
    "encryption": "SSE-KMS",
    "kmsKeyId": "key",
    "storageClass": "STANDARD_IA",
    "addressing": "virtualHost",
}


class TestConfig:
    def test_both_kinds_round_trip(self) -> None:
        keyless = {name: value for name, value in S3.items() if not name.endswith(("Id", "Key"))}
        for config in (
            {"s3": S3},
            {"s3": {**S3, "sessionToken": "token"}},
            {"s3": {**keyless, **SETTINGS}},
            {"filesystem": {"path": "/srv/tier"}},
        ):
            assert json.loads(to_json(from_json(json.dumps(config)))) == config

    def test_secrets_are_not_shown(self) -> None:
        # Configurations appear in log lines and tracebacks.
        config = from_json(json.dumps({"s3": {**S3, "sessionToken": "hidden"}}))
        assert "hidden" not in repr(config)

    def test_aws_needs_no_endpoint(self) -> None:
        fields = {key: S3[key] for key in ("buckets", "accessKeyId", "secretAccessKey")}
        s3 = from_json(json.dumps({"s3": fields}))
        assert isinstance(s3, S3Config)
        assert (s3.endpoint, s3.region, s3.prefix) == ("", "us-east-1", "")

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ("{", "not JSON"),
            ([], "either filesystem or s3"),
            ({}, "either filesystem or s3"),
            ({"filesystem": {"path": "/a"}, "s3": S3}, "either filesystem or s3"),
            ({"filesystem": {"path": "relative"}}, "must be absolute"),
            ({"filesystem": "x"}, "filesystem must be an object"),
            ({"filesystem": {}}, r"filesystem\.path is missing"),
            ({"s3": {**S3, "buckets": []}}, "at least one bucket"),
            ({"s3": {**S3, "buckets": ["one", "one"]}}, "names a bucket twice"),
            # Bucket names become part of URLs, so they must match S3's rules.
            ({"s3": {**S3, "buckets": ["../one"]}}, "is no name of a bucket"),
            ({"s3": {**S3, "buckets": ["a..b"]}}, "is no name of a bucket"),
            ({"s3": {**S3, "buckets": ["127.0.0.1"]}}, "is no name of a bucket"),
            ({"s3": {**S3, "prefix": "a/../b"}}, "must not contain"),
            ({"s3": {**S3, "endpoint": "host:9000"}}, "must be http://host:port"),
            ({"s3": {**S3, "accessKeyId": ""}}, r"s3\.accessKeyId is missing"),
            ({"s3": {**S3, "region": 5}}, r"s3\.region must be a text"),
            # The region becomes part of a host name.
            ({"s3": {**S3, "region": "x.example/"}}, r"s3\.region must be letters"),
            ({"s3": {**S3, "roleArn": "tier"}}, r"s3\.roleArn must be the ARN of a role"),
            ({"s3": {**S3, "encryption": "AES"}}, r"s3\.encryption must be SSE-S3 or SSE-KMS"),
            ({"s3": {**S3, "kmsKeyId": "k"}}, r"s3\.kmsKeyId needs s3\.encryption SSE-KMS"),
            ({"s3": {**S3, "storageClass": "GLACIER"}}, "cannot be read at once"),
            ({"s3": {**S3, "addressing": "host"}}, "must be path or virtualHost"),
            ({"s3": {"buckets": ["one"], "sessionToken": "t"}}, r"s3\.accessKeyId is missing"),
        ],
    )
    def test_invalid_configurations_are_rejected(self, fields: object, message: str) -> None:
        text = fields if isinstance(fields, str) else json.dumps(fields)
        with pytest.raises(InvalidConfig, match=message):
            from_json(text)

    def test_a_bucket_is_in_the_path_or_in_the_host(self) -> None:
        def address(**fields: str) -> tuple[str, str]:
            return S3Config(buckets=("one",), **fields).address("one")

        assert address(endpoint="http://s3:9000/") == ("http://s3:9000", "/one")
        host = {"endpoint": "https://s3.test", "addressing": "virtualHost"}
        assert address(**host) == ("https://one.s3.test", "")
        assert address(region="eu-west-1") == ("https://one.s3.eu-west-1.amazonaws.com", "")
        assert address(region="cn-north-1", addressing="path") == (
            "https://s3.cn-north-1.amazonaws.com.cn",
            "/one",
        )
        # Checks of an endpoint are made of the hosts that requests are sent to.
        (endpoint,) = S3Config(buckets=("one",), **host).endpoints()
        assert endpoint.host == "one.s3.test"

    def test_opening_a_tier_makes_no_request(self) -> None:
        # Nothing listens at this endpoint.
        tier = open_tier(from_json(json.dumps({"s3": S3})))
        assert tier.store.describe() == "bucket one at http://127.0.0.1:9000, prefix a/b"

    def test_every_kind_opens_a_store_for_each_bucket(self) -> None:
        for text in (json.dumps({"s3": S3}), json.dumps({"filesystem": {"path": "/srv/tier"}})):
            config = from_json(text)
            names = tuple(open_stores(config))
            assert names == (config.buckets if isinstance(config, S3Config) else ("",))

    def test_a_missing_directory_is_never_created(self, tmp_path: Path) -> None:
        """A missing directory is usually an unmounted volume."""
        missing = tmp_path / "missing"
        ensure_place(FilesystemConfig(missing), create=True, in_use=False)
        assert not missing.exists()

    def test_a_location_has_no_credentials(self) -> None:
        for kind in KINDS.values():
            fields = dict.fromkeys((*kind.location_names, *kind.credential_names), "x")
            place = location_of({kind.kind: fields})
            assert place == {kind.kind: dict.fromkeys(kind.location_names, "x")}
            # A change of credentials alone is not a move of the store.
            assert moved(place, place) == ""
