import pytest

from tests.unit.certificates.clock import CertificateClock


@pytest.fixture
def clock() -> CertificateClock:
    return CertificateClock()
