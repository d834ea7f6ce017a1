"""Creation, storage and renewal of certificates, in Secrets and in a folder."""

import contextlib
import shutil
import stat
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tests.unit.certificates.clock import NOW, CertificateClock
from tidemark.tls.files import NoCertificates, TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark_operator.certificates import authority, certificate_stores, rotation
from tidemark_operator.certificates.authority import BadCertificate, KeyPair
from tidemark_operator.certificates.certificate_stores import (
    CERTIFICATES,
    BundleNameTaken,
    BundleStore,
    FolderStore,
    SecretStore,
    StoredBundle,
)
from tidemark_operator.certificates.certificates import (
    LOOK_AGAIN,
    Certificates,
    OwnLeaf,
    authority_name,
)
from tidemark_operator.certificates.rotation import RotationPhase
from tidemark_operator.certificates.stored_authority import read_leaf
from tidemark_operator.kube.kinds import SECRET

BROKER = {
    "apiVersion": "tidemark.dev/v1alpha1",
    "kind": "Broker",
    "metadata": {"name": "broker-1", "namespace": "ns", "uid": "u"},
}


@pytest.fixture
def server() -> FakeApiServer:
    return FakeApiServer()


@pytest.fixture(params=["secrets", "folder"])
def keeper(request: pytest.FixtureRequest, tmp_path: Path, server: FakeApiServer) -> BundleStore:
    if request.param == "folder":
        return FolderStore(tmp_path / "certificates")
    return SecretStore(FakeKubeApi(server), "ns")  # type: ignore[arg-type]


@pytest.fixture
def certificates(keeper: BundleStore, clock: CertificateClock) -> Certificates:
    return Certificates(keeper, "main", "c1", clock)


async def test_authority_is_created_once(certificates: Certificates, keeper: BundleStore) -> None:
    made = await certificates.authorities()
    assert await certificates.authorities() == made
    assert await keeper.read(authority_name("main")) is not None


async def test_the_authority_of_another_cluster_is_left_alone(
    certificates: Certificates, keeper: BundleStore, clock: CertificateClock
) -> None:
    """Its Secret may be from a restored backup. A new authority would lock clients out."""
    await certificates.authorities()
    with pytest.raises(BadCertificate, match="belongs to cluster id c1, not c2"):
        await Certificates(keeper, "main", "c2", clock).authorities()


async def test_concurrent_creation_keeps_one_authority(
    certificates: Certificates, keeper: BundleStore
) -> None:
    await certificates.authorities()
    stored = await keeper.read(authority_name("main"))
    # The second writer has not read the existing object.
    with pytest.raises(BundleNameTaken):
        await keeper.write(authority_name("main"), {"tls.crt": b"x"}, None)
    assert await keeper.read(authority_name("main")) == stored


async def test_broker_keeps_its_leaf(
    certificates: Certificates, keeper: BundleStore, clock: CertificateClock
) -> None:
    await certificates.leaf(1, "broker-1", BROKER)
    first = await keeper.read("broker-1-tls")
    assert first is not None
    leaf = read_leaf(first.data)
    assert leaf is not None
    assert authority.is_for(leaf, TlsIdentity("c1", 1))
    # The next check is due, but the leaf is still valid.
    clock.now += LOOK_AGAIN
    await certificates.leaf(1, "broker-1", BROKER)
    assert await keeper.read("broker-1-tls") == first


@pytest.mark.parametrize("defect", ["expired", "of another broker", "incomplete"])
async def test_unusable_leaf_is_reissued(
    certificates: Certificates, keeper: BundleStore, clock: CertificateClock, defect: str
) -> None:
    await certificates.leaf(1, "broker-1", BROKER)
    before = await keeper.read("broker-1-tls")
    assert before is not None
    clock.now += LOOK_AGAIN
    # Make the stored leaf unusable in one of three ways.
    if defect == "expired":
        clock.now += authority.LEAF_LIFE
    elif defect == "of another broker":
        authorities = await certificates.authorities()
        other = authority.issue(authorities.issuing, TlsIdentity("c1", 2), NOW)
        data = {**before.data, "tls.crt": other.certificate, "tls.key": other.key}
        await keeper.write("broker-1-tls", data, before)
    else:
        data = {**before.data, "tls.key": b""}
        await keeper.write("broker-1-tls", data, before)
    # The next check replaces it by a leaf that fits the broker.
    await certificates.leaf(1, "broker-1", BROKER)
    after = await keeper.read("broker-1-tls")
    assert after is not None
    leaf = read_leaf(after.data)
    assert leaf is not None
    assert authority.is_for(leaf, TlsIdentity("c1", 1))
    assert leaf.certificate != before.data["tls.crt"]


async def test_an_authority_is_renewed_on_request(
    certificates: Certificates, keeper: BundleStore, clock: CertificateClock
) -> None:
    """Each step waits until all live brokers use the last issued leaf."""
    first = await certificates.authorities()
    await certificates.leaf(1, "broker-1", BROKER)
    # The broker reports in a heartbeat which leaf it uses.
    certificates.used[1] = certificates.issued[1]
    assert not await certificates.rotate([1])
    assert await certificates.rotate([1], "please")
    # Announce the next authority, then issue with it, then drop the former one.
    for _ in range(2):
        clock.now += keeper.arrives_within
        assert not await certificates.rotate([1], "please"), "nothing was issued since"
        await certificates.leaf(1, "broker-1", BROKER)
        assert not await certificates.rotate([1], "please"), "the broker uses the former ones"
        certificates.used[1] = certificates.issued[1]
        assert await certificates.rotate([1], "please")
    last = await certificates.authorities()
    assert last.trusted == last.issuing.certificate != first.issuing.certificate
    assert not await certificates.rotate([1], "please")


class Interrupted:
    """BundleStore that runs an action while a leaf is read."""

    def __init__(self, keeper: BundleStore) -> None:
        self.keeper, self.meanwhile = keeper, None
        self.arrives_within, self.write = keeper.arrives_within, keeper.write
        self.where = keeper.where

    async def read(self, name: str) -> StoredBundle | None:
        found = await self.keeper.read(name)
        if name == "broker-1-tls" and self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            assert await meanwhile()
        return found


async def test_a_leaf_issued_before_a_step_proves_nothing_after_it(
    keeper: BundleStore, clock: CertificateClock
) -> None:
    """A rotation step interrupts the check of a leaf.

    The broker does not trust the next authority yet, so the present one must keep issuing.
    """
    interrupted = Interrupted(keeper)
    certificates = Certificates(interrupted, "main", "c1", clock)  # type: ignore[arg-type]
    await certificates.leaf(1, "broker-1", BROKER)
    certificates.used[1] = certificates.issued[1]
    clock.now += LOOK_AGAIN
    # The rotation runs while the broker's leaf is being read.
    interrupted.meanwhile = partial(certificates.rotate, [1], "please")  # type: ignore[assignment]
    await certificates.leaf(1, "broker-1", BROKER)
    clock.now += LOOK_AGAIN + keeper.arrives_within
    assert not await certificates.rotate([1], "please")
    await certificates.leaf(1, "broker-1", BROKER)
    certificates.used[1] = certificates.issued[1]
    assert await certificates.rotate([1], "please")


async def test_an_error_of_an_unreadable_authority_names_it(
    certificates: Certificates, keeper: BundleStore
) -> None:
    await certificates.authorities()
    stored = await keeper.read(authority_name("main"))
    assert stored is not None
    await keeper.write(authority_name("main"), {**stored.data, "state": b"?"}, stored)
    with pytest.raises(BadCertificate, match=r"^(Secret|folder) \S*main-ca: .* Restore it"):
        await certificates.authorities()


async def test_a_deleted_authority_is_not_recreated(
    certificates: Certificates, keeper: BundleStore, clock: CertificateClock
) -> None:
    """Running brokers trust the former one only, and would all be locked out at once."""
    await certificates.leaf(1, "broker-1", BROKER)
    await remove(keeper, "main-ca")
    for step in (certificates.authorities(), certificates.rotate([1], "please")):
        with pytest.raises(BadCertificate, match=r"main-ca does not exist\. Restore it"):
            await step
    # The next operator has no memory of the authority, but finds a leaf.
    next_term = Certificates(keeper, "main", "c1", clock)
    with pytest.raises(
        BadCertificate, match=r"main-ca does not exist, .*broker-1-tls was issued by it"
    ):
        await next_term.authorities(["broker-0", "broker-1"])
    another_cluster = Certificates(keeper, "main", "c2", clock)
    assert await another_cluster.authorities(["broker-1"]), "of the same names, made later"
    await remove(keeper, "main-ca")
    # Without any leaf no broker depends on the former authority.
    await remove(keeper, "broker-1-tls")
    assert await next_term.authorities(["broker-1"]), "the way to start over"


async def remove(keeper: BundleStore, name: str) -> None:
    stored = await keeper.read(name)
    assert stored is not None
    if isinstance(keeper, SecretStore):
        await keeper.remove(name, stored)
    else:
        assert isinstance(keeper, FolderStore)
        shutil.rmtree(keeper._folder / name)


@pytest.mark.parametrize(
    ("phase", "lost"),
    [
        (RotationPhase.STEADY, {"tls.key": b"?"}),
        (RotationPhase.STEADY, {"tls.key": rotation.first("c1", NOW).issuing.key}),
        (RotationPhase.ANNOUNCED, {"other.crt": b"", "next.key": b""}),
        (RotationPhase.ANNOUNCED, {"next.key": rotation.first("c1", NOW).issuing.key}),
        (RotationPhase.ISSUING, {"other.crt": b""}),
    ],
)
async def test_partly_damaged_authority_is_not_used(
    certificates: Certificates,
    keeper: BundleStore,
    clock: CertificateClock,
    phase: RotationPhase,
    lost: dict[str, bytes],
) -> None:
    """Otherwise a rotation step would overwrite the remaining key."""
    await certificates.leaf(1, "broker-1", BROKER)
    # Rotate until the phase that is tested.
    while (await certificates.authorities()).phase is not phase:
        certificates.used[1] = certificates.issued[1]
        clock.now += LOOK_AGAIN + keeper.arrives_within
        assert await certificates.rotate([1], "please")
        await certificates.leaf(1, "broker-1", BROKER)
    stored = await keeper.read("main-ca")
    assert stored is not None
    await keeper.write("main-ca", {**stored.data, **lost}, stored)
    certificates.used[1] = certificates.issued[1]
    clock.now += LOOK_AGAIN + keeper.arrives_within
    with pytest.raises(BadCertificate):
        await certificates.rotate([1], "please")
    after = await keeper.read("main-ca")
    assert after is not None
    assert after.data["tls.crt"] == stored.data["tls.crt"]


@pytest.mark.parametrize(
    "labels", [{}, {"app": "shop"}, dict(list(CERTIFICATES.labels.items())[:1])], ids=str
)
async def test_a_secret_of_another_owner_is_not_modified(
    server: FakeApiServer, labels: dict[str, str]
) -> None:
    api = FakeKubeApi(server)
    meta = {"name": "main-ca", "labels": labels}
    foreign = {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {}}
    await api.create(SECRET, "ns", foreign)
    keeper = SecretStore(api, "ns")  # type: ignore[arg-type]
    with pytest.raises(BundleNameTaken, match="does not belong to the operator"):
        await Certificates(keeper, "main", "c1", CertificateClock()).authorities()


async def test_a_brokers_secret_is_deleted_with_its_broker(server: FakeApiServer) -> None:
    keeper = SecretStore(FakeKubeApi(server), "ns")  # type: ignore[arg-type]
    await Certificates(keeper, "main", "c1", CertificateClock()).leaf(1, "broker-1", BROKER)
    body = await FakeKubeApi(server).get(SECRET, "ns", "broker-1-tls")
    (owner,) = body["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Broker", "broker-1", "u")


async def test_a_folder_is_private(tmp_path: Path) -> None:
    folder = tmp_path / "certificates"
    await Certificates(FolderStore(folder), "main", "c1", CertificateClock()).leaf(
        1, "broker-1", BROKER
    )
    found = [folder, *folder.rglob("*")]
    assert any(path.name == "tls.key" for path in found)
    for path in found:
        # No bit of group or others may be set.
        allowed = 0o700 if path.is_dir() else 0o600
        assert stat.S_IMODE(path.stat().st_mode) & ~allowed == 0, path


async def test_an_operators_own_leaf_follows_the_authority(
    certificates: Certificates, clock: CertificateClock
) -> None:
    own = OwnLeaf(clock)
    current = await certificates.authorities()
    own.follow(current)
    first = own.files.contexts().digest
    # The same authority again must not write new files.
    own.follow(current)
    assert own.files.contexts().digest == first
    await certificates.rotate([], "please")
    own.follow(await certificates.authorities())
    assert own.files.contexts().digest != first
    folder = own.files.folder
    own.close()
    assert not folder.exists()


async def test_own_leaf_is_usable_after_two_threads_have_written_it(
    certificates: Certificates, clock: CertificateClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A takeover and the watch of the authority write the leaf at the same moment."""
    own, current = OwnLeaf(clock), await certificates.authorities()
    both_issue, other_is_done, delayed = threading.Barrier(2), threading.Event(), threading.Event()
    issue, sync = authority.issue, certificate_stores._sync

    # Each wait times out where one thread waits for the other to finish.
    def issue_together(*arguments: Any) -> KeyPair:
        with contextlib.suppress(threading.BrokenBarrierError):
            both_issue.wait(0.5)
        return issue(*arguments)

    def sync_late_once(folder: Path) -> None:
        sync(folder)
        # The first thread stops between writing its files and publishing them.
        if not delayed.is_set():
            delayed.set()
            other_is_done.wait(0.5)

    def follow() -> None:
        own.follow(current)
        other_is_done.set()

    monkeypatch.setattr(authority, "issue", issue_together)
    monkeypatch.setattr(certificate_stores, "_sync", sync_late_once)
    threads = [threading.Thread(target=follow) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(5)
    own.follow(current)
    assert own.files.contexts().digest
    own.close()


@pytest.mark.parametrize("removed", ["folder", "version", "name"])
async def test_own_leaf_is_written_again_where_it_was_removed(
    certificates: Certificates, clock: CertificateClock, removed: str
) -> None:
    """For example by a service that deletes old files from the temporary directory."""
    own, current = OwnLeaf(clock), await certificates.authorities()
    leaf = own.follow(current)
    folder = own.files.folder
    if removed == "name":
        (folder / "tls.key").unlink()
    else:
        shutil.rmtree(folder if removed == "folder" else (folder / "..data").resolve())
    assert own.follow(current) == leaf
    assert TlsFiles(folder).contexts().digest == own.files.contexts().digest
    own.close()


async def test_own_leaf_that_could_not_be_written_is_written_by_the_next_try(
    certificates: Certificates, clock: CertificateClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, current = OwnLeaf(clock), await certificates.authorities()

    def full(*_: object) -> None:
        raise OSError("no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(certificate_stores, "_write", full)
        # The disk is full twice, and the third try succeeds.
        for _ in range(2):
            with pytest.raises(OSError, match="no space"):
                own.follow(current)
    assert own.cluster_id is None
    own.follow(current)
    assert own.cluster_id == "c1"
    assert own.files.contexts().digest
    own.close()


async def test_own_leaf_that_cannot_be_loaded_is_reported(
    certificates: Certificates, clock: CertificateClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener must load the files that were written."""
    own, current = OwnLeaf(clock), await certificates.authorities()
    monkeypatch.setattr("tidemark_operator.certificates.certificates.write_files", lambda *_: None)
    with pytest.raises(NoCertificates):
        own.follow(current)


def test_half_renewed_folder_keeps_the_former_certificate(tmp_path: Path) -> None:
    """The key of the next certificate has arrived before the certificate itself."""
    from tests.certificates import folder_of

    folder = folder_of(TlsIdentity("c1", 1), tmp_path / "a")
    other = folder_of(TlsIdentity("c1", 1), tmp_path / "b")
    files = TlsFiles(folder)
    before = files.contexts()
    # Only the new key: it does not match the present certificate.
    (folder / "tls.key").write_bytes((other / "tls.key").read_bytes())
    assert files.contexts() is before
    (folder / "tls.crt").write_bytes((other / "tls.crt").read_bytes())
    assert files.contexts().digest != before.digest
