"""Configuration of remote stores: its JSON, its location, and invalid values."""

import json
from pathlib import Path

import pytest

from tidemark.tier.open import open_tier
from tidemark.tier.stores.azure_config import AzureConfig
from tidemark.tier.stores.config import (
    KINDS,
    FilesystemConfig,
    ensure_place,
    from_json,
    from_options,
    location_of,
    moved,
    open_stores,
    parse,
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


GCS = {
    "endpoint": "http://127.0.0.1:9000",
    "buckets": ["one", "two_2"],
    "prefix": "a/b",
    "serviceAccountKey": '{"client_email": "a", "private_key": "hidden", "private_key_id": "c"}',
}
AZURE = {
    "account": "acc",
    "endpoint": "http://127.0.0.1:9000",
    "containers": ["one", "two-2"],
    "prefix": "a/b",
    "credential": "aGlkZGVu",
}
EVERY_KIND = [{"filesystem": {"path": "/srv/tier"}}, {"s3": S3}, {"gcs": GCS}, {"azure": AZURE}]
MORE_OF_S3: list[dict[str, object]] = [
    {"s3": {**S3, "sessionToken": "token"}},
    {"s3": {n: v for n, v in S3.items() if not n.endswith(("Id", "Key"))} | SETTINGS},
]
SIGNATURE = "sv=2021-08-06&sig=hidden"
EITHER = "either filesystem or s3 or gcs or azure"


class TestConfig:
    @pytest.mark.parametrize("sections", [*EVERY_KIND, *MORE_OF_S3], ids=str)
    def test_every_kind_round_trips(self, sections: dict[str, object]) -> None:
        assert json.loads(to_json(from_json(json.dumps(sections)))) == sections

    def test_an_empty_text_of_keys_is_refused(self) -> None:
        """A Secret is named, so segments must not be stored in the clear."""
        sections = {"filesystem": {"path": "/srv/tier", "encryptionKeys": "# later"}}
        with pytest.raises(InvalidConfig, match="encryptionKeys has no key"):
            parse(sections)

    def test_secrets_are_not_shown(self) -> None:
        # Configurations appear in log lines and tracebacks.
        signed = {"azure": {**AZURE, "credential": SIGNATURE}}
        temporary = {"s3": {**S3, "sessionToken": "hidden"}}
        for sections in (*EVERY_KIND, signed, temporary):
            shown = repr(from_json(json.dumps(sections)))
            assert not [secret for secret in ("hidden", "aGlkZGVu") if secret in shown]

    @pytest.mark.parametrize(
        "section",
        [
            {"gcs": {**GCS, "serviceAccountKey": "hidden"}},
            {"azure": {**AZURE, "credential": "hidden!"}},
        ],
        ids=str,
    )
    def test_refused_secrets_are_not_shown(self, section: dict[str, object]) -> None:
        with pytest.raises(InvalidConfig) as caught:
            from_json(json.dumps(section))
        assert "hidden" not in str(caught.value)

    @pytest.mark.parametrize(
        ("kind", "endpoint"),
        [
            ("gcs", "https://storage.evil.example"),
            ("gcs", "http://storage.googleapis.com"),
            ("gcs", "https://googleapis.com.evil.example"),
            ("azure", "https://acc.blob.evil.example"),
            ("azure", "http://acc.blob.core.windows.net"),
        ],
    )
    def test_own_identity_is_sent_to_the_cloud_only(self, kind: str, endpoint: str) -> None:
        fields = {**(GCS if kind == "gcs" else AZURE), "endpoint": endpoint}
        parse({kind: fields})
        for name in KINDS[kind].credential_names:
            del fields[name]
        with pytest.raises(InvalidConfig, match="gets no token"):
            parse({kind: fields})

    @pytest.mark.parametrize(
        ("endpoint", "address"),
        [
            ("", "https://acc.blob.core.windows.net"),
            ("https://acc.blob.core.chinacloudapi.cn/", "https://acc.blob.core.chinacloudapi.cn"),
            ("http://127.0.0.1:10000", "http://127.0.0.1:10000/acc"),
        ],
    )
    def test_azure_address_names_the_account(self, endpoint: str, address: str) -> None:
        config = parse({"azure": {**AZURE, "endpoint": endpoint}})
        assert isinstance(config, AzureConfig)
        assert config.address == address

    @pytest.mark.parametrize(
        ("given", "environment", "secret"),
        [
            ({"storage": "gcs", "buckets": "abc"}, {}, ""),
            (
                {"storage": "gcs", "buckets": "abc"},
                {"GOOGLE_SERVICE_ACCOUNT_KEY": GCS["serviceAccountKey"]},
                GCS["serviceAccountKey"],
            ),
            ({"storage": "azure", "account": "acc", "containers": "abc"}, {}, ""),
            (
                {"storage": "azure", "account": "acc", "containers": "abc"},
                {"AZURE_STORAGE_SAS_TOKEN": SIGNATURE},
                SIGNATURE,
            ),
            (
                {"storage": "azure", "account": "acc", "containers": "abc", "credential": "YQ=="},
                {"AZURE_STORAGE_ACCOUNT_KEY": "Yg=="},
                "YQ==",
            ),
        ],
    )
    def test_options_name_a_kind(
        self, given: dict[str, str], environment: dict[str, str], secret: str
    ) -> None:
        config = from_options(given, environment)
        assert config.kind == given["storage"]
        assert secret in config.fields().values()

    def test_unknown_kind_of_options_is_refused(self) -> None:
        with pytest.raises(InvalidConfig, match="'gs': name one of filesystem, s3, gcs, azure"):
            from_options({"storage": "gs"}, {})
        with pytest.raises(InvalidConfig, match="'containers' is missing"):
            from_options({"storage": "azure", "account": "acc"}, {})

    def test_aws_needs_no_endpoint(self) -> None:
        fields = {key: S3[key] for key in ("buckets", "accessKeyId", "secretAccessKey")}
        s3 = from_json(json.dumps({"s3": fields}))
        assert isinstance(s3, S3Config)
        assert (s3.endpoint, s3.region, s3.prefix) == ("", "us-east-1", "")

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ("{", "not JSON"),
            ([], EITHER),
            ({}, EITHER),
            ({"filesystem": {"path": "/a"}, "s3": S3}, EITHER),
            ({"gcs": {**GCS, "buckets": ["UPPER"]}}, "is no name of a bucket"),
            ({"gcs": {**GCS, "buckets": []}}, r"gcs\.buckets must name at least one bucket"),
            ({"gcs": {**GCS, "prefix": "a/../b"}}, r"gcs\.prefix must not contain"),
            ({"gcs": {**GCS, "endpoint": "host"}}, r"gcs\.endpoint must be http://host:port"),
            ({"gcs": {**GCS, "serviceAccountKey": "{"}}, "must be the JSON of a service account"),
            ({"gcs": {**GCS, "serviceAccountKey": "{}"}}, "it has no client_email"),
            ({"azure": {**AZURE, "account": "my-account"}}, "is no name of a storage account"),
            ({"azure": {**AZURE, "containers": ["a--b"]}}, "is no name of a container"),
            ({"azure": {**AZURE, "containers": ["a" * 64]}}, "is no name of a container"),
            ({"azure": {**AZURE, "containers": ["one", "one"]}}, "names a container twice"),
            ({"azure": {**AZURE, "credential": "x y"}}, "must be the key of the account"),
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
        names = [tuple(open_stores(parse(sections))) for sections in EVERY_KIND]
        assert names == [("",), ("one", "two"), ("one", "two_2"), ("one", "two-2")]

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
