"""Credentials of an S3 store: their sources in order, their refresh, and messages."""

import itertools
import threading
from collections.abc import Mapping
from dataclasses import replace

import pytest

from tidemark.tier.stores.aws_identity import CredentialsMissing, StsAccess, ambient_credentials
from tidemark.tier.stores.aws_signature import AwsCredentials
from tidemark.tier.stores.config import from_options
from tidemark.tier.stores.s3_config import S3Config
from tidemark.tier.stores.s3_credentials import (
    REFRESH_BEFORE_S,
    RETRY_S,
    CredentialProvider,
    provider_of,
)

HOUR_S = 3600.0
#: No request leaves the machine.
NO_INSTANCE = {"AWS_EC2_METADATA_DISABLED": "true"}


class Source:
    """Source of credentials that live an hour, with a clock and failures on request."""

    def __init__(self) -> None:
        self.now_s = 1e9
        self.lives_s = HOUR_S
        self.fetched = itertools.count(1)
        self.number = 0
        self.problem = ""

    def __call__(self) -> AwsCredentials:
        self.number = next(self.fetched)
        if self.problem:
            raise CredentialsMissing(self.problem)
        return AwsCredentials(
            f"key-{self.number}", "secret", "token", expires_s=self.now_s + self.lives_s
        )

    def provider(self) -> CredentialProvider:
        return CredentialProvider(self, lambda: self.now_s)


def test_credentials_are_fetched_again_before_they_expire() -> None:
    source = Source()
    provider = source.provider()
    assert provider.current() is provider.current()
    source.now_s += HOUR_S - REFRESH_BEFORE_S - 1
    assert provider.current().access_key_id == "key-1"
    source.now_s += 1
    assert provider.current().access_key_id == "key-2"
    # Those of a short life are refreshed in its last quarter.
    source.lives_s = 8.0
    source.now_s += HOUR_S
    assert provider.current().access_key_id == "key-3"
    source.now_s += 5.9
    assert provider.current().access_key_id == "key-3"
    source.now_s += 0.1
    assert provider.current().access_key_id == "key-4"


def test_credentials_stay_in_use_while_their_refresh_fails() -> None:
    source = Source()
    provider = source.provider()
    held = provider.current()
    source.now_s += HOUR_S - 60
    source.problem = "STS is down"
    assert provider.current() == held
    # The next attempt is made after a pause, and not with each request.
    assert (provider.current(), source.number) == (held, 2)
    source.now_s += RETRY_S
    assert (provider.current(), source.number) == (held, 3)
    # Expired ones are not used, and a failure is repeated for a moment.
    source.now_s += 60
    for _ in range(3):
        with pytest.raises(CredentialsMissing, match="STS is down"):
            provider.current()
    assert source.number == 4
    source.problem = ""
    source.now_s += RETRY_S
    assert provider.current().access_key_id == "key-5"


def test_credentials_that_the_store_rejects_are_replaced() -> None:
    source = Source()
    provider = source.provider()
    first = provider.current()
    provider.reject(first)
    second = provider.current()
    assert second.access_key_id == "key-2"
    # A late rejection of the first ones changes nothing.
    provider.reject(first)
    assert provider.current() is second


def test_threads_share_one_refresh() -> None:
    source = Source()
    gate = threading.Event()

    def fetch() -> AwsCredentials:
        gate.wait(5)
        return source()

    provider = CredentialProvider(fetch, lambda: source.now_s)
    found: list[AwsCredentials] = []
    threads = [threading.Thread(target=lambda: found.append(provider.current())) for _ in range(8)]
    for thread in threads:
        thread.start()
    gate.set()
    for thread in threads:
        thread.join()
    assert (len(found), source.number) == (8, 1)


def test_obstore_requests_credentials_again_within_minutes() -> None:
    source = Source()
    received = source.provider().for_obstore()
    assert received["token"] == "token"
    expires_at = received["expires_at"]
    assert expires_at is not None
    # It requests others 300 s before that: a rejected token stays with it for a minute only.
    assert expires_at.timestamp() == source.now_s + 360
    # Configured keys never expire.
    config = S3Config(buckets=("b",), access_key_id="k", secret_access_key="s")
    assert provider_of(config).for_obstore()["expires_at"] is None


def test_configurations_with_one_identity_share_a_provider() -> None:
    config = S3Config(buckets=("b",), access_key_id="k", secret_access_key="s")
    assert provider_of(config) is provider_of(replace(config, buckets=("c",), prefix="p"))
    assert provider_of(config) is not provider_of(replace(config, session_token="t"))


def missing(environment: Mapping[str, str]) -> str:
    with pytest.raises(CredentialsMissing) as caught:
        ambient_credentials(environment, StsAccess("eu-west-1"))
    assert caught.value.reason == "StoreCredentialsMissing"
    return str(caught.value)


def test_message_names_every_source_that_was_tried() -> None:
    assert missing(NO_INSTANCE) == (
        "there are no credentials of AWS (environment: AWS_ACCESS_KEY_ID is not set; web identity: "
        "AWS_WEB_IDENTITY_TOKEN_FILE is not set; container: AWS_CONTAINER_CREDENTIALS_FULL_URI is "
        "not set; instance metadata: AWS_EC2_METADATA_DISABLED is true). Give the process an "
        "identity on AWS, or S3 keys (of a Cluster, in the Secret that credentialsSecretRef "
        "names)"
    )


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/x", "http://10.0.0.1/x", "http://example.test/x", "file:///x"]
)
def test_container_token_is_sent_to_no_other_machine_in_plain_http(url: str) -> None:
    environment = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": url,
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "t",
    }
    assert f"container: {url} is neither https nor an agent on this machine" in missing(environment)


def test_session_token_is_part_of_the_environments_keys() -> None:
    environment = {
        "AWS_ACCESS_KEY_ID": "k",
        "AWS_SECRET_ACCESS_KEY": "s",
        "AWS_SESSION_TOKEN": "t",
    }
    found = ambient_credentials(environment, StsAccess(""))
    assert (found.access_key_id, found.session_token, found.expires_s) == ("k", "t", None)
    config = from_options({"endpoint": "http://s3", "buckets": "abc"}, environment)
    assert isinstance(config, S3Config)
    assert config.keys == AwsCredentials("k", "s", "t")
    for secret in ("'s'", "'t'"):
        assert secret not in repr(config)
        assert secret not in repr(found)
