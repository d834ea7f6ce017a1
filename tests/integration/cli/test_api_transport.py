"""Access to API servers by kubeconfigs, and the age of a Lease by the API server's clock."""

import base64
import datetime as dt
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.integration.cli.api_double import ApiDouble, Json, api_double, write_kubeconfig
from tests.security.client_certificates import ClientAuthority
from tests.unit.test_lean_start import HEAVY, STARTED
from tidemark_cli.inspection.snapshot import read_snapshot
from tidemark_cli.inspection.verdict import findings
from tidemark_kube.client import KubeClient, KubeRequestError, namespace_of
from tidemark_kube.transport import DirectTransport, LibraryTransport, connect

LEASE = "/apis/coordination.k8s.io/v1/namespaces/apps/leases/tidemark-operator"
EXEC = "client.authentication.k8s.io/v1"


@pytest.fixture(autouse=True)
def no_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def api() -> Iterator[ApiDouble]:
    with api_double() as double:
        yield double


def client(path: Path | str, context: str = "") -> KubeClient:
    return KubeClient(Path(path), namespace_of(Path(path), context), context)


def authorization(api: ApiDouble) -> list[str | None]:
    return [headers.get("Authorization") for _, headers in api.requests]


# ------------------------------------------------------------------ the clock


@pytest.mark.parametrize(("offset_s", "is_led"), [(-60, True), (60, True), (None, False)])
def test_age_of_the_lease_is_that_of_the_servers_clock(
    api: ApiDouble, tmp_path: Path, offset_s: int | None, is_led: bool
) -> None:
    """A laptop's clock may be minutes ahead. Without a date, only its own clock is left."""
    offset = dt.timedelta(seconds=offset_s or -60)
    api.clock_offset = None if offset_s is None else offset
    renewed = dt.datetime.now(dt.UTC) + offset
    spec = {"holderIdentity": "operator-0", "leaseDurationSeconds": 10}
    api.objects[LEASE] = {"spec": {**spec, "renewTime": renewed.isoformat()}}
    kube = client(write_kubeconfig(tmp_path / "config", {"server": api.url}))
    snapshot = read_snapshot(kube)
    kube.close()
    reasons = [item.reason for item in findings(snapshot)]
    assert ("NoOperatorLeads" not in reasons) == is_led


def test_clock_of_the_server_continues_between_answers(api: ApiDouble, tmp_path: Path) -> None:
    api.clock_offset = dt.timedelta(hours=1)
    kube = client(write_kubeconfig(tmp_path / "config", {"server": api.url}))
    kube.objects("Topic")
    kube.close()
    first, second = kube.now(), kube.now()
    assert first < second
    assert abs(second - dt.datetime.now(dt.UTC) - api.clock_offset) < dt.timedelta(seconds=5)


# ------------------------------------------------------------------ files and contexts


def test_files_of_kubeconfig_are_merged_and_the_first_one_wins(
    api: ApiDouble, tmp_path: Path
) -> None:
    first = write_kubeconfig(tmp_path / "a", {"server": api.url}, {"token": "one"}, name="one")
    # The second file repeats a name of the first one, and adds a context.
    second = write_kubeconfig(tmp_path / "b", {"server": "http://wrong"}, name="one")
    more = write_kubeconfig(tmp_path / "c", {"server": api.url}, name="two", namespace="other")
    files = os.pathsep.join(map(str, (first, second, tmp_path / "missing", more)))
    assert namespace_of(Path(files)) == "apps"
    assert namespace_of(Path(files), "two") == "other"
    kube = client(files)
    kube.objects("Topic")
    kube.close()
    assert authorization(api) == ["Bearer one"]


def test_kubeconfig_in_yaml_is_read(api: ApiDouble, tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path / "config", {"server": api.url + "/"}, {"token": "t"})
    path.write_text(yaml.safe_dump(json.loads(path.read_text())))
    kube = client(path)
    kube.objects("Topic")
    kube.close()
    assert authorization(api) == ["Bearer t"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[1]", "it is no kubeconfig"),
        ("a: [", "cannot be used"),
        ("{}", "has no current context: add --context NAME"),
        ('{"current-context": "c"}', "has no context 'c'"),
        (None, "the file does not exist"),
    ],
)
def test_an_unusable_kubeconfig_is_named(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "config"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ValueError, match=message):
        namespace_of(path)
    with pytest.raises(KubeRequestError, match=message) as caught:
        KubeClient(path, "apps")
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("command", ["status", "check", "why", "report"])
def test_a_command_reads_a_cluster_without_the_package(
    api: ApiDouble, tmp_path: Path, command: str
) -> None:
    """The package takes longer to import than the command takes for everything else."""
    path = write_kubeconfig(tmp_path / "config", {"server": api.url}, {"token": "t"})
    started = (sys.executable, "-c", STARTED, command, "--kubeconfig", str(path))
    finished = subprocess.run(
        started, capture_output=True, text=True, timeout=60, check=False, cwd=tmp_path
    )
    assert api.requests, finished.stderr
    imported = set(finished.stderr.split())
    assert "urllib3" in imported
    assert imported & HEAVY == {"urllib3"}


# ------------------------------------------------------------------ credentials


def test_a_token_file_is_read_again_for_each_request(api: ApiDouble, tmp_path: Path) -> None:
    """The path is relative to the kubeconfig. Tokens of service accounts are replaced hourly."""
    token = tmp_path / "token"
    token.write_text("first\n")
    path = write_kubeconfig(tmp_path / "config", {"server": api.url}, {"tokenFile": "token"})
    kube = client(path)
    kube.objects("Topic")
    token.write_text("second\n")
    kube.objects("Topic")
    kube.close()
    assert authorization(api) == ["Bearer first", "Bearer second"]


def test_user_and_password_are_basic_authentication(api: ApiDouble, tmp_path: Path) -> None:
    user = {"username": "ann", "password": "secret"}
    kube = client(write_kubeconfig(tmp_path / "config", {"server": api.url}, user))
    kube.objects("Topic")
    kube.close()
    assert authorization(api) == ["Basic " + base64.b64encode(b"ann:secret").decode()]


def plugin(folder: Path, status: Json, *, lines: str = "") -> Json:
    """Write a credential plugin that counts its runs; return the user that has it."""
    # The plugin writes the request that it gets and a file for each run, and prints its answer.
    path = folder / "bin" / "plugin"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!{sys.executable}\n"
        "import json, os, pathlib, sys\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "info = json.loads(os.environ['KUBERNETES_EXEC_INFO'])\n"
        "(folder / 'info').write_text(json.dumps(info))\n"
        "run = len(list(folder.glob('run-*')))\n"
        "(folder / f'run-{run}').touch()\n"
        f"status = json.loads({json.dumps(json.dumps(status))})\n"
        "if 'token' in status: status['token'] += f'-{run}-' + os.environ['SUFFIX']\n"
        f"{lines}\n"
        "print(json.dumps({'apiVersion': info['apiVersion'], 'kind': 'ExecCredential',"
        " 'status': status}))\n"
    )
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    # The command is relative to the folder of the kubeconfig.
    return {
        "exec": {
            "apiVersion": EXEC,
            "command": "./bin/plugin",
            "args": [str(folder)],
            "env": [{"name": "SUFFIX", "value": "x"}],
            "interactiveMode": "Never",
            "provideClusterInfo": True,
        }
    }


def test_a_plugins_token_is_kept_until_the_server_refuses_it(
    api: ApiDouble, tmp_path: Path
) -> None:
    path = write_kubeconfig(
        tmp_path / "config", {"server": api.url}, plugin(tmp_path, {"token": "t"})
    )
    kube = client(path)
    kube.objects("Topic")
    kube.objects("Topic")
    api.refused.add("Bearer t-0-x")
    kube.objects("Topic")
    kube.close()
    assert authorization(api) == ["Bearer t-0-x"] * 3 + ["Bearer t-1-x"]
    info = json.loads((tmp_path / "info").read_text())
    assert info["spec"] == {"interactive": False, "cluster": {"server": api.url}}


def test_a_plugins_token_is_renewed_before_it_expires(api: ApiDouble, tmp_path: Path) -> None:
    soon = (dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)).isoformat()
    user = plugin(tmp_path, {"token": "t", "expirationTimestamp": soon})
    kube = client(write_kubeconfig(tmp_path / "config", {"server": api.url}, user))
    kube.objects("Topic")
    kube.objects("Topic")
    kube.close()
    assert authorization(api) == ["Bearer t-0-x", "Bearer t-1-x"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"command": "missing-plugin", "installHint": "run: install"}, "not installed: run: inst"),
        ({"apiVersion": "v0"}, "apiVersion v0 is not supported"),
        ({"interactiveMode": "Always"}, "needs a terminal"),
        ({"args": ["/nowhere"]}, "failed with exit status 1"),
        ({"command": "true"}, "printed no ExecCredential"),
    ],
)
def test_a_plugin_that_fails_is_named(
    api: ApiDouble, tmp_path: Path, change: Json, message: str
) -> None:
    user = plugin(tmp_path, {"token": "t"})
    path = write_kubeconfig(
        tmp_path / "config", {"server": api.url}, {"exec": {**user["exec"], **change}}
    )
    kube = client(path)
    with pytest.raises(KubeRequestError, match=message) as caught:
        kube.objects("Topic")
    assert caught.value.status == 0
    assert api.requests == []


# ------------------------------------------------------------------ TLS


def test_client_certificates_and_the_clusters_authority(tmp_path: Path) -> None:
    """Certificates come from files, from data, and from a plugin."""
    authority = ClientAuthority()
    # Server and client have certificates of the same authority.
    server = authority.leaf(tmp_path / "server", "CN=server")
    ann = authority.leaf(tmp_path / "ann", "CN=ann")
    crt, key = Path(ann.certificate).read_bytes(), Path(ann.key).read_bytes()
    as_files = {"client-certificate": "ann/tls.crt", "client-key": ann.key}
    as_data = {
        "client-certificate-data": base64.b64encode(crt).decode(),
        "client-key-data": base64.b64encode(key).decode(),
    }
    # A plugin prints PEM, where a kubeconfig has base64.
    printed = {"clientCertificateData": crt.decode(), "clientKeyData": key.decode()}
    trusted = {"certificate-authority": "server/ca.crt"}
    pem = base64.b64encode(Path(server.trusted).read_bytes()).decode()
    # The last user has no certificate, and does not verify the server's.
    with api_double(server) as api:
        for number, (cluster, user) in enumerate(
            [
                (trusted, as_files),
                ({"certificate-authority-data": pem}, as_data),
                (trusted, plugin(tmp_path, printed)),
                ({"insecure-skip-tls-verify": True}, {}),
            ]
        ):
            path = write_kubeconfig(
                tmp_path / f"config-{number}", {"server": api.url, **cluster}, user
            )
            kube = client(path)
            kube.objects("Topic")
            kube.close()
        assert ["ann" in subject for subject in api.clients] == [True, True, True, False]


@pytest.mark.parametrize(
    ("cluster", "cause"),
    [
        ({}, "certificate verify failed"),
        ({"certificate-authority": "server/ca.crt", "tls-server-name": "other"}, "other"),
        ({"certificate-authority": "server/tls.key"}, "cannot be used"),
        ({"certificate-authority": "missing"}, "missing"),
        ({"certificate-authority-data": "?"}, "is not base64"),
    ],
)
def test_a_server_that_cannot_be_trusted_is_refused(
    tmp_path: Path, cluster: Json, cause: str
) -> None:
    server = ClientAuthority().leaf(tmp_path / "server", "CN=server")
    with api_double(server) as api:
        path = write_kubeconfig(tmp_path / "config", {"server": api.url, **cluster}, {"token": "t"})
        kube = client(path)
        with pytest.raises(KubeRequestError, match=cause):
            kube.objects("Topic")
        kube.close()
        assert api.requests == []


# ------------------------------------------------------------------ proxies and other features


def test_requests_take_the_proxy_of_the_kubeconfig(api: ApiDouble, tmp_path: Path) -> None:
    cluster = {"server": "http://api.example", "proxy-url": api.url.replace("//", "//a:b@")}
    kube = client(write_kubeconfig(tmp_path / "config", cluster))
    api.objects["http://api.example" + LEASE] = {"spec": {"holderIdentity": "by proxy"}}
    lease = kube.lease("tidemark-operator")
    kube.close()
    assert lease == {"spec": {"holderIdentity": "by proxy"}}
    login = base64.b64encode(b"a:b").decode()
    assert api.requests[0][1]["proxy-authorization"] == f"Basic {login}"


def test_features_that_the_small_client_lacks_use_the_package(
    api: ApiDouble, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = write_kubeconfig(tmp_path / "plain", {"server": api.url})
    assert isinstance(connect(str(plain)), DirectTransport)
    user = {"auth-provider": {"name": "other", "config": {}}}
    older = write_kubeconfig(tmp_path / "older", {"server": api.url}, user)
    transport = connect(str(older))
    assert isinstance(transport, LibraryTransport)
    transport.close()
    kube = client(older)
    assert kube.objects("Topic") == []
    assert abs(kube.now() - dt.datetime.now(dt.UTC)) < dt.timedelta(seconds=5)
    kube.close()
    # A proxy of the environment is for servers elsewhere.
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy.example:3128")
    far = write_kubeconfig(tmp_path / "far", {"server": "https://api.example"})
    assert isinstance(connect(str(far)), LibraryTransport)
    assert isinstance(connect(str(plain)), DirectTransport)


def test_redirections_are_not_followed(api: ApiDouble, tmp_path: Path) -> None:
    """The token of one server must not reach another one."""
    path = write_kubeconfig(tmp_path / "config", {"server": api.url}, {"token": "t"})
    with api_double() as other:
        api.redirection = other.url
        kube = client(path)
        with pytest.raises(KubeRequestError) as caught:
            kube.objects("Topic")
        kube.close()
        assert caught.value.status == 302
        assert other.requests == []
