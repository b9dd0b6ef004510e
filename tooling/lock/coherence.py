"""Do the pins of a lock belong together? Pure rules over names, versions and file names.

Each pin of an incoherent set resolves and installs; what breaks is a kernel at run time. The rules need no
network and no GPU. What only the files can tell (RECORD hashes, symbol versions) is checked in the image.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import yaml
from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version
from pydantic import Field

from tooling.errors import CheckError
from tooling.lock.cuda import cuda_of, is_toolkit_part
from tooling.lock.wheels import supported_tags
from tooling.records import Record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tooling.stack.model import Platform

#: Facts about wheels that were published, kept as data: `stacks/facts/known-faults.yaml`.
KNOWN_FAULTS = Path("stacks/facts/known-faults.yaml")
_TORCHVISION_OFFSET = 15  # torchvision 0.(n + 15) is built for torch 2.n, since 0.15 and 2.0
_TORCHAUDIO_STABLE_ABI = Version("2.11")  # from here on it is built against torch's stable ABI
_FLASHINFER = ("flashinfer-python", "flashinfer-cubin", "flashinfer-jit-cache")


class Pin(Record):
    """One pinned package, as far as it is known.

    Attributes:
        name: Canonical name.
        version: Version, local part included.
        wheel: File name; empty when unknown.
        hashed: Whether the pin carries a hash.
        index: Name of the index that serves it; empty when not recorded.
    """

    name: str
    version: str
    wheel: str = ""
    hashed: bool = True
    index: str = "default"


class Finding(Record):
    """Why a set of pins is refused.

    Attributes:
        rule: Which rule found it.
        what: The diagnosis.
        packages: Every package that it is about, as `name==version`.
        advice: What to do.
    """

    rule: str
    what: str
    packages: tuple[str, ...] = Field(min_length=1)
    advice: str

    def lines(self) -> list[str]:
        """The finding for a person."""
        return [f"{self.rule}: {self.what}", *(f"  {package}" for package in self.packages), f"  {self.advice}"]


class KnownFault(Record):
    """A combination of published wheels that is known not to work.

    Attributes:
        packages: Version specifier per package; all of them must match.
        what: The diagnosis.
        advice: What to do.
        source: Where that is known from.
    """

    packages: dict[str, str] = Field(min_length=1)
    what: str
    advice: str
    source: str


def load_known_faults(path: Path) -> tuple[KnownFault, ...]:
    """Read the data file of known faults."""
    return tuple(KnownFault.model_validate(entry) for entry in yaml.safe_load(path.read_text(encoding="utf-8")))


def check_coherence(
    pins: Iterable[Pin],
    *,
    cuda: str | None = None,
    platform: Platform | None = None,
    known_faults: Iterable[KnownFault] = (),
) -> list[Finding]:
    """All reasons why a set of pins must not be installed together.

    Args:
        pins: At least one; an empty lock is a failure of its own.
        cuda: CUDA minor that the stack declares; without it the pins only have to agree among themselves.
        platform: What the wheels must fit; without it file names are not judged.
        known_faults: Combinations known not to work.

    Raises:
        CheckError: There is no pin at all, so nothing was checked.
    """
    pins = sorted(pins, key=lambda pin: pin.name)
    if not pins:
        raise CheckError("no pins to check: an empty lock proves nothing")
    findings = [*_located(pins), *_majors(pins, cuda), *_minors(pins, cuda), *_torch_family(pins)]
    findings += _flashinfer(pins)
    if platform is not None:
        findings += _tags(pins, platform)
    versions = {pin.name: pin.version for pin in pins}
    findings += [_as_finding(fault, versions) for fault in known_faults if _matches(fault, versions)]
    return findings


def refuse_if_incoherent(findings: list[Finding], where: str) -> None:
    """Raise one error that lists every finding.

    Raises:
        CheckError: There is a finding.
    """
    if findings:
        lines = [line for finding in findings for line in finding.lines()]
        raise CheckError("the pins do not belong together", where=where, details=lines, fix=findings[0].advice)


def _show(pins: Iterable[Pin], suffix: Callable[[Pin], str] = lambda _: "") -> tuple[str, ...]:
    return tuple(f"{pin.name}=={pin.version}{suffix(pin)}" for pin in pins)


def _located(pins: list[Pin]) -> list[Finding]:
    findings = []
    if unhashed := [pin for pin in pins if not pin.hashed]:
        findings.append(
            Finding(
                rule="hash",
                what="a version without a hash can become another file",
                packages=_show(unhashed),
                advice="lock every file with its sha256",
            )
        )
    if unlocated := [pin for pin in pins if not pin.index]:
        findings.append(
            Finding(
                rule="index",
                what="the lock does not say from which index these files came, so the build cannot repeat it",
                packages=_show(unlocated),
                advice="record the index of each file and build from the same; keep the version",
            )
        )
    repeated = [name for name, count in Counter(pin.name for pin in pins).items() if count > 1]
    if repeated:
        findings.append(
            Finding(
                rule="duplicate",
                what="one package is pinned more than once",
                packages=_show(pin for pin in pins if pin.name in repeated),
                advice="keep one pin for each package",
            )
        )
    return findings


def _majors(pins: list[Pin], cuda: str | None) -> list[Finding]:
    found = {pin.name: version.major for pin in pins if (version := cuda_of(pin.name, pin.version))}
    if cuda is not None:
        wanted = int(cuda.split(".")[0])
        who = f"the stack is CUDA {cuda}"
    elif "torch" in found:
        wanted = found["torch"]
        who = f"torch is CUDA {wanted}"
    elif found:
        wanted = Counter(found.values()).most_common(1)[0][0]
        who = f"most packages are CUDA {wanted}"
    else:
        return []
    strangers = [pin for pin in pins if found.get(pin.name, wanted) != wanted]
    if not strangers:
        return []
    others = ", ".join(str(major) for major in sorted({found[pin.name] for pin in strangers}))
    return [
        Finding(
            rule="cuda-major",
            what=f"two CUDA majors in one environment: {who}, and these packages are CUDA {others}",
            packages=_show(strangers),
            advice=f"one CUDA major for the whole lock: take the CUDA {wanted} builds, or move all to another",
        )
    ]


def _minors(pins: list[Pin], cuda: str | None) -> list[Finding]:
    parts = {
        pin.name: version
        for pin in pins
        if (is_toolkit_part(pin.name) or "+" in pin.version) and (version := cuda_of(pin.name, pin.version))
    }
    minors = Counter(str(version) for version in parts.values())
    if not minors:
        return []
    wanted = cuda or (str(parts["torch"]) if "torch" in parts else minors.most_common(1)[0][0])
    major = wanted.split(".")[0]
    strangers = [
        pin
        for pin in pins
        if pin.name in parts and str(parts[pin.name]) != wanted and str(parts[pin.name].major) == major
    ]
    if not strangers:
        return []
    return [
        Finding(
            rule="cuda-minor",
            what=f"the CUDA toolkit is mixed: {wanted} is wanted, and these are of another minor",
            packages=_show(strangers),
            advice=f"constrain every part of the toolkit to {wanted}.*",
        )
    ]


def _torch_family(pins: list[Pin]) -> list[Finding]:
    versions = {pin.name: Version(pin.version) for pin in pins}
    torch = versions.get("torch")
    if torch is None:
        return []
    findings = []
    for name in ("torchvision", "torchaudio"):
        version = versions.get(name)
        if version is None:
            continue
        if version.local != torch.local and version.local and torch.local:
            findings.append(_family(name, version, torch, "they are builds for different CUDA versions"))
        elif name == "torchvision" and version.minor != torch.minor + _TORCHVISION_OFFSET:
            wanted = f"0.{torch.minor + _TORCHVISION_OFFSET}"
            findings.append(
                _family(name, version, torch, f"torch {torch.base_version} belongs to torchvision {wanted}")
            )
        elif name == "torchaudio" and (version.major, version.minor) != (torch.major, torch.minor):
            stable = _TORCHAUDIO_STABLE_ABI <= version < Version(f"{torch.major}.{torch.minor}")
            if not stable:
                findings.append(_family(name, version, torch, "they are built for different torch versions"))
    return findings


def _family(name: str, version: Version, torch: Version, why: str) -> Finding:
    return Finding(
        rule="torch-family",
        what=f"torch and {name} do not belong together: {why}",
        packages=(f"torch=={torch}", f"{name}=={version}"),
        advice=f"take the {name} that was built for torch {torch.base_version}",
    )


def _flashinfer(pins: list[Pin]) -> list[Finding]:
    family = [pin for pin in pins if pin.name in _FLASHINFER]
    publics = {Version(pin.version).public for pin in family}
    if len(publics) < 2:  # noqa: PLR2004
        return []
    return [
        Finding(
            rule="flashinfer",
            what="FlashInfer refuses to start when its parts differ in version",
            packages=_show(family),
            advice="pin flashinfer-python, -cubin and -jit-cache to one version, or leave the latter out",
        )
    ]


def _tags(pins: list[Pin], platform: Platform) -> list[Finding]:
    supported = supported_tags(platform)
    wanted = f"CPython {platform.python}, glibc {platform.glibc}, {platform.architecture}"
    misfits = []
    for pin in pins:
        if not pin.wheel:
            continue
        try:
            name, version, _, tags = parse_wheel_filename(pin.wheel)
        except InvalidWheelFilename:
            misfits.append(pin)
            continue
        if name != pin.name or version != Version(pin.version) or not tags & supported.keys():
            misfits.append(pin)
    if not misfits:
        return []
    return [
        Finding(
            rule="tags",
            what=f"these files are not wheels for {wanted}",
            packages=_show(misfits, lambda pin: f" ({pin.wheel})"),
            advice="take wheels whose tags fit the base, or move the base",
        )
    ]


def _matches(fault: KnownFault, versions: dict[str, str]) -> bool:
    return all(
        name in versions and SpecifierSet(spec).contains(Version(versions[name]).public, prereleases=True)
        for name, spec in fault.packages.items()
    )


def _as_finding(fault: KnownFault, versions: dict[str, str]) -> Finding:
    return Finding(
        rule="known-fault",
        what=f"{fault.what} ({fault.source})",
        packages=tuple(f"{name}=={versions[name]}" for name in sorted(fault.packages)),
        advice=fault.advice,
    )
