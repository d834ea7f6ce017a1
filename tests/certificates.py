"""Certificates for tests: one authority for each cluster id, made once in a process.

Several processes of a test session may need the same one (an operator that keeps its own is another
matter): what a test starts, it gives a folder.
"""

import datetime as dt
import functools
from pathlib import Path

from tidemark.tls.dialing import Dialer
from tidemark.tls.files import TlsFiles
from tidemark.tls.identity import TlsIdentity
from tidemark_operator.certificates import authority
from tidemark_operator.certificates.authority import KeyPair
from tidemark_operator.certificates.certificate_stores import read_files, write_files
from tidemark_operator.certificates.stored_authority import leaf_data, read_authority


def now() -> dt.datetime:
    return dt.datetime.now(dt.UTC)


@functools.cache
def authority_of(cluster_id: str) -> KeyPair:
    """The authority of a cluster id."""
    return authority.make_authority(cluster_id, now())


def folder_of(who: TlsIdentity, folder: Path, *, issued_by: KeyPair | None = None) -> Path:
    """Write what ``who`` needs into ``folder``; ``issued_by``: another authority than its own."""
    trusted = authority_of(who.cluster_id)
    leaf = authority.issue(issued_by or trusted, who, now())
    write_files(folder, leaf_data(leaf, trusted.certificate))
    return folder


def files_of(who: TlsIdentity, folder: Path, *, issued_by: KeyPair | None = None) -> TlsFiles:
    return TlsFiles(folder_of(who, folder, issued_by=issued_by))


def dialer(
    me: TlsIdentity, expected: TlsIdentity, folder: Path, *, encrypted: bool = True
) -> Dialer:
    return Dialer(files=files_of(me, folder), expected=expected, encrypted=encrypted)


def leaf_of_operator(certificates: Path, who: TlsIdentity) -> TlsFiles:
    """Issued by the authority of operators that keep theirs in a folder. Raises ``OSError`` while
    there is none."""
    kept = [path for path in certificates.glob("*-ca") if not path.name.endswith("-clients-ca")]
    if not kept or not (kept[0] / "..data").exists():
        raise FileNotFoundError(f"no authority in {certificates} yet")
    held = read_authority(read_files(kept[0]))
    folder = certificates.parent / "peers" / f"{who.node_id}"
    leaf = authority.issue(held.issuing, who, now())
    write_files(folder, leaf_data(leaf, held.trusted))
    return TlsFiles(folder)
