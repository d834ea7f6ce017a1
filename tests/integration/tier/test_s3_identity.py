"""S3 without configured keys: each source of temporary credentials, on a MinIO that checks them."""

import json
import os
import ssl
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.aws import ROLE, Issuer, forget_providers, serving
from tests.forward_proxy import ForwardProxy
from tests.s3 import administrator
from tests.security.client_certificates import ClientAuthority
from tidemark.tier.conditional_writes import check_conditional_writes
from tidemark.tier.stores.aws_identity import CredentialsMissing, StsAccess, ambient_credentials
from tidemark.tier.stores.aws_signature import AwsCredentials
from tidemark.tier.stores.config import ensure_place, from_options
from tidemark.tier.stores.objects import StoreUnavailable
from tidemark.tier.stores.s3 import S3Store
from tidemark.tier.stores.s3_config import S3Config
from tidemark.tier.stores.s3_credentials import provider_of
from tidemark_devcluster.controlplane.minio import MinioServer

KMS_KEY = "tier-key"
DOMAIN = "store.test"


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    with serving(made.answer) as made.address:
        yield made


@pytest.fixture(scope="module")
def server(issuer: Issuer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MinioServer]:
    """MinIO that trusts the issuer, has a key of KMS, and serves buckets as host names."""
    extra = {
        **issuer.minio,
        "MINIO_KMS_SECRET_KEY": f"{KMS_KEY}:{'A' * 43}=",
        "MINIO_DOMAIN": DOMAIN,
    }
    with MinioServer.start(tmp_path_factory.mktemp("minio"), extra=extra) as running:
        yield running


@pytest.fixture(autouse=True)
def no_identity(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Begin without any source, and without what earlier tests have fetched."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    forget_providers()
    yield
    forget_providers()


@pytest.fixture
def token_file(issuer: Issuer, tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(issuer.token(lives_s=3600), encoding="ascii")
    return path


@pytest.fixture
def web_identity(
    server: MinioServer, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """The variables that EKS sets in a pod whose ServiceAccount is annotated with a role."""
    variables = {
        "AWS_ROLE_ARN": ROLE,
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(token_file),
        "AWS_ENDPOINT_URL_STS": server.endpoint,
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return variables


def session(web_identity: dict[str, str]) -> AwsCredentials:
    """Return temporary credentials of MinIO."""
    found = ambient_credentials({**os.environ, **web_identity}, StsAccess("us-east-1"))
    assert found.session_token
    assert found.expires_s
    return found


def as_json(credentials: AwsCredentials) -> bytes:
    """Return credentials as agents and metadata services do."""
    assert credentials.expires_s is not None
    expiration = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(credentials.expires_s))
    return json.dumps(
        {
            "Code": "Success",
            "AccessKeyId": credentials.access_key_id,
            "SecretAccessKey": credentials.secret_access_key,
            "Token": credentials.session_token,
            "Expiration": expiration,
        }
    ).encode()


def keyless(server: MinioServer, **fields: Any) -> S3Config:
    """Return a configuration without keys, whose buckets do not exist yet."""
    buckets = [f"tier-{uuid.uuid4().hex[:12]}"]
    return S3Config.parse(
        {"endpoint": server.endpoint, "buckets": buckets, "prefix": "p", **fields}
    )


def use_everything(config: S3Config) -> S3Store:
    """Make each kind of request, by ``obstore`` and by our own client."""
    ensure_place(config, create=True, in_use=False)
    store = S3Store(config)
    check_conditional_writes(store, now_ms=2**50)
    store.put_stream("data/1.log", (bytes(1 << 20) for _ in range(9)))
    assert store.get_range("data/1.log", 0, 10) == bytes(10)
    assert [info.key for info in store.list("")] == ["data/1.log"]
    assert list(store.unfinished()) == []
    store.put("data/2", b"x")
    store.delete("data/2")
    store.delete_many(["data/1.log", "data/3"])
    assert list(store.list("")) == []
    return store


def test_web_identity_serves_all_requests(
    server: MinioServer, web_identity: dict[str, str]
) -> None:
    use_everything(keyless(server))


def test_temporary_keys_of_the_environment_serve_all_requests(
    server: MinioServer, web_identity: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = session(web_identity)
    for name in web_identity:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", found.access_key_id)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", found.secret_access_key)
    monkeypatch.setenv("AWS_SESSION_TOKEN", found.session_token)
    use_everything(keyless(server))
    # The same as configured keys, of a job or of a Secret.
    options = {"endpoint": server.endpoint, "buckets": f"tier-{uuid.uuid4().hex[:12]}"}
    config = from_options(options, os.environ)
    assert isinstance(config, S3Config)
    use_everything(config)


def test_containers_agent_serves_all_requests(
    server: MinioServer,
    web_identity: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """EKS Pod Identity: an agent of the node, and a token that the kubelet replaces."""
    body = as_json(session(web_identity))
    (tmp_path / "agent").write_text("first\n", encoding="ascii")

    def agent(method: str, path: str, headers: Any) -> tuple[int, bytes]:
        known = (method, path, headers["Authorization"]) == ("GET", "/v1/credentials", "first")
        return (200, body) if known else (401, b"unknown token")

    for name in web_identity:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", str(tmp_path / "agent"))
    # The agent is on this machine: no proxy sees the token.
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
    monkeypatch.setenv("NO_PROXY", urllib.parse.urlsplit(server.endpoint).netloc)
    monkeypatch.setenv("NO_PROXY", "127.0.0.0/8")
    with serving(agent) as address:
        monkeypatch.setenv("AWS_CONTAINER_CREDENTIALS_FULL_URI", f"{address}/v1/credentials")
        use_everything(keyless(server))
        forget_providers()
        (tmp_path / "agent").write_text("second", encoding="ascii")
        with pytest.raises(CredentialsMissing, match="/v1/credentials answers 401 unknown token"):
            S3Store(keyless(server)).probe()


def test_instance_metadata_serves_all_requests(
    server: MinioServer, web_identity: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 2: without a session, the service answers nothing."""
    body = as_json(session(web_identity))
    roles = "/latest/meta-data/iam/security-credentials/"

    def metadata(method: str, path: str, headers: Any) -> tuple[int, bytes]:
        if (method, path) == ("PUT", "/latest/api/token"):
            return 200, b"the-session"
        if headers["X-aws-ec2-metadata-token"] != "the-session":
            return 401, b""
        return {roles: (200, b"node\n"), f"{roles}node": (200, body)}.get(path, (404, b""))

    for name in (*web_identity, "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name)
    with serving(metadata) as address:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", address)
        use_everything(keyless(server))


def test_role_is_assumed_with_configured_keys(
    server: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.endpoint)
    keys = {"accessKeyId": server.access_key, "secretAccessKey": server.secret_key}
    config = keyless(server, **keys, roleArn=ROLE)
    use_everything(config)
    assumed = provider_of(config).current()
    assert assumed.access_key_id != server.access_key
    assert assumed.session_token
    # STS's own words are in the message, and the secret is not.
    wrong = keyless(server, accessKeyId="unknown", secretAccessKey="a-secret", roleArn=ROLE)
    with pytest.raises(CredentialsMissing, match=f"{ROLE} cannot be assumed") as caught:
        S3Store(wrong).probe()
    assert "answers 403" in str(caught.value)
    assert "a-secret" not in str(caught.value)


def test_credentials_are_refreshed_during_an_upload(
    server: MinioServer, issuer: Issuer, web_identity: dict[str, str], token_file: Path
) -> None:
    """The credentials live for a fraction of the upload."""
    config = keyless(server)
    use_everything(config)
    forget_providers()
    used: set[str] = set()

    def parts() -> Iterator[bytes]:
        for number in range(6):
            # As the kubelet does, long before the token expires.
            token_file.write_text(issuer.token(lives_s=4), encoding="ascii")
            used.add(provider_of(config).current().access_key_id)
            yield bytes([number]) * (8 << 20)
            time.sleep(2)

    token_file.write_text(issuer.token(lives_s=4), encoding="ascii")
    store = S3Store(config)
    store.put_stream("data/long.log", parts())
    assert store.get_range("data/long.log", 40 << 20, (40 << 20) + 1) == b"\x05"
    assert len(used) >= 3


def test_credentials_that_can_no_longer_be_refreshed_end_an_upload(
    server: MinioServer, issuer: Issuer, web_identity: dict[str, str], token_file: Path
) -> None:
    config = keyless(server)
    use_everything(config)
    forget_providers()

    def parts() -> Iterator[bytes]:
        for _ in range(4):
            yield bytes(8 << 20)
            time.sleep(2)

    token_file.write_text(issuer.token(lives_s=3), encoding="ascii")
    store = S3Store(config)
    with pytest.raises(StoreUnavailable) as caught:
        store.put_stream("data/long.log", parts())
    assert caught.value.reason == "StoreCredentialsMissing", str(caught.value)
    assert "web identity" in str(caught.value)
    # Nothing can be seen, and the upload continues later, with another token.
    token_file.write_text(issuer.token(lives_s=3600), encoding="ascii")
    time.sleep(2.1)
    assert [info.key for info in store.list("")] == []
    store.put_stream("data/long.log", (bytes(8 << 20) for _ in range(2)))


def test_permissions_of_the_session_decide(
    server: MinioServer, issuer: Issuer, web_identity: dict[str, str], token_file: Path
) -> None:
    config = keyless(server)
    use_everything(config)
    forget_providers()
    token_file.write_text(issuer.token(lives_s=3600, policy="readonly"), encoding="ascii")
    with pytest.raises(StoreUnavailable) as caught:
        S3Store(config).put("k", b"x")
    assert caught.value.reason == "StoreAccessDenied"


def stat(server: MinioServer, config: S3Config, key: str) -> Any:
    keys = {"accessKeyId": server.access_key, "secretAccessKey": server.secret_key}
    client = administrator({"endpoint": server.endpoint, **keys})
    return client.stat_object(config.buckets[0], f"p/{key}").metadata


@pytest.mark.parametrize(
    ("fields", "algorithm"),
    [
        ({"encryption": "SSE-S3"}, "AES256"),
        ({"encryption": "SSE-KMS", "kmsKeyId": KMS_KEY}, "aws:kms"),
    ],
    ids=["SSE-S3", "SSE-KMS"],
)
def test_objects_are_encrypted_by_the_store(
    server: MinioServer, web_identity: dict[str, str], fields: dict[str, str], algorithm: str
) -> None:
    config = keyless(server, **fields, storageClass="REDUCED_REDUNDANCY")
    store = use_everything(config)
    store.put("head", b"x")
    store.put_stream("data/small", [b"x"])
    store.put_stream("data/large", (bytes(8 << 20) for _ in range(2)))
    for key in ("head", "data/small", "data/large"):
        found = stat(server, config, key)
        assert found["x-amz-server-side-encryption"] == algorithm, key
        if "kmsKeyId" in fields:
            assert found["x-amz-server-side-encryption-aws-kms-key-id"].endswith(KMS_KEY)
        # Only segments have the configured class.
        assert (found.get("x-amz-storage-class") == "REDUCED_REDUNDANCY") == (key != "head")
    assert store.get("head").data == b"x"


def test_unknown_key_of_kms_is_reported(server: MinioServer, web_identity: dict[str, str]) -> None:
    config = keyless(server, encryption="SSE-KMS", kmsKeyId="absent")
    ensure_place(config, create=True, in_use=False)
    with pytest.raises(StoreUnavailable) as caught:
        S3Store(config).put("k", b"x")
    assert caught.value.reason == "StoreAccessDenied"
    assert "the key of KMS cannot be used: correct kmsKeyId" in str(caught.value)


def test_all_requests_take_the_proxy_and_virtual_hosts(
    server: MinioServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The names of the buckets' hosts are known to the proxy only."""
    keys = {"accessKeyId": server.access_key, "secretAccessKey": server.secret_key}
    fields = {**keys, "endpoint": f"http://{DOMAIN}", "addressing": "virtualHost"}
    with ForwardProxy(urllib.parse.urlsplit(server.endpoint).netloc) as proxy:
        monkeypatch.setenv("HTTP_PROXY", f"http://user:word@{proxy.address}")
        config = keyless(server, **fields)
        use_everything(config)
        host = f"{config.buckets[0]}.{DOMAIN}"
        # By user agent: obstore has one, our own client has none.
        assert {(sent.host, sent.is_obstore) for sent in proxy.requests} == {
            (host, True),
            (host, False),
        }
        assert {sent.authorization for sent in proxy.requests} == {"Basic dXNlcjp3b3Jk"}
        # Without the proxy, the name does not exist.
        monkeypatch.setenv("NO_PROXY", f".{DOMAIN}")
        forget_providers()
        known = len(proxy.requests)
        with pytest.raises(StoreUnavailable, match="does not answer"):
            S3Store(config).probe()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            S3Store(config).delete("k")
        assert len(proxy.requests) == known


def test_stores_own_authority_is_trusted(
    server: MinioServer, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The store and its STS have a certificate that the system does not know."""
    leaf = ClientAuthority("stores").leaf(tmp_path / "tls", "CN=store")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(leaf.certificate, leaf.key)
    upstream = urllib.parse.urlsplit(server.endpoint).netloc
    with ForwardProxy(upstream, context) as front:
        endpoint = f"https://{front.address}"
        monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
        monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(token_file))
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
        # Neither STS nor the store is trusted without the authority.
        with pytest.raises(CredentialsMissing, match="CERTIFICATE_VERIFY_FAILED"):
            S3Store(keyless(server, endpoint=endpoint)).probe()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", server.endpoint)
        forget_providers()
        with pytest.raises(StoreUnavailable, match="does not answer"):
            S3Store(keyless(server, endpoint=endpoint)).probe()
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", endpoint)
        forget_providers()
        # With it, both clients and STS are.
        use_everything(keyless(server, endpoint=endpoint, ca=Path(leaf.trusted).read_text()))
        assert {sent.is_obstore for sent in front.requests} == {True, False}


def missing(environment: dict[str, str]) -> str:
    with pytest.raises(CredentialsMissing) as caught:
        ambient_credentials(environment, StsAccess("eu-west-1"))
    return str(caught.value)


@pytest.fixture
def forbidding() -> Iterator[str]:
    """Address of a service that refuses everybody."""
    body = (
        b"<ErrorResponse><Error><Code>AccessDenied</Code><Message>Not authorized to perform "
        b"sts:AssumeRoleWithWebIdentity</Message></Error></ErrorResponse>"
    )
    with serving(lambda *_: (403, body)) as address:
        yield address


def test_source_that_fails_is_not_replaced_by_a_later_one(forbidding: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("the-token\n", encoding="ascii")
    web = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(token), "AWS_ENDPOINT_URL_STS": forbidding}
    text = missing({**web, "AWS_ROLE_ARN": ROLE, "AWS_EC2_METADATA_SERVICE_ENDPOINT": forbidding})
    assert (
        f"web identity: {forbidding}/ answers 403 AccessDenied: Not authorized to perform "
        f"sts:AssumeRoleWithWebIdentity (AssumeRoleWithWebIdentity, role {ROLE}))" in text
    )
    assert "instance metadata" not in text
    assert "the-token" not in text
    # Half a configuration is a mistake, not another source.
    assert "web identity: AWS_ROLE_ARN is not set)" in missing(
        {**web, "AWS_EC2_METADATA_DISABLED": "true"}
    )
    assert "environment: AWS_SECRET_ACCESS_KEY is not set)" in missing({"AWS_ACCESS_KEY_ID": "k"})
    absent = {**web, "AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": "/absent"}
    assert "the token in /absent cannot be read" in missing(absent)
    instance = {"AWS_EC2_METADATA_SERVICE_ENDPOINT": forbidding}
    assert f"instance metadata: {forbidding}/latest/api/token answers 403" in missing(instance)


def test_answer_that_is_no_credentials_is_reported() -> None:
    with serving(lambda *_: (200, b"{}")) as address:
        text = missing({"AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{address}/c"})
    assert f"container: {address}/c answers without credentials and their expiration" in text
