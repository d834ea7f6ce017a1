"""ApiVersions (18) and UpdateFeatures (57): supported versions, and levels of features.

ApiVersions, versions 0 to 4:

- 1: throttle time
- 3: flexible, name and version of the client's software (KIP-511), features (KIP-584)
- 4: the lowest level of a feature may be 0

Version 2 has the fields of version 1.

UpdateFeatures, versions 0 to 2:

- 1: type of an upgrade, validation only (KIP-778)
- 2: no results of single features (KIP-1022)

Behaviour:

- The version ranges are derived from the table of Apis, so advertised and served versions agree.
- An unsupported version is answered in the form of version 0 with error 35 and the real ranges,
  without reading the body (KIP-511). A client name or version that violates KIP-511's pattern is
  answered with error 42.
- The finalized level of a feature is the highest level of the release (:data:`FEATURES`). An
  upgrade to it succeeds without a change. Other updates are rejected with Kafka's codes
  (``FeatureControlManager``). A lower level, which Kafka would finalize, is INVALID_UPDATE_VERSION
  too, because brokers of this release use no other. ALTER on the cluster is required.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode
from kio.schema.update_features.v2 import request as v2

from tidemark.wire.framing import body_pieces, response_pieces
from tidemark.wire.users import Operation, ResourceType
from tidemark_broker.api.schema import ThrottledAnswer
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.topic_change_requests import AUTHORIZATION_FAILED

# ---------------------------------------------------------------- ApiVersions


KEY = 18
#: Features by name, with their highest level, which is also the finalized one. It is the same in
#: all brokers, so the features' epoch never changes.
FEATURES = {"group.version": 1, "transaction.version": 2}
_FEATURES_EPOCH = 0
#: Older clients cannot read a lowest level of 0, so they receive no feature levels.
_LEVEL_0_SINCE = 4
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")


@dataclass(slots=True, kw_only=True)
class ApiVersion:
    """Version range of one Api, inclusive."""

    api_key: int
    min_version: int
    max_version: int


@dataclass(slots=True, kw_only=True)
class SupportedFeatureKey:
    """Levels of a feature (KIP-584) that this broker supports, inclusive."""

    name: str
    min_version: int
    max_version: int


@dataclass(slots=True, kw_only=True)
class FinalizedFeatureKey:
    """Finalized levels of a feature in the cluster."""

    name: str
    max_version_level: int
    min_version_level: int


@dataclass(slots=True, kw_only=True)
class ApiVersionsResponse(ThrottledAnswer):
    error_code: ErrorCode
    api_keys: tuple[ApiVersion, ...]
    supported_features: tuple[SupportedFeatureKey, ...] = ()
    finalized_features_epoch: int = -1
    finalized_features: tuple[FinalizedFeatureKey, ...] = ()


def api_of(
    table: Mapping[int, Api[Any, Any]],
) -> Api[ApiVersionsRequest, ApiVersionsResponse]:
    """Return the ApiVersions Api, whose handler advertises the Apis of ``table``.

    The table may be completed until the first request, since it contains ApiVersions itself.
    """

    async def handle(request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
        return answer(table, _record_software(request, call), call.version)

    # Each connection begins with this request. Table and features never change, so a response is
    # encoded once for each version. ``handle`` builds a throttled one.
    @cache
    def encoded(version: int) -> bytes:
        response = answer(table, ErrorCode.none, version)
        return b"".join(body_pieces(response, api.answer_type(version)))

    def begin(request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse | bytes:
        error = _record_software(request, call)
        if error is not ErrorCode.none:
            return answer(table, error, call.version)
        version = call.version
        (frame,) = response_pieces(
            [encoded(version)], call.correlation_id, api.answer_type(version)
        )
        return frame

    api = Api(handle, versions=(0, 4), begin=begin)
    return api


def _record_software(request: ApiVersionsRequest, call: Call) -> ErrorCode:
    """Record the client's library. Return INVALID_REQUEST for an illegal name or version."""
    # Clients before version 3 send no software name.
    if call.version < 3:
        return ErrorCode.none
    if not (
        _SOFTWARE.fullmatch(request.client_software_name)
        and _SOFTWARE.fullmatch(request.client_software_version)
    ):
        return ErrorCode.invalid_request
    call.client.software = request.client_software_name
    return ErrorCode.none


def answer(
    table: Mapping[int, Api[Any, Any]], error: ErrorCode, version: int = 0
) -> ApiVersionsResponse:
    """Return an ApiVersions response with the version ranges of ``table`` and the features.

    ``version`` is that of the request, which decides whether feature levels are included.
    """
    return ApiVersionsResponse(
        error_code=error,
        api_keys=tuple(
            ApiVersion(
                api_key=api.key,
                # Produce is advertised from a version below its first supported one.
                min_version=(api.versions[0] if api.advertised_min is None else api.advertised_min),
                max_version=api.versions[1],
            )
            for _, api in sorted(table.items())
        ),
        # Lowest level 0: KIP-1022 lets a cluster run without a feature.
        supported_features=tuple(
            SupportedFeatureKey(name=name, min_version=0, max_version=level)
            for name, level in FEATURES.items()
            if version >= _LEVEL_0_SINCE
        ),
        finalized_features_epoch=_FEATURES_EPOCH,
        finalized_features=tuple(
            FinalizedFeatureKey(name=name, max_version_level=level, min_version_level=level)
            for name, level in FEATURES.items()
        ),
    )


# ---------------------------------------------------------------- UpdateFeatures


#: Kafka's ``FeatureUpdate.UpgradeType``: an upgrade, a downgrade that loses nothing, any downgrade.
_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE = 1, 2, 3
#: Up to this version the answer has a result for each feature.
_EACH_UNTIL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FeatureUpdateKey(v2.FeatureUpdateKey):
    """One update: ``allow_downgrade`` in version 0, ``upgrade_type`` from version 1."""

    allow_downgrade: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateFeaturesRequest(v2.UpdateFeaturesRequest):
    """Request of all versions."""

    feature_updates: tuple[FeatureUpdateKey, ...]


@dataclass(slots=True, kw_only=True)
class UpdatableFeatureResult:
    """Result of one feature. As in Kafka, success has the text NONE."""

    feature: str
    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = "NONE"


@dataclass(slots=True, kw_only=True)
class UpdateFeaturesResponse(ThrottledAnswer):
    """Answer. ``results`` are sent up to version 1, and only if all updates succeed."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    results: tuple[UpdatableFeatureResult, ...] = ()


async def update_features(request: UpdateFeaturesRequest, call: Call) -> UpdateFeaturesResponse:
    """Check the updates of feature levels, and apply all or none. Needs ALTER on the cluster."""
    if not call.client.may(Operation.ALTER, ResourceType.CLUSTER):
        return UpdateFeaturesResponse(
            error_code=ErrorCode.cluster_authorization_failed, error_message=AUTHORIZATION_FAILED
        )
    # The first problem rejects the whole request, as Kafka does from version 2.
    for update in request.feature_updates:
        problem = _problem(update, _upgrade_type(update, call.version))
        if problem:
            return UpdateFeaturesResponse(
                error_code=ErrorCode.invalid_update_version,
                error_message=(
                    "The update failed for all features since the following feature had an error: "
                    f"Invalid update version {update.max_version_level} for feature "
                    f"{update.feature[:200]}. {problem}"
                ),
            )
    # Version 2 has no results for single features (KIP-1022).
    if call.version > _EACH_UNTIL:
        return UpdateFeaturesResponse()
    # The updates change nothing, so each one has succeeded.
    names = dict.fromkeys(update.feature for update in request.feature_updates)
    return UpdateFeaturesResponse(
        results=tuple(UpdatableFeatureResult(feature=name) for name in names)
    )


def _upgrade_type(update: FeatureUpdateKey, version: int) -> int:
    if version > 0:
        return update.upgrade_type
    return _SAFE_DOWNGRADE if update.allow_downgrade else _UPGRADE


def _problem(update: FeatureUpdateKey, upgrade_type: int) -> str:
    """Return why an update is rejected, "" if it is accepted. The checks are in Kafka's order.

    Only the level of this release is accepted, which changes nothing.
    """
    level, present = update.max_version_level, FEATURES.get(update.feature)
    if upgrade_type not in (_UPGRADE, _SAFE_DOWNGRADE, _UNSAFE_DOWNGRADE):
        return "The controller does not support the given upgrade type."
    if level < 0:
        return "A feature version cannot be less than 0."
    if present is None:
        return "There is no such feature here."
    if level > present:
        return f"Supported are versions 0 to {present}."
    # The requested level is already in effect.
    if level == present:
        return ""
    if upgrade_type == _UPGRADE:
        return (
            "Can't downgrade the version of this feature without setting the upgrade type to "
            "either safe or unsafe downgrade."
        )
    return f"This release only supports version {present}. Another version needs another release."


UPDATE_FEATURES = Api(update_features, versions=(0, 2))
