"""Certificates of clients: an authority apart from the brokers', and leaves that are renewed."""

import datetime as dt
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.unit.certificates.clock import Clock
from tidemark.tls.identity import TlsIdentity, WrongPeer, of_certificate
from tidemark_operator.certificates import authority
from tidemark_operator.certificates.authority import BadCertificate, KeyPair, split
from tidemark_operator.certificates.certificate_stores import FolderKeeper
from tidemark_operator.certificates.certificates import Certificates, authority_name
from tidemark_operator.certificates.clients import (
    ANNOUNCED_PAUSE,
    ISSUING_PAUSE,
    ClientCertificates,
    clients_authority_name,
)
from tidemark_operator.certificates.formats import read_authority


@pytest.fixture
def keeper(tmp_path: Path) -> FolderKeeper:
    return FolderKeeper(tmp_path / "certificates")


@pytest.fixture
def clients(keeper: FolderKeeper, clock: Clock) -> ClientCertificates:
    return ClientCertificates(keeper, "main", "c1", clock)


async def test_a_leaf_names_the_user_and_is_for_clients_only(
    clients: ClientCertificates,
) -> None:
    leaf, trusted = await clients.leaf("alice", None)
    assert leaf.parsed.subject.rfc4514_string() == "CN=alice"
    usage = leaf.parsed.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(usage) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    (anchor,) = split(trusted)
    assert authority.is_issued_by(leaf, KeyPair(anchor, b""))
    assert authority.is_for_client(leaf, "alice")
    assert not authority.is_for_client(leaf, "alicf")


async def test_no_user_is_ever_a_broker(
    clients: ClientCertificates, keeper: FolderKeeper, clock: Clock
) -> None:
    """Another authority, and a name that no private listener knows, whatever the user is called."""
    brokers = await Certificates(keeper, "main", "c1", clock).authorities()
    name = "tidemark:cluster/c1/broker/1"
    leaf, _ = await clients.leaf(name, None)
    assert not authority.is_issued_by(leaf, brokers.issuing)
    assert not authority.is_for(leaf, TlsIdentity("c1", 1))
    with pytest.raises(x509.ExtensionNotFound):
        leaf.parsed.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    with pytest.raises(WrongPeer):
        of_certificate({"subject": ((("commonName", name),),)})
    assert await keeper.read(authority_name("main")) != await keeper.read(
        clients_authority_name("main")
    )


async def test_a_leaf_is_kept_until_it_is_due(clients: ClientCertificates, clock: Clock) -> None:
    leaf, _ = await clients.leaf("alice", None)
    clock.now += dt.timedelta(days=59)
    assert (await clients.leaf("alice", leaf))[0] == leaf
    clock.now += dt.timedelta(days=1)
    renewed, _ = await clients.leaf("alice", leaf)
    assert renewed.certificate != leaf.certificate
    assert leaf.parsed.not_valid_after_utc > clock.now + dt.timedelta(days=29), "time to load it"


@pytest.mark.parametrize("spoilt", ["another's", "another key", "no certificate"])
async def test_a_leaf_that_does_not_fit_is_reissued(
    clients: ClientCertificates, spoilt: str
) -> None:
    leaf, _ = await clients.leaf("alice", None)
    other, _ = await clients.leaf("bob", None)
    given = {
        "another's": other,
        "another key": KeyPair(leaf.certificate, other.key),
        "no certificate": KeyPair(b"-", b"-"),
    }[spoilt]
    assert (await clients.leaf("alice", given))[0] not in (leaf, other, given)


async def test_a_deleted_authority_is_not_recreated(
    clients: ClientCertificates, keeper: FolderKeeper, clock: Clock
) -> None:
    """Every user's certificate is of the former one."""
    leaf, _ = await clients.leaf("alice", None)
    shutil.rmtree(keeper._folder / clients_authority_name("main"))

    async def leaves() -> AsyncIterator[tuple[str, KeyPair]]:
        yield "alice", leaf

    with pytest.raises(BadCertificate, match=r"main-clients-ca does not exist\. Restore it"):
        await clients.check(leaves())
    for asks_first in ("carol", "alice"):
        next_term = ClientCertificates(keeper, "main", "c1", clock)
        with pytest.raises(
            BadCertificate,
            match="does not exist, but the certificate of User alice was issued by it",
        ):
            await next_term.check(leaves())
        with pytest.raises(BadCertificate, match=r"main-clients-ca does not exist\. Restore it"):
            await next_term.leaf(asks_first, None)
    next_term = ClientCertificates(keeper, "main", "c1", clock)
    with pytest.raises(
        BadCertificate, match="does not exist, but the certificate of User alice was issued by it"
    ):
        await next_term.leaf("alice", leaf)
    another_cluster = ClientCertificates(keeper, "main", "c2", clock)
    assert (await another_cluster.leaf("alice", leaf))[0] != leaf, "of the same name, made later"


async def test_an_authority_follows_another_as_slowly_as_clients_load_their_files(
    clients: ClientCertificates, keeper: FolderKeeper, clock: Clock
) -> None:
    former, trusted = await clients.leaf("alice", None)
    assert await clients.rotate(all_looked_at=True, renewal="please")
    _, both = await clients.leaf("alice", former)
    assert set(split(trusted)) < set(split(both))
    assert not await clients.rotate(all_looked_at=True, renewal="please")
    clock.now += ANNOUNCED_PAUSE
    assert await clients.rotate(all_looked_at=True, renewal="please")
    clock.now += ISSUING_PAUSE
    assert not await clients.rotate(all_looked_at=True, renewal="please"), "alice has her former"
    following, _ = await clients.leaf("alice", former)
    assert following != former
    assert not await clients.rotate(all_looked_at=False, renewal="please"), "who else is there?"
    assert former.parsed.not_valid_after_utc <= clock.now, "no leaf is cut off"
    assert await clients.rotate(all_looked_at=True, renewal="please")
    kept = await keeper.read(clients_authority_name("main"))
    assert kept is not None
    assert not set(split(trusted)) & set(split(read_authority(kept.data).trusted))


async def test_a_deleted_user_blocks_nothing(clients: ClientCertificates, clock: Clock) -> None:
    await clients.leaf("alice", None)
    assert await clients.rotate(all_looked_at=True, renewal="please")
    clock.now += ANNOUNCED_PAUSE
    assert not await clients.rotate(all_looked_at=True, renewal="please")
    clients.forget("alice")
    assert await clients.rotate(all_looked_at=True, renewal="please")


async def test_without_a_user_with_a_certificate_there_is_no_authority(
    clients: ClientCertificates, keeper: FolderKeeper
) -> None:
    assert not await clients.rotate(all_looked_at=True, renewal="please")
    assert await keeper.read(clients_authority_name("main")) is None
