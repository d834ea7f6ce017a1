"""ApiVersions (18): what is served, derived from the table of Apis.

A version that is not served is answered in the form of version 0 with error 35 and the real ranges,
without reading the body (KIP-511); a client name or version that breaks KIP-511's pattern with 42.
"""

import re
from collections.abc import Mapping
from typing import Any

from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO, shapes_of
from tidemark_broker.api.table import Api, Call

KEY = 18
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9.\-]*[a-zA-Z0-9])?")


def api_of(table: Mapping[int, Api]) -> Api:
    """The Api, answering for ``table`` (which may be filled afterwards)."""

    async def handle(request: Any, call: Call) -> Any:
        error = ErrorCode.none
        if call.version >= 3 and not (
            _SOFTWARE.fullmatch(request.client_software_name)
            and _SOFTWARE.fullmatch(request.client_software_version)
        ):
            error = ErrorCode.invalid_request
        return answer(table, call.version, error)

    return Api(key=KEY, name="ApiVersions", version_min=0, version_max=4, handler=handle)


def answer(table: Mapping[int, Api], version: int, error: ErrorCode) -> Any:
    """The answer's entity in ``version``."""
    shapes = shapes_of(KEY, version)
    entry = shapes.of("ApiVersion")
    return shapes.answer(
        error_code=error,
        api_keys=tuple(
            entry(
                api_key=api.key,
                min_version=(api.version_min if api.advertised_min is None else api.advertised_min),
                max_version=api.version_max,
            )
            for _, api in sorted(table.items())
        ),
        throttle_time=ZERO,
    )
