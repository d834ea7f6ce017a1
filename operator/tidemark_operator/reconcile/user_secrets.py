"""Credentials of a User's clients in a Secret of its name, and their form for brokers.

The Secret exists before brokers receive its content. An accepted password stays valid, in that
Secret, until another can be read. Removal of a referenced Secret therefore locks no client out;
deletion of the User does.
"""

import asyncio
import secrets
from dataclasses import dataclass

from tidemark.error_text import error_text
from tidemark.reasons import Reason
from tidemark.wire.users import ScramCredential
from tidemark_operator.certificates.authority import BadCertificate
from tidemark_operator.certificates.certificate_stores import (
    BundleConflict,
    BundleNameTaken,
    SecretStore,
    StoredBundle,
)
from tidemark_operator.certificates.stored_authority import leaf_data, read_leaf
from tidemark_operator.controller.state.users import UserInfo
from tidemark_operator.controller.status.user import UserProblem
from tidemark_operator.kube.errors import Forbidden, Invalid
from tidemark_operator.kube.kinds import Json
from tidemark_operator.reconcile.services import ReconcilerServices
from tidemark_operator.users.scram import ITERATIONS, SALT_KEY_BYTES, Mechanism, credential, salt_of
from tidemark_operator.users.user_secret import (
    CERTIFICATE,
    KEY,
    USER_SECRETS,
    BadPassword,
    StoredPassword,
    make_password,
    offered_password,
    password_data,
    read_password,
)

#: Each derivation takes some milliseconds of a core; a takeover may need thousands.
DERIVATIONS = 2


#: The API server denies the operator access to Secrets, so existing ones are not known.
SECRET_REFUSED = Reason.SECRET_REFUSED


@dataclass(frozen=True, slots=True)
class Proof:
    """Credentials of a user.

    ``secret``: name of the Secret, "" for none. ``scram``: credentials for brokers. ``problem``:
    what is wrong.
    """

    secret: str = ""
    scram: tuple[ScramCredential, ...] = ()
    problem: UserProblem | None = None


class UserSecrets:
    """Secrets of one term."""

    def __init__(self, services: ReconcilerServices) -> None:
        self._services = services
        self._namespace = services.cluster_key.namespace
        self._keeper = SecretStore(services.client.api, self._namespace, USER_SECRETS)
        self._derivations = asyncio.Semaphore(DERIVATIONS)

    async def provide(self, user: UserInfo, name: str, body: Json) -> Proof:
        """Create or update the Secret ``name`` with a User's credentials; return what brokers need.

        A User has a certificate, a password (SCRAM) or neither. ``body`` is the User object, which
        becomes the Secret's owner. A problem that a person has to resolve is part of the result.
        Raises :class:`BundleNameTaken` if another writer changes the Secret at the same time, and
        ``KubeError``.
        """
        try:
            # A User without a certificate must not delay the rotation of the client authority.
            if not user.certificate:
                self._services.client_certificates.forget(name)
            if user.certificate:
                return await self._certificate(user, name, body)
            if user.mechanism:
                return await self._password(user, name, body)
            # Neither: an earlier spec may have left a Secret.
            await self.remove(name)
        # A missing right concerns all Users, and is reported with the remedy.
        except (Forbidden, Invalid) as error:
            text = (
                "the operator's account lacks permissions for Secrets (HTTP "
                f"{error.status}). Allow it to get, create, update and delete "
                "them"
            )
            return Proof(problem=UserProblem(SECRET_REFUSED, text))
        return Proof()

    # ------------------------------------------------------------ passwords

    async def _password(self, user: UserInfo, name: str, body: Json) -> Proof:
        """Maintain the Secret with a User's password; return the SCRAM credential, or the problem.

        The password is the one that ``spec.authentication.password`` names, the stored one, or
        a generated one.
        """
        own, taken = await self._own_secret(user, name)
        if taken is not None:
            return Proof(problem=taken)
        given, problem = await self._given(user)
        # The stored password stays in force while a referenced one cannot be read.
        try:
            present = None if own is None else read_password(own.data)
        except BadPassword as error:
            if not given:
                text = f"{error}. Correct it, or delete the Secret to generate another password"
                return Proof(problem=UserProblem(Reason.PASSWORD_UNUSABLE, text))
            present = None
        if problem is not None and present is None:
            return Proof(problem=problem)
        kept = StoredPassword(
            given or (make_password() if present is None else present.password),
            secrets.token_bytes(SALT_KEY_BYTES) if present is None else present.salt_key,
        )
        # Write the Secret before brokers require the password, so that clients can read it in time.
        await self._write(name, password_data(user.username, kept), own, body)
        return Proof(name, (await self._credential(user, kept),), problem)

    async def _given(self, user: UserInfo) -> tuple[str, UserProblem | None]:
        """Return the password from the Secret that the User names; "" without one, or with a
        problem.
        """
        if user.password_ref is None:
            return "", None
        try:
            api = self._services.client.api
            return await offered_password(api, self._namespace, *user.password_ref), None
        except BadPassword as error:
            return "", UserProblem(Reason.PASSWORD_UNUSABLE, str(error))

    async def _credential(self, user: UserInfo, kept: StoredPassword) -> ScramCredential:
        """Return the credential for brokers; the former one if the password is the same.

        The salt depends on the password, so an equal salt shows that.
        """
        mechanism = Mechanism(user.mechanism)
        salt = salt_of(kept.salt_key, kept.password, mechanism)
        former = self._services.state.users.get(user.key)
        for known in former.scram if former else ():
            if (known.mechanism, known.iterations, known.salt) == (mechanism, ITERATIONS, salt):
                return known
        # Derivation is expensive by design: few at a time, outside the main loop.
        async with self._derivations:
            return await asyncio.to_thread(credential, kept.password, salt, mechanism)

    # ------------------------------------------------------------ certificates

    async def _certificate(self, user: UserInfo, name: str, body: Json) -> Proof:
        """Maintain the Secret with a User's client certificate; return the problem, if any."""
        own, taken = await self._own_secret(user, name)
        if taken is not None:
            return Proof(problem=taken)
        present = None if own is None else read_leaf(own.data, CERTIFICATE, KEY)
        # An overtaken rotation is retried by the queue; other problems go into the status.
        try:
            leaf, trusted = await self._services.client_certificates.leaf(name, present)
        except BundleConflict:
            raise
        except (BadCertificate, BundleNameTaken, OSError) as error:
            return Proof(problem=UserProblem(Reason.CERTIFICATES_UNUSABLE, error_text(error)))
        await self._write(name, leaf_data(leaf, trusted, CERTIFICATE, KEY), own, body)
        return Proof(name)

    # ------------------------------------------------------------ the Secret

    async def _own_secret(
        self, user: UserInfo, name: str
    ) -> tuple[StoredBundle | None, UserProblem | None]:
        """Return the User's own Secret, None without one; the second value is the problem, if any.

        A Secret that was made for a User with another uid is adopted: both were restored from a
        backup, or the Secret got its labels back. But the Secret of a User whose deletion this
        operator saw is deleted, because a compromised password may be the reason for the deletion.
        """
        try:
            kept = await self._keeper.read(name)
        except BundleNameTaken as error:
            return None, UserProblem(Reason.SECRET_TAKEN, str(error))
        if kept is not None and self._is_orphaned(kept):
            await self._keeper.remove(name, kept)
            return None, None
        return kept, None

    def _is_orphaned(self, kept: StoredBundle) -> bool:
        """Return whether the User of a Secret was deleted after the Secret was written.

        A newer Secret was restored.
        """
        deleted = self._services.objects.deleted_at(kept.owner)
        return bool(kept.owner) and int(kept.version) < deleted

    async def remove(self, name: str, *, only_if_orphaned: bool = False) -> None:
        """Delete our Secret of a User that was deleted, or whose credentials another system issues.

        Raises ``KubeError``, and :class:`BundleNameTaken` if another writer changes it at the same
        time.
        """
        try:
            kept = await self._keeper.read(name)
        except BundleNameTaken:
            return
        if kept is not None and (self._is_orphaned(kept) or not only_if_orphaned):
            await self._keeper.remove(name, kept)

    async def _write(
        self, name: str, data: dict[str, bytes], former: StoredBundle | None, owner: Json
    ) -> None:
        is_own = former is not None and former.owner == owner["metadata"]["uid"]
        if not is_own or former is None or former.is_collected or dict(former.data) != data:
            await self._keeper.write(name, data, former, owner)
