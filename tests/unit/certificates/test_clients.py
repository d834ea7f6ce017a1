"""Certificates of clients: an authority apart from the brokers', and leaves that are renewed."""

import datetime as dt
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID

from tests.unit.certificates.clock import CertificateClock
from tidemark.tls.identity import TlsIdentity, WrongPeer, of_certificate
from tidemark_operator.certificates import authority
from tidemark_operator.certificates.authority import BadCertificate, KeyPair, split
from tidemark_operator.certificates.certificate_stores import FolderStore
from tidemark_operator.certificates.certificates import (
    ANNOUNCED_PAUSE,
    ISSUING_PAUSE,
    Certificates,
    ClientCertificates,
    authority_name,
    clients_authority_name,
)
from tidemark_operator.certificates.stored_authority import read_authority


@pytest.fixture
def keeper(tmp_path: Path) -> FolderStore:
    return FolderStore(tmp_path / "certificates")


@pytest.fixture
def clients(keeper: FolderStore, clock: CertificateClock) -> ClientCertificates:
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


async def test_user_certificate_is_never_accepted_as_broker(
    clients: ClientCertificates, keeper: FolderStore, clock: CertificateClock
) -> None:
    """Clients have their own authority, and names that no internal listener accepts."""
    brokers = await Certificates(keeper, "main", "c1", clock).authorities()
    # The user has the name that identifies broker 1 of the cluster.
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


async def test_leaf_stays_until_its_renewal_is_due(
    clients: ClientCertificates, clock: CertificateClock
) -> None:
    leaf, _ = await clients.leaf("alice", None)
    # Leaves are valid for 90 days and renewed after 60.
    clock.now += dt.timedelta(days=59)
    assert (await clients.leaf("alice", leaf))[0] == leaf
    clock.now += dt.timedelta(days=1)
    renewed, _ = await clients.leaf("alice", leaf)
    assert renewed.certificate != leaf.certificate
    assert leaf.parsed.not_valid_after_utc > clock.now + dt.timedelta(days=29), "time to load it"


@pytest.mark.parametrize("defect", ["another's", "another key", "no certificate"])
async def test_a_leaf_that_does_not_fit_is_reissued(
    clients: ClientCertificates, defect: str
) -> None:
    leaf, _ = await clients.leaf("alice", None)
    other, _ = await clients.leaf("bob", None)
    current = {
        "another's": other,
        "another key": KeyPair(leaf.certificate, other.key),
        "no certificate": KeyPair(b"-", b"-"),
    }[defect]
    assert (await clients.leaf("alice", current))[0] not in (leaf, other, current)


async def test_a_deleted_authority_is_not_recreated(
    clients: ClientCertificates, keeper: FolderStore, clock: CertificateClock
) -> None:
    """All certificates of users were issued by the former one."""
    leaf, _ = await clients.leaf("alice", None)
    shutil.rmtree(keeper._folder / clients_authority_name("main"))

    async def leaves() -> AsyncIterator[tuple[str, KeyPair]]:
        yield "alice", leaf

    with pytest.raises(BadCertificate, match=r"main-clients-ca does not exist\. Restore it"):
        await clients.check(leaves())
    # A new operator must find alice's leaf, whichever user it reconciles first.
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
    # Another cluster of the same name may start with an authority of its own.
    another_cluster = ClientCertificates(keeper, "main", "c2", clock)
    assert (await another_cluster.leaf("alice", leaf))[0] != leaf, "of the same name, made later"


async def test_rotation_waits_until_clients_have_loaded_their_files(
    clients: ClientCertificates, keeper: FolderStore, clock: CertificateClock
) -> None:
    former, trusted = await clients.leaf("alice", None)
    assert await clients.rotate(all_looked_at=True, renewal="please")
    _, both = await clients.leaf("alice", former)
    assert set(split(trusted)) < set(split(both))
    assert not await clients.rotate(all_looked_at=True, renewal="please")
    # Clients have had time to load the next authority.
    clock.now += ANNOUNCED_PAUSE
    assert await clients.rotate(all_looked_at=True, renewal="please")
    clock.now += ISSUING_PAUSE
    assert not await clients.rotate(all_looked_at=True, renewal="please"), "alice has her former"
    # Alice's leaf is reissued by the next authority.
    following, _ = await clients.leaf("alice", former)
    assert following != former
    assert not await clients.rotate(all_looked_at=False, renewal="please"), "who else is there?"
    assert former.parsed.not_valid_after_utc <= clock.now, "no leaf is cut off"
    # All users were reconciled and the former leaves are expired.
    assert await clients.rotate(all_looked_at=True, renewal="please")
    stored = await keeper.read(clients_authority_name("main"))
    assert stored is not None
    assert not set(split(trusted)) & set(split(read_authority(stored.data).trusted))


async def test_deleted_user_does_not_block_the_rotation(
    clients: ClientCertificates, clock: CertificateClock
) -> None:
    await clients.leaf("alice", None)
    assert await clients.rotate(all_looked_at=True, renewal="please")
    clock.now += ANNOUNCED_PAUSE
    assert not await clients.rotate(all_looked_at=True, renewal="please")
    clients.forget("alice")
    assert await clients.rotate(all_looked_at=True, renewal="please")


async def test_without_a_user_with_a_certificate_there_is_no_authority(
    clients: ClientCertificates, keeper: FolderStore
) -> None:
    assert not await clients.rotate(all_looked_at=True, renewal="please")
    assert await keeper.read(clients_authority_name("main")) is None
