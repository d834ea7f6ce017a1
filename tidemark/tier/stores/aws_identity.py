"""Identity of the process on AWS: the sources of temporary credentials, in the order of AWS's SDKs.

1. environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN;
2. web identity: AWS_WEB_IDENTITY_TOKEN_FILE and AWS_ROLE_ARN, which STS exchanges (IAM roles for
   service accounts);
3. container: AWS_CONTAINER_CREDENTIALS_RELATIVE_URI or _FULL_URI (EKS Pod Identity, ECS);
4. instance metadata, version 2 (EC2).

The first source that is configured decides. If it fails, the others are not tried: the process
would otherwise work with another identity than its owner intends. Profiles in files are not read.
"""

import http.client
import ipaddress
import json
import time
import urllib.parse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from xml.etree import ElementTree

from tidemark.reasons import Reason
from tidemark.tier.stores.aws_signature import AwsCredentials, SignatureScope, signed_headers
from tidemark.tier.stores.http_exchange import HttpLimits, HttpRequest, HttpResponse, exchange
from tidemark.tier.stores.objects import StoreUnavailable

SESSION_NAME = "tidemark"
#: STS may take seconds. A metadata service is on the same machine, or does not exist.
_STS_LIMITS = HttpLimits(wait_s=10.0, answer_s=15.0, answer_bytes=64 << 10)
_LOCAL_LIMITS = HttpLimits(wait_s=2.0, answer_s=4.0, answer_bytes=64 << 10)
_TOKEN_BYTES_MAX = 64 << 10
_CONTAINERS = "http://169.254.170.2"
_INSTANCE = "http://169.254.169.254"
_INSTANCE_IPV6 = "http://[fd00:ec2::254]"
#: Agents of ECS and EKS, which answer in plain HTTP on this machine.
_AGENTS = frozenset(map(ipaddress.ip_address, ("169.254.170.2", "169.254.170.23", "fd00:ec2::23")))
_ROLES = "/latest/meta-data/iam/security-credentials/"


@dataclass(frozen=True, slots=True)
class StsAccess:
    """Access to STS. ``region``: if the environment names none. ``ca``: see HttpRequest."""

    region: str
    ca: str = ""


class CredentialsMissing(StoreUnavailable):
    """There are no credentials for the store; the message has all sources and their problems."""

    def __init__(self, message: str) -> None:
        super().__init__(message, reason=Reason.STORE_CREDENTIALS_MISSING, retriable=True)


class _NotConfigured(Exception):
    """The process has no such source; the message names what is not set."""


class _SourceFailed(Exception):
    """A configured source gives no credentials."""


def ambient_credentials(environment: Mapping[str, str], sts: StsAccess) -> AwsCredentials:
    """Return credentials of the process's identity. Blocks; raises CredentialsMissing."""
    tried: list[str] = []
    for name, source in _SOURCES.items():
        try:
            return source(environment, sts)
        except _NotConfigured as error:
            tried.append(f"{name}: {error}")
        except _SourceFailed as error:
            tried.append(f"{name}: {error}")
            break
    raise CredentialsMissing(
        f"there are no credentials of AWS ({'; '.join(tried)}). Give the process an identity on "
        "AWS, or S3 keys (of a Cluster, in the Secret that credentialsSecretRef names)"
    )


def assumed_role(
    base: AwsCredentials, role_arn: str, environment: Mapping[str, str], sts: StsAccess
) -> AwsCredentials:
    """Return credentials of a role that ``base`` may assume. Blocks; raises CredentialsMissing."""
    try:
        return _from_sts(
            {"Action": "AssumeRole", "RoleArn": role_arn}, environment, sts, signer=base
        )
    except _SourceFailed as error:
        raise CredentialsMissing(
            f"the role {role_arn} cannot be assumed with the credentials of {base.source}: {error}"
        ) from error


def _from_environment(environment: Mapping[str, str], _sts: StsAccess) -> AwsCredentials:
    key = environment.get("AWS_ACCESS_KEY_ID", "")
    secret = environment.get("AWS_SECRET_ACCESS_KEY", "")
    if not key and not secret:
        raise _NotConfigured("AWS_ACCESS_KEY_ID is not set")
    if not key or not secret:
        missing = "AWS_SECRET_ACCESS_KEY" if key else "AWS_ACCESS_KEY_ID"
        raise _SourceFailed(f"{missing} is not set")
    token = environment.get("AWS_SESSION_TOKEN", "")
    return AwsCredentials(key, secret, token, source="the environment")


def _from_web_identity(environment: Mapping[str, str], sts: StsAccess) -> AwsCredentials:
    path = environment.get("AWS_WEB_IDENTITY_TOKEN_FILE", "")
    if not path:
        raise _NotConfigured("AWS_WEB_IDENTITY_TOKEN_FILE is not set")
    role_arn = environment.get("AWS_ROLE_ARN", "")
    if not role_arn:
        raise _SourceFailed("AWS_ROLE_ARN is not set")
    # Read each time: the kubelet replaces the token before it expires.
    fields = {"RoleArn": role_arn, "WebIdentityToken": _token_in(path)}
    return _from_sts({"Action": "AssumeRoleWithWebIdentity", **fields}, environment, sts)


def _from_container(environment: Mapping[str, str], _sts: StsAccess) -> AwsCredentials:
    relative = environment.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "")
    url = environment.get("AWS_CONTAINER_CREDENTIALS_FULL_URI", "")
    if relative:
        url = f"{_CONTAINERS}/{relative.lstrip('/')}"
    elif not url:
        raise _NotConfigured("AWS_CONTAINER_CREDENTIALS_FULL_URI is not set")
    elif not _may_receive_token(url):
        raise _SourceFailed(
            f"{url} is neither https nor an agent on this machine: correct "
            "AWS_CONTAINER_CREDENTIALS_FULL_URI"
        )
    path = environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", "")
    token = _token_in(path) if path else environment.get("AWS_CONTAINER_AUTHORIZATION_TOKEN", "")
    headers = {"Authorization": token} if token else {}
    answer = _require_ok(
        _send(HttpRequest(method="GET", url=url, headers=headers, proxied=False)), url
    )
    return _from_json(answer.body, url, f"the container's agent at {url}")


def _from_instance(environment: Mapping[str, str], _sts: StsAccess) -> AwsCredentials:
    if environment.get("AWS_EC2_METADATA_DISABLED", "").lower() == "true":
        raise _NotConfigured("AWS_EC2_METADATA_DISABLED is true")
    mode = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT_MODE", "").lower()
    default = _INSTANCE_IPV6 if mode == "ipv6" else _INSTANCE
    address = environment.get("AWS_EC2_METADATA_SERVICE_ENDPOINT") or default
    address = address.rstrip("/")

    def get(path: str, session: str) -> bytes:
        headers = {"X-aws-ec2-metadata-token": session}
        url = f"{address}{path}"
        return _require_ok(
            _send(HttpRequest(method="GET", url=url, headers=headers, proxied=False)), url
        ).body

    # Version 2: a session first, which a forged request to this address cannot have.
    url = f"{address}/latest/api/token"
    lifetime = {"X-aws-ec2-metadata-token-ttl-seconds": "300"}
    opened = _send(HttpRequest(method="PUT", url=url, headers=lifetime, proxied=False))
    session = _require_ok(opened, url).body.decode("ascii", "replace").strip()
    role = get(_ROLES, session).decode("utf-8", "replace").partition("\n")[0].strip()
    if not role:
        raise _SourceFailed(f"the machine has no role ({address}{_ROLES})")
    path = f"{_ROLES}{urllib.parse.quote(role, safe='')}"
    return _from_json(get(path, session), f"{address}{path}", f"the machine's role {role}")


#: By name, in AWS's order.
_SOURCES: Mapping[str, Callable[[Mapping[str, str], StsAccess], AwsCredentials]] = {
    "environment": _from_environment,
    "web identity": _from_web_identity,
    "container": _from_container,
    "instance metadata": _from_instance,
}


def _from_sts(
    fields: Mapping[str, str],
    environment: Mapping[str, str],
    sts: StsAccess,
    *,
    signer: AwsCredentials | None = None,
) -> AwsCredentials:
    """Return the credentials with which STS answers an action, signed by ``signer`` if given.

    Raises _SourceFailed with STS's own code and message.
    """
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or sts.region
    url = (environment.get("AWS_ENDPOINT_URL_STS") or _sts_of(region)).rstrip("/") + "/"
    name = environment.get("AWS_ROLE_SESSION_NAME") or SESSION_NAME
    form = {"Version": "2011-06-15", "RoleSessionName": name, **fields}
    body = urllib.parse.urlencode(form).encode()
    headers = {"content-type": "application/x-www-form-urlencoded"}
    if signer is not None:
        scope = SignatureScope(region=region, service="sts", now=time.gmtime())
        headers = signed_headers(signer, scope, "POST", url, body, headers)
    request = HttpRequest(method="POST", url=url, headers=headers, body=body, ca=sts.ca)
    answer = _send(request, _STS_LIMITS)
    try:
        found = ElementTree.fromstring(answer.body)
    except ElementTree.ParseError as error:
        raise _SourceFailed(f"{url} answers {answer.status}, and not as STS") from error
    # By local names: some services omit the namespace.
    texts = {element.tag.rpartition("}")[2]: element.text or "" for element in found.iter()}
    if answer.status != 200:
        text = f"{texts.get('Code', '')}: {texts.get('Message', '')}"
        raise _SourceFailed(
            f"{url} answers {answer.status} {text[:300]} ({fields['Action']}, role "
            f"{fields['RoleArn']})"
        )
    return _credentials(texts, "SessionToken", url, f"the role {fields['RoleArn']}")


def _sts_of(region: str) -> str:
    domain = "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
    return f"https://sts.{region}.{domain}"


def _from_json(body: bytes, url: str, source: str) -> AwsCredentials:
    try:
        found = json.loads(body)
        texts = {str(name): str(value) for name, value in found.items() if value is not None}
    except (ValueError, AttributeError) as error:
        raise _SourceFailed(f"{url} answers without credentials") from error
    if texts.get("Code", "Success") != "Success":
        raise _SourceFailed(f"{url} answers {texts['Code']}: {texts.get('Message', '')}"[:300])
    return _credentials(texts, "Token", url, source)


def _credentials(texts: Mapping[str, str], token: str, url: str, source: str) -> AwsCredentials:
    try:
        return AwsCredentials(
            texts["AccessKeyId"],
            texts["SecretAccessKey"],
            texts.get(token, ""),
            expires_s=datetime.fromisoformat(texts["Expiration"]).timestamp(),
            source=source,
        )
    except (KeyError, ValueError) as error:
        raise _SourceFailed(f"{url} answers without credentials and their expiration") from error


def _token_in(path: str) -> str:
    try:
        with Path(path).open(encoding="ascii") as file:
            return file.read(_TOKEN_BYTES_MAX).strip()
    except (OSError, ValueError) as error:
        raise _SourceFailed(f"the token in {path} cannot be read: {error}") from error


def _may_receive_token(url: str) -> bool:
    """Return whether a token may be sent there: over TLS, or within this machine."""
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "https":
        return True
    if parts.scheme != "http":
        return False
    try:
        address = ipaddress.ip_address(parts.hostname or "")
    except ValueError:
        return parts.hostname == "localhost"
    return address.is_loopback or address in _AGENTS


def _send(request: HttpRequest, limits: HttpLimits = _LOCAL_LIMITS) -> HttpResponse:
    try:
        return exchange(request, limits)
    except (OSError, http.client.HTTPException, ValueError) as error:
        what = str(error) or type(error).__name__
        raise _SourceFailed(f"{request.url} does not answer: {what}") from error


def _require_ok(answer: HttpResponse, url: str) -> HttpResponse:
    if answer.status != 200:
        text = answer.body[:200].decode("utf-8", "replace").strip()
        raise _SourceFailed(f"{url} answers {answer.status} {text}".strip())
    return answer
