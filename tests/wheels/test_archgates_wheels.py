"""The scan on real wheels: counts obtained by other means too, and gates that are known to be there."""

import json
from functools import cache

import pytest
from typer.testing import CliRunner

from tests.wheels.upstream import wheel
from tooling.archgates.kept import keep
from tooling.archgates.records import Marker, PackageScan, Pattern, Polarity
from tooling.archgates.scan import scan_tree
from tooling.cli import app

pytestmark = pytest.mark.wheels
#: Gates that nobody has judged may become fewer; more than these need a review.
UNJUDGED = {
    ("sglang", "0.5.9"): 5,
    ("sglang", "0.5.23"): 6,
    ("flashinfer-python", "0.6.4"): 1,
    ("flashinfer-python", "0.7.2"): 2,
    ("flashinfer-python", "0.7.4"): 1250,
}


@cache
def _scan(package: str, version: str) -> PackageScan:
    """A scan made now, which is then kept for the commands."""
    (scan,) = scan_tree(wheel(package, version), [package])
    keep(scan)
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
    assert "G12" in _ids(scan, Polarity.MISHANDLED)
    assert scan.polarities()[Polarity.UNJUDGED] < UNJUDGED["flashinfer-python", "0.6.4"]


def test_sglang_0_5_9():
    scan = _scan("sglang", "0.5.9")
    counts = scan.counts()
    assert counts[Pattern.BLACKWELL_HELPER] == (23, 12)
    assert counts[Pattern.SM12X_HELPER] == (7, 5)
    assert counts[Pattern.NOT_SM12X] == (1, 1)
    assert {"S1", "S3", "S7"} <= _ids(scan, Polarity.CLOSED)
    assert {"S9", "S10", "S13", "S23"} <= _ids(scan, Polarity.OPEN)
    assert "fa4-refuses-sm120" in _ids(scan, Polarity.HARDWARE)
    assert scan.polarities()[Polarity.UNJUDGED] < UNJUDGED["sglang", "0.5.9"]


def test_sglang_0_5_23():
    scan = _scan("sglang", "0.5.23")
    counts = scan.counts()
    assert counts[Pattern.BLACKWELL_HELPER] == (72, 34)
    assert counts[Pattern.ARCH_LIST] == (1, 1)
    assert scan.markers[Marker.MULTIMEM] == (35, 4)
    assert {"N1", "N4", "M14"} <= _ids(scan, Polarity.CLOSED)
    assert {"N9", "N10", "N18", "N40", "S16"} <= _ids(scan, Polarity.OPEN)
    assert {"N13", "fa4-own-host"} <= _ids(scan, Polarity.RIGHT)
    assert {"tcgen05-files", "defaults-of-sm10x"} <= _ids(scan, Polarity.HARDWARE)
    assert scan.polarities()[Polarity.UNJUDGED] < UNJUDGED["sglang", "0.5.23"]


def test_flashinfer_0_7_2():
    scan = _scan("flashinfer-python", "0.7.2")
    assert len(scan.gates) > 4000
    assert {"G5", "G12", "G15", "G16", "G25"} <= _ids(scan, Polarity.OPEN)
    assert {"G17", "G19", "G22", "G28"} <= _ids(scan, Polarity.CLOSED)
    assert "G26" in _ids(scan, Polarity.MISHANDLED)
    assert {"other-target-name", "tcgen05-files", "G12"} <= _ids(scan, Polarity.HARDWARE)
    assert {"sm12x-by-number", "cutile-blackwell-sizes"} <= _ids(scan, Polarity.RIGHT)
    assert scan.polarities()[Polarity.UNJUDGED] < UNJUDGED["flashinfer-python", "0.7.2"]


@pytest.mark.long
def test_flashinfer_0_7_4_is_judged_in_part():
    scan = _scan("flashinfer-python", "0.7.4")
    assert len(scan.gates) > 12000
    assert {"G12", "G15", "G16", "G25"} <= _ids(scan, Polarity.OPEN)
    assert {"G17", "G22"} <= _ids(scan, Polarity.CLOSED)
    assert scan.polarities()[Polarity.UNJUDGED] < UNJUDGED["flashinfer-python", "0.7.4"]


def test_triton_3_8_0():
    scan = _scan("triton", "3.8.0")
    assert scan.counts()[Pattern.ARCH_EQUAL] == (24, 1)
    assert {"T2", "from-hopper-on"} <= _ids(scan, Polarity.RIGHT)
    assert _ids(scan, Polarity.HARDWARE) == {"translator-targets"}
    unjudged = [gate.hit for gate in scan.gates if gate.polarity is Polarity.UNJUDGED]
    assert [hit.code for hit in unjudged] == ["if capability == 90:"]


def test_tilelang_0_1_12():
    scan = _scan("tilelang", "0.1.12")
    assert scan.counts()[Pattern.HOST_CONDITION] == (13, 3)
    assert scan.markers[Marker.WGMMA] == (130, 19)
    assert {"L1", "L4", "cutedsl-tma"} <= _ids(scan, Polarity.CLOSED)
    assert _ids(scan, Polarity.HARDWARE) == {"L3", "L5"}
    assert scan.polarities()[Polarity.UNJUDGED] == 0


def test_the_commands_read_the_stack_that_has_no_lock():
    """Its wheels of the ordinary index are there; what needs its own indexes is named and not read."""
    unjudged = {
        package: _scan(package, version).polarities()[Polarity.UNJUDGED]
        for package, version in (("sglang", "0.5.9"), ("flashinfer-python", "0.6.4"))
    }
    done = CliRunner().invoke(app, ["gates", "cu130-0.5.9", "--json"])
    assert done.exit_code == 0, done.exception
    found = {scan["package"]: scan for scan in json.loads(done.stdout)}
    assert {name: scan["version"] for name, scan in found.items()} == {
        "flashinfer-python": "0.6.4",
        "sglang": "0.5.9",
    }
    assert {name: scan["polarities"]["unjudged"] for name, scan in found.items()} == unjudged
    assert all(scan["status"] == "source-qualified" for scan in found.values())
    assert "not read: sgl-kernel 0.3.21+cu130" in done.stderr
    done = CliRunner().invoke(app, ["patches", "cu130-0.5.9", "--json"])
    assert done.exit_code == 0, done.exception
    states = [one["state"] for series in json.loads(done.stdout) for one in series["patches"]]
    assert states == ["applies"] * 15


def test_a_package_whose_wheel_is_empty_is_read_with_its_parts():
    done = CliRunner().invoke(app, ["gates", "nvidia-cutlass-dsl==4.8.0", "--json"])
    assert done.exit_code == 0, done.exception
    (scan,) = json.loads(done.stdout)
    assert scan["files"] > 200
    assert [gate for gate in scan["gates"] if gate["hit"]["pattern"] == "admissible-archs"]
