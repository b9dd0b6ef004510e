"""The scan on real wheels: counts obtained by other means too, and gates that are known to be there."""

import pytest

from tests.wheels.upstream import wheel
from tooling.archgates.records import Marker, PackageScan, Pattern, Polarity
from tooling.archgates.scan import scan_tree

pytestmark = pytest.mark.wheels


def _scan(package: str, version: str) -> PackageScan:
    (scan,) = scan_tree(wheel(package, version), [package])
    return scan


def _ids(scan: PackageScan, polarity: Polarity) -> set[str]:
    return {gate.id for gate in scan.gates if gate.polarity is polarity}


def test_flashinfer_0_6_4():
    scan = _scan("flashinfer-python", "0.6.4")
    counts = scan.counts()
    assert counts[Pattern.ARCH_LIST] == (21, 8)
    assert counts[Pattern.SM12X_HELPER] == (7, 2)
    assert counts[Pattern.GENCODE_FLAG] == (9, 2)
    assert counts[Pattern.ARCH_BELOW] == (13, 1)
    assert scan.markers[Marker.MULTIMEM] == (12, 4)
    assert {"F1", "F2"} <= _ids(scan, Polarity.CLOSED)
    assert {"F13", "F14"} <= _ids(scan, Polarity.OPEN)
    assert {"F11", "F17", "F24"} <= _ids(scan, Polarity.HARDWARE)


def test_sglang_0_5_9():
    scan = _scan("sglang", "0.5.9")
    counts = scan.counts()
    assert counts[Pattern.BLACKWELL_HELPER] == (23, 12)
    assert counts[Pattern.SM12X_HELPER] == (7, 5)
    assert counts[Pattern.NOT_SM12X] == (1, 1)
    assert {"S1", "S3", "S7"} <= _ids(scan, Polarity.CLOSED)
    assert {"S9", "S10", "S23"} <= _ids(scan, Polarity.OPEN)


def test_sglang_0_5_23():
    scan = _scan("sglang", "0.5.23")
    counts = scan.counts()
    assert counts[Pattern.BLACKWELL_HELPER] == (72, 34)
    assert counts[Pattern.ARCH_LIST] == (1, 1)
    assert scan.markers[Marker.MULTIMEM] == (35, 4)
    assert {"N1", "N4"} <= _ids(scan, Polarity.CLOSED)
    assert {"N9", "N10", "N13", "N18"} <= _ids(scan, Polarity.OPEN)
