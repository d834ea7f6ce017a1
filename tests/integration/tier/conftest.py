"""Buckets for the tests of the tier."""

from typing import Any

import pytest

from tests.s3 import two_buckets
from tidemark.tier.stores.s3_config import S3Config


@pytest.fixture
def config(minio: Any) -> S3Config:
    """Return the configuration of two fresh buckets of MinIO."""
    return two_buckets(minio)
