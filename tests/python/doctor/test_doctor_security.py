"""The doctor's report on the library that seals, for made-up machines."""

import pytest

from torch_mcast.doctor.checks import security
from torch_mcast.doctor.findings import Verdict


@pytest.mark.parametrize(
    ("flags", "wanted", "there", "words"),
    [
        ({"aes", "pclmulqdq", "avx2"}, "auto", True, "; AES-GCM by ipsec-mb"),
        (
            {"aes", "pclmulqdq", "avx2"},
            "auto",
            False,
            "AES-GCM is faster with ipsec-mb (libipsec-mb1)",
        ),
        ({"aes", "pclmulqdq", "avx2"}, "libcrypto", True, None),
        ({"aes", "pclmulqdq", "avx2", "avx512f"}, "auto", True, None),
        ({"aes", "pclmulqdq"}, "auto", False, None),
        ({"aes", "pmull"}, "auto", False, None),
    ],
)
def test_library(flags, wanted, there, words):
    finding = security.judge_library(flags, wanted, lambda name: there)
    assert finding.verdict is Verdict.OK
    assert finding.finding.startswith("OpenSSL 3")
    assert words in finding.finding if words else "ipsec" not in finding.finding
