"""UpdateFeatures (57): levels of features (KIP-584, KIP-778), which the broker's release fixes.

The finalized level is the highest level of the release
(:data:`~tidemark_broker.api.api_versions.FEATURES`). An upgrade to it succeeds without a change.
Other updates are rejected with Kafka's codes (``FeatureControlManager``). A lower level, which
Kafka would finalize, is INVALID_UPDATE_VERSION too, because brokers of this release use no other.
ALTER on the cluster is required.
"""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.update_features.v2 import request as v2

from tidemark_broker.api.api_versions import FEATURES
from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.topic_change_requests import AUTHORIZATION_FAILED
from tidemark_broker.security.acls import Operation, ResourceType

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
class UpdateFeaturesResponse:
    """Answer. ``results`` are sent up to version 1, and only if all updates succeed."""

    error_code: ErrorCode = ErrorCode.none
    error_message: str | None = None
    results: tuple[UpdatableFeatureResult, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: UpdateFeaturesRequest, call: Call) -> UpdateFeaturesResponse:
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


API = Api(
    key=57,
    name="UpdateFeatures",
    version_min=0,
    version_max=2,
    request=UpdateFeaturesRequest,
    answer=UpdateFeaturesResponse,
    handler=handle,
)
