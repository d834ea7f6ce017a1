"""What a User's clients need, in a Secret under its name; and what brokers are given for it.

The Secret stands before a broker hears of what it holds. A password that was accepted once stays in
force, in that Secret, until another one can be read: a Secret that somebody takes away locks
nobody out, deleting the User does.
"""

import asyncio
import secrets
from dataclasses import dataclass

from tidemark.error_text import error_text
from tidemark.reasons import Reason
from tidemark.wire.users import ScramCredential
from tidemark_operator.certificates.authority import BadCertificate
from tidemark_operator.certificates.certificate_stores import (
    Kept,
    KeptByAnother,
    Overtaken,
    SecretKeeper,
)
from tidemark_operator.controller.status.user import UserProblem
from tidemark_operator.controller.users import UserInfo
from tidemark_operator.kube.errors import Forbidden, Invalid
from tidemark_operator.kube.kinds import Json
from tidemark_operator.reconcile.services import Services
from tidemark_operator.users import passwords
from tidemark_operator.users.scram import (
    ITERATIONS,
    SALT_KEY_BYTES,
    Mechanism,
    credential,
    salt_of,
)
from tidemark_operator.users.user_secret import (
    USER_SECRETS,
    KeptPassword,
    certificate_data,
    password_data,
    read_certificate,
    read_password,
)

#: Each takes some milliseconds of a core, and there may be thousands after a take-over.
DERIVATIONS = 2


#: The API server lets the operator's account not at Secrets: which there are is not known.
SECRET_REFUSED = Reason.SECRET_REFUSED


@dataclass(frozen=True, slots=True)
class Proof:
    """How a user proves who it is: its Secret ("": none), its credentials, what is wrong."""

    secret: str = ""
    scram: tuple[ScramCredential, ...] = ()
    problem: UserProblem | None = None


class UserSecrets:
    """Of one term."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._namespace = services.cluster_key.namespace
        self._keeper = SecretKeeper(services.client.api, self._namespace, USER_SECRETS)
        self._derivations = asyncio.Semaphore(DERIVATIONS)

    async def provide(self, user: UserInfo, name: str, body: Json) -> Proof:
        """Make and keep the Secret ``name`` of a User (``body``). Raises :class:`KeptByAnother`
        where somebody else writes it at this moment, ``KubeError``."""
        try:
            if not user.certificate:
                self._services.client_certificates.forget(name)
            if user.certificate:
                return await self._certificate(user, name, body)
            if user.mechanism:
                return await self._password(user, name, body)
            await self._remove(name)
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
        own, taken = await self._own(user, name)
        if taken is not None:
            return Proof(problem=taken)
        wanted, problem = await self._wanted(user)
        try:
            present = None if own is None else read_password(own.data)
        except passwords.BadPassword as error:
            if not wanted:
                text = f"{error}. Correct it, or delete the Secret to generate another password"
                return Proof(problem=UserProblem(Reason.PASSWORD_UNUSABLE, text))
            present = None
        if problem is not None and present is None:
            return Proof(problem=problem)
        kept = KeptPassword(
            wanted or (passwords.make() if present is None else present.password),
            secrets.token_bytes(SALT_KEY_BYTES) if present is None else present.salt_key,
        )
        await self._write(name, password_data(user.username, kept), own, body)
        return Proof(name, (await self._credential(user, kept),), problem)

    async def _wanted(self, user: UserInfo) -> tuple[str, UserProblem | None]:
        """The password that somebody else keeps; "" where nobody does, or it cannot be used."""
        if user.password_ref is None:
            return "", None
        try:
            api = self._services.client.api
            return await passwords.read(api, self._namespace, *user.password_ref), None
        except passwords.BadPassword as error:
            return "", UserProblem(Reason.PASSWORD_UNUSABLE, str(error))

    async def _credential(self, user: UserInfo, kept: KeptPassword) -> ScramCredential:
        """As it was told before where the password is the same: the salt says so."""
        mechanism = Mechanism(user.mechanism)
        salt = salt_of(kept.salt_key, kept.password, mechanism)
        former = self._services.state.users.get(user.key)
        for known in former.scram if former else ():
            if (known.mechanism, known.iterations, known.salt) == (mechanism, ITERATIONS, salt):
                return known
        async with self._derivations:
            return await asyncio.to_thread(credential, kept.password, salt, mechanism)

    # ------------------------------------------------------------ certificates

    async def _certificate(self, user: UserInfo, name: str, body: Json) -> Proof:
        own, taken = await self._own(user, name)
        if taken is not None:
            return Proof(problem=taken)
        present = None if own is None else read_certificate(own.data)
        try:
            leaf, trusted = await self._services.client_certificates.leaf(name, present)
        except Overtaken:
            raise
        except (BadCertificate, KeptByAnother, OSError) as error:
            return Proof(problem=UserProblem(Reason.CERTIFICATES_UNUSABLE, error_text(error)))
        await self._write(name, certificate_data(leaf, trusted), own, body)
        return Proof(name)

    # ------------------------------------------------------------ the Secret

    async def _own(self, user: UserInfo, name: str) -> tuple[Kept | None, UserProblem | None]:
        """Return the User's own Secret.

        A Secret that was made for a User of another uid is adopted: both were restored from a
        backup, or the Secret got its labels back. The Secret of a User whose deletion was seen is
        deleted: its password may be the reason for the deletion."""
        try:
            kept = await self._keeper.read(name)
        except KeptByAnother as error:
            return None, UserProblem(Reason.SECRET_TAKEN, str(error))
        if kept is not None and self._is_left(kept):
            await self._keeper.remove(name, kept)
            return None, None
        return kept, None

    def _is_left(self, kept: Kept) -> bool:
        """Return whether the User of a Secret was deleted after the Secret was written. A newer
        Secret was restored."""
        deleted = self._services.objects.deleted_at(kept.owner)
        return bool(kept.owner) and int(kept.version) < deleted

    async def forget(self, name: str) -> None:
        """Delete the Secret of a deleted User. Raises ``KubeError``, and :class:`KeptByAnother` if
        another writer changes it at the same time."""
        try:
            kept = await self._keeper.read(name)
        except KeptByAnother:
            return
        if kept is not None and self._is_left(kept):
            await self._keeper.remove(name, kept)

    async def _write(
        self, name: str, data: dict[str, bytes], former: Kept | None, owner: Json
    ) -> None:
        is_ours = former is not None and former.owner == owner["metadata"]["uid"]
        if not is_ours or former is None or former.is_collected or dict(former.data) != data:
            await self._keeper.write(name, data, former, owner)

    async def _remove(self, name: str) -> None:
        """A user that proves itself by what somebody else issued has no Secret of ours."""
        try:
            kept = await self._keeper.read(name)
        except KeptByAnother:
            return
        if kept is not None:
            await self._keeper.remove(name, kept)
