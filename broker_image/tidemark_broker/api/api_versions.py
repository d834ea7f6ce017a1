"""ApiVersions (18): the supported version ranges, derived from the table of Apis.

An unsupported version is answered in the form of version 0 with error 35 and the real ranges,
without reading the body (KIP-511). A client name or version that violates KIP-511's pattern is
answered with error 42.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kio.schema.api_versions.v4.request import ApiVersionsRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call

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
class ApiVersionsResponse:
    error_code: ErrorCode
    api_keys: tuple[ApiVersion, ...]
    throttle_time: timedelta = ZERO
    supported_features: tuple[SupportedFeatureKey, ...] = ()
    finalized_features_epoch: int = -1
    finalized_features: tuple[FinalizedFeatureKey, ...] = ()


def api_of(
    table: Mapping[int, Api[Any, Any]],
) -> Api[ApiVersionsRequest, ApiVersionsResponse]:
    """Return the ApiVersions Api, whose handler advertises the Apis of ``table``.

    The table may be completed later, since it contains ApiVersions itself.
    """

    async def handle(request: ApiVersionsRequest, call: Call) -> ApiVersionsResponse:
        # Clients before version 3 send no software name.
        error = ErrorCode.none
        if call.version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            error = ErrorCode.invalid_request
        return answer(table, error, call.version)

    return Api(
        key=KEY,
        name="ApiVersions",
        version_min=0,
        version_max=4,
        request=ApiVersionsRequest,
        answer=ApiVersionsResponse,
        handler=handle,
    )


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
                min_version=(api.version_min if api.advertised_min is None else api.advertised_min),
                max_version=api.version_max,
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
