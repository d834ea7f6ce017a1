"""Servers of other clouds than MinIO: a second S3, Google Cloud Storage, Azure Blob Storage, KMS.

Versity S3 Gateway implements S3 on a directory, with the objects' metadata in extended attributes.
It checks signatures, clocks, bucket policies and conditions. Azurite is Microsoft's emulator. It
checks credentials and conditions. The one of Google Cloud Storage is fake-gcs-server behind a
program of ours (``emulators/gcs``), which adds requests of the XML API that it lacks. The emulators
keep everything in memory. The one of KMS is local-kms behind a program of ours
(``emulators/localkms``), which refuses access keys.
"""

import base64
import contextlib
import datetime as dt
import email.utils
import hashlib
import hmac
import http.client
import json
import os
import secrets
import sys
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from tests.suites.packages import Missing, go_program, npm_folder
from tidemark.tier.stores.aws_signature import AwsCredentials, SignatureScope, signed_headers
from tidemark_devcluster.controlplane.process import ServerProcess
from tidemark_devcluster.ports import HOST, free_port

_EMULATORS = Path(__file__).with_name("emulators")
_START_S = 60.0
_STOP_S = 10.0
#: A version of the API that Azurite has.
_API = "2021-08-06"


@dataclass(frozen=True, slots=True)
class VersityServer:
    """Running Versity S3 Gateway. ``tests.s3.fresh_bucket`` makes its buckets.

    ``accounts``: its file of accounts other than the administrator's.
    """

    endpoint: str
    access_key: str
    secret_key: str = field(repr=False)
    accounts: Path

    def create_account(self) -> dict[str, str]:
        """Return the credentials of a new account without permissions."""
        name, secret = secrets.token_hex(10), secrets.token_hex(20)
        account = {"access": name, "secret": secret, "role": "user"}
        self._write({**self._read(), name: account})
        return {"accessKeyId": name, "secretAccessKey": secret}

    def revoke(self, access_key: str) -> dict[str, Any]:
        """Delete an account, and return what ``restore`` takes."""
        accounts = self._read()
        found = accounts.pop(access_key)
        self._write(accounts)
        return {access_key: found}

    def restore(self, account: dict[str, Any]) -> None:
        """Bring a deleted account back."""
        self._write({**self._read(), **account})

    def _read(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.accounts.read_text("utf-8"))["accessAccounts"]
        return found

    def _write(self, accounts: dict[str, Any]) -> None:
        # The server may read it at any moment.
        fresh = self.accounts.with_name("fresh")
        fresh.write_text(json.dumps({"accessAccounts": accounts}), encoding="utf-8")
        fresh.replace(self.accounts)


@dataclass(frozen=True, slots=True)
class GcsServer:
    """Running emulator of Google Cloud Storage."""

    endpoint: str
    #: JSON of a service account, which the emulator does not check.
    key: str = field(repr=False)

    def fresh(self, buckets: int = 1, *, prefix: str = "tier-") -> dict[str, Any]:
        """Return the ``remoteStorage.gcs`` of fresh buckets, key included.

        ``prefix``: of their names. Buckets that begin with ``ignoring-`` ignore conditions.
        """
        names = [f"{prefix}{uuid.uuid4().hex[:12]}" for _ in range(buckets)]
        for name in names:
            body = json.dumps({"name": name})
            _send(self.endpoint, "POST", "/storage/v1/b?project=p", body)
        gcs = {"endpoint": self.endpoint, "buckets": names, "prefix": "some/prefix"}
        return {**gcs, "serviceAccountKey": self.key}


@dataclass(frozen=True, slots=True)
class AzureServer:
    """Running emulator of Azure Blob Storage with one account."""

    endpoint: str
    account: str
    key: str = field(repr=False)

    def fresh(self, containers: int = 1) -> dict[str, Any]:
        """Return the ``remoteStorage.azure`` of fresh containers, key included."""
        names = [f"tier-{uuid.uuid4().hex[:12]}" for _ in range(containers)]
        for name in names:
            self._create(name)
        azure = {"account": self.account, "endpoint": self.endpoint, "containers": names}
        return {**azure, "prefix": "some/prefix", "credential": self.key}

    def signature(self, container: str, *, permissions: str = "racwdl", hours: float = 1) -> str:
        """Return a shared access signature for a container."""
        expires = dt.datetime.now(dt.UTC) + dt.timedelta(hours=hours)
        expiry = expires.strftime("%Y-%m-%dT%H:%M:%SZ")
        place = f"/blob/{self.account}/{container}"
        # The fields of a service SAS in their order; what is not used is empty.
        lines = [permissions, "", expiry, place, "", "", "", _API, "c", *[""] * 7]
        query = {"sv": _API, "sr": "c", "sp": permissions, "se": expiry}
        return urllib.parse.urlencode({**query, "sig": self._sign("\n".join(lines))})

    def _create(self, container: str) -> None:
        date = email.utils.formatdate(usegmt=True)
        headers = f"x-ms-date:{date}\nx-ms-version:{_API}\n"
        resource = f"/{self.account}/{self.account}/{container}\nrestype:container"
        text = "PUT" + "\n" * 12 + headers + resource
        _send(
            self.endpoint,
            "PUT",
            f"/{self.account}/{container}?restype=container",
            **{
                "x-ms-date": date,
                "x-ms-version": _API,
                "Authorization": f"SharedKey {self.account}:{self._sign(text)}",
            },
        )

    def _sign(self, text: str) -> str:
        digest = hmac.new(base64.b64decode(self.key), text.encode(), hashlib.sha256).digest()
        return base64.b64encode(digest).decode()


@dataclass(frozen=True, slots=True)
class KmsServer:
    """Running implementation of AWS KMS. ``denied``: file with the access keys that it refuses."""

    endpoint: str
    denied: Path

    @property
    def environment(self) -> dict[str, str]:
        """Variables of a process that uses it, with an identity of its own."""
        return {
            "AWS_ENDPOINT_URL_KMS": self.endpoint,
            "AWS_ACCESS_KEY_ID": secrets.token_hex(10),
            "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
        }

    def create_key(self) -> str:
        """Return the ARN of a new key."""
        return str(self.call("CreateKey")["KeyMetadata"]["Arn"])

    def encrypted_key(self, arn: str) -> str:
        """Return what a line of encryption keys has after the id, as the how-to creates it."""
        generated = self.call("GenerateDataKeyWithoutPlaintext", KeyId=arn, KeySpec="AES_256")
        return f"{arn} {generated['CiphertextBlob']}"

    def deny(self, *access_keys: str) -> None:
        """Refuse the requests of some access keys, and no others."""
        self.denied.write_text("\n".join(access_keys), encoding="ascii")

    def call(self, action: str, **fields: Any) -> dict[str, Any]:
        """Return the answer of an action, as an administrator."""
        url, body = f"{self.endpoint}/", json.dumps(fields)
        names = {"content-type": "application/x-amz-json-1.1"}
        signed = signed_headers(
            AwsCredentials("administrator", "secret"),
            SignatureScope(region="eu-central-1", service="kms", now=time.gmtime()),
            "POST",
            url,
            body.encode(),
            {**names, "x-amz-target": f"TrentService.{action}"},
        )
        text = _send(self.endpoint, "POST", "/", body, **signed)
        return dict(json.loads(text)) if text else {}


@contextlib.contextmanager
def running_versity(folder: Path) -> Iterator[VersityServer]:
    """Run Versity S3 Gateway. Raises :class:`~tests.suites.packages.Missing`."""
    data = folder / "data"
    data.mkdir()
    try:
        os.setxattr(data, "user.tidemark", b"1")
    except OSError as error:
        raise Missing(f"{folder} has no extended attributes for objects: {error}") from error
    program = go_program(_EMULATORS / "versitygw")
    port, access_key, secret_key = free_port(0), secrets.token_hex(10), secrets.token_hex(20)
    accounts = folder / "users.json"
    accounts.write_text('{"accessAccounts": {}}', encoding="utf-8")
    command = [str(program), "-address", f"{HOST}:{port}"]
    command += ["-accounts", str(folder), "-data", str(data)]
    keys = {"ROOT_ACCESS_KEY_ID": access_key, "ROOT_SECRET_ACCESS_KEY": secret_key}
    with _running("versitygw", command, folder, port, keys) as endpoint:
        yield VersityServer(endpoint, access_key, secret_key, accounts)


@contextlib.contextmanager
def running_gcs(folder: Path) -> Iterator[GcsServer]:
    """Run the emulator of Google Cloud Storage. Raises :class:`~tests.suites.packages.Missing`."""
    program = go_program(_EMULATORS / "gcs")
    port = free_port(0)
    with _running("gcs", [str(program), "-address", f"{HOST}:{port}"], folder, port) as endpoint:
        yield GcsServer(endpoint, service_account_key())


@contextlib.contextmanager
def running_kms(folder: Path) -> Iterator[KmsServer]:
    """Run an implementation of AWS KMS. Raises :class:`~tests.suites.packages.Missing`."""
    program = go_program(_EMULATORS / "localkms")
    port, denied = free_port(0), folder / "denied"
    denied.touch()
    command = [str(program), "-address", f"{HOST}:{port}"]
    command += ["-data", str(folder / "keys"), "-denied", str(denied)]
    with _running("localkms", command, folder, port) as endpoint:
        yield KmsServer(endpoint, denied)


@contextlib.contextmanager
def running_azurite(folder: Path) -> Iterator[AzureServer]:
    """Run Azurite's blob service. Raises :class:`~tests.suites.packages.Missing`."""
    package = npm_folder(_EMULATORS / "azurite") / "node_modules" / "azurite"
    account, key = "tidemarktest", base64.b64encode(secrets.token_bytes(64)).decode()
    port = free_port(0)
    command = ["node", str(package / "dist" / "src" / "blob" / "main.js"), "--blobHost", HOST]
    command += ["--blobPort", str(port), "--inMemoryPersistence", "--silent", "--disableTelemetry"]
    # Newer clients name newer versions of the API.
    command += ["--skipApiVersionCheck"]
    accounts = {"AZURITE_ACCOUNTS": f"{account}:{key}"}
    with _running("azurite", command, folder, port, accounts) as endpoint:
        yield AzureServer(endpoint, account, key)


def service_account_key() -> str:
    """Return the JSON of a service account with a fresh key."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    account = {"type": "service_account", "client_email": "tier@project.iam", "private_key_id": "1"}
    return json.dumps({**account, "private_key": pem.decode()})


@contextlib.contextmanager
def _running(
    name: str,
    command: list[str],
    folder: Path,
    port: int,
    environ: dict[str, str] | None = None,
) -> Iterator[str]:
    """Run a server until the context ends, and return its address."""
    endpoint = f"http://{HOST}:{port}"
    # The supervisor ends the server if this process is killed.
    supervised = [sys.executable, "-m", "tidemark_devcluster.controlplane.supervisor", *command]
    process = ServerProcess.spawn(
        name,
        supervised,
        errors=folder / "log" / f"{name}.log",
        detached=False,
        environ={**os.environ, **(environ or {})},
    )
    process.await_ready(lambda: _answers(port), timeout_s=_START_S)
    try:
        yield endpoint
    finally:
        process.stop(timeout_s=_STOP_S)


def _answers(port: int) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("GET", "/storage/v1/b?project=p")
        connection.getresponse().read()
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
    return True


def _send(endpoint: str, method: str, target: str, body: str = "", **headers: str) -> str:
    connection = http.client.HTTPConnection(urllib.parse.urlsplit(endpoint).netloc, timeout=10)
    try:
        connection.request(method, target, body=body, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        assert answer.status < 300, f"{answer.status} for {method} {target}: {text}"
        return text
    finally:
        connection.close()
