"""The model of `stacks/<name>.yaml`: the only place where a version is written."""

from __future__ import annotations

from pathlib import Path  # pydantic reads it at run time
from typing import Annotated, Any, Literal

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from pydantic import (
    AfterValidator,
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from tooling.attest.hardware import Device
from tooling.prune.records import PruneRules
from tooling.records import Record, sha256_of
from tooling.release.records import ReleasePolicy
from tooling.stack.run import Run, looks_secret

Name = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9.-]*$", max_length=40)]
Version = Annotated[str, Field(pattern=r"^[0-9][0-9A-Za-z.+!_-]*$")]
Minor = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+$")]
Target = Annotated[str, Field(pattern=r"^sm_[0-9]{2,3}[af]?$")]


def _valid_requirement(value: str) -> str:
    try:
        Requirement(value)
    except InvalidRequirement as error:
        raise ValueError(f"no requirement (PEP 508): {error}".splitlines()[0]) from error
    return value


PipRequirement = Annotated[str, AfterValidator(_valid_requirement)]
Package = Annotated[str, AfterValidator(canonicalize_name)]
Reason = Annotated[str, Field(min_length=10)]
#: Variable by which FlashInfer learns the architecture; it decides where compiled modules are looked for.
ARCH_VARIABLE = "FLASHINFER_CUDA_ARCH_LIST"


class Targets(Record):
    """GPU architectures that the image is for.

    Attributes:
        required: Every gate over device code holds for these.
        optional: Served too where the packages allow it; reported, never demanded.
    """

    required: tuple[Target, ...] = ()
    optional: tuple[Target, ...] = ()


class Platform(Record):
    """What wheels are chosen for.

    Attributes:
        architecture: Machine, as `uname -m` prints it.
        glibc: The C library of the base; a wheel tagged for a newer one is not taken.
        python: Minor version of CPython.
    """

    architecture: Literal["x86_64", "aarch64"] = "x86_64"
    glibc: Minor
    python: Minor


class Engine(Record):
    """The inference engine.

    Attributes:
        name: Which kind of engine it is; gates know its routes, metrics and logs by this.
        package: Distribution that carries it.
        version: Its version.
    """

    name: Literal["sglang", "xllamacpp", "none"]
    package: Package
    version: Version


class Bootstrap(Record):
    """A base root file system made from the distribution's own packages.

    Attributes:
        suite: Suite of the distribution, e.g. `bookworm`.
        packages: Packages on top of the minimal system; their resolved versions are in the base lock.
    """

    suite: Name
    packages: tuple[str, ...] = Field(min_length=1)


class Base(Record):
    """Where the root file system comes from: exactly one of the two.

    Attributes:
        bootstrap: Made here from distribution packages.
        image: An image by digest, `repository@sha256:<64 hex>`.
    """

    bootstrap: Bootstrap | None = None
    image: str | None = None

    @field_validator("image")
    @classmethod
    def _by_digest(cls, value: str | None) -> str | None:
        if value is not None:
            repository, at, digest = value.partition("@sha256:")
            hexadecimal = len(digest) == 64 and set(digest) <= set("0123456789abcdef")  # noqa: PLR2004
            if not (repository and at and hexadecimal):
                raise ValueError("a tag can be moved to another image: write repository@sha256:<64 hex digits>")
        return value

    @model_validator(mode="after")
    def _exactly_one(self) -> Base:
        if (self.bootstrap is None) == (self.image is None):
            raise ValueError("give exactly one of bootstrap and image")
        return self


class Exclusion(Record):
    """A package that a dependency asks for and the image does without.

    Attributes:
        package: Its name.
        reason: Why it is not needed.
    """

    package: Package
    reason: Reason


class Override(Record):
    """A version that is taken although a package asks for another one.

    Attributes:
        requirement: What is taken (PEP 508), e.g. `flashinfer-python==0.6.4`.
        reason: Why that works.
    """

    requirement: PipRequirement
    reason: Reason


class Index(Record):
    """A further package index, by name: its address belongs to the machine, never into this file.

    Attributes:
        name: The environment variable `BLACKWELL_STACKS_INDEX_<NAME>` holds its address.
        holds: Which wheels it must serve; what a person needs to know to find one.
    """

    name: Name
    holds: Reason


class Layer(Record):
    """Packages that share one image layer, from slow to fast in the order of the stack.

    Attributes:
        name: Its name in logs and records.
        packages: Names, or patterns with `*`. The last layer takes what is left and lists none.
    """

    name: Name
    packages: tuple[str, ...] = ()


class LockRequest(Record):
    """What is resolved into the lock.

    Attributes:
        requirements: Besides the engine itself (PEP 508).
        constraints: Bounds on what others pull in (PEP 508).
        exclude: Packages kept out although something asks for them.
        overrides: Versions taken although something asks for another.
        indexes: Further package indexes.
        allow_yanked: Pins that stay although their index has withdrawn them, `name==version`.
    """

    requirements: tuple[PipRequirement, ...] = ()
    constraints: tuple[str, ...] = ()
    exclude: tuple[Exclusion, ...] = ()
    overrides: tuple[Override, ...] = ()
    indexes: tuple[Index, ...] = ()
    allow_yanked: tuple[str, ...] = ()

    @model_serializer(mode="wrap")
    def _without_what_is_not_asked(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Leave out empty overrides: locks and images made before there were any stay those of their stack."""
        data: dict[str, Any] = handler(self)
        if not self.overrides:
            data.pop("overrides", None)
        return data


class Allowance(Record):
    """A finding in the image that is known and accepted; an entry that matches nothing is an error.

    Attributes:
        finding: The finding's own words.
        reason: Why it does no harm.
    """

    finding: str
    reason: Reason


class PatchSeries(Record):
    """A patch series under `images/patches/`.

    Attributes:
        series: Folder, `<package>-<version>`.
        enable: Patches that are off by default and wanted here.
        disable: Patches that are on by default and not wanted here.
    """

    series: str
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


class Kernels(Record):
    """Kernel modules that are compiled into the image, so that no engine compiles them while it serves.

    Attributes:
        package: Distribution that has their sources and looks for them under `data/aot`.
        source: Python module with their generators, one `gen_<module>_module()` each.
        architecture: The one architecture that they are compiled for, e.g. `12.0a`. The environment must say
            the same to the engine, which would otherwise ignore them and compile again.
        modules: Their names, each compiled in a step of its own.
        optional: Modules that the image does not have and that `compile-kernels` compiles on their own. It
            keeps them, so that moving a name to `modules` compiles nothing again.
        native: Modules of `local_packages` that are compiled from sources of this repository, with the
            architecture of each, e.g. `12.0f`, which 12.1 runs too.
        spill_bytes: By module, most bytes that one of its kernels may spill, stores and loads each; else 0.
        may_be_empty: Names, or parts of names, of kernels that are meant to do nothing.
    """

    package: Package = canonicalize_name("flashinfer-python")
    source: Annotated[str, Field(pattern=r"^[a-z_][a-z0-9_]*(\.[a-z_][a-z0-9_]*)*$")] = "flashinfer.jit.comm"
    architecture: Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9][af]?$")]
    modules: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], ...] = Field(min_length=1)
    optional: tuple[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], ...] = ()
    native: dict[
        Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")],
        Annotated[str, Field(pattern=r"^[0-9]{1,2}\.[0-9][af]?$")],
    ] = Field(default_factory=dict)
    spill_bytes: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")], Annotated[int, Field(gt=0)]] = Field(
        default_factory=dict
    )
    may_be_empty: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every module that an image has: of the package, then our own."""
        return (*self.modules, *self.native)

    def architecture_of(self, module: str) -> str:
        """What one of them is compiled for."""
        return self.native.get(module, self.architecture)

    @model_validator(mode="after")
    def _named_once(self) -> Kernels:
        names = (*self.modules, *self.optional, *self.native)
        if len(set(names)) != len(names):
            raise ValueError("a module is listed twice")
        if strange := sorted(set(self.spill_bytes) - set(names)):
            raise ValueError(f"spill_bytes names {strange[0]}, which is no module here")
        return self


LocalPackage = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]


class Serve(Record):
    """How the image's entrypoint serves.

    Attributes:
        command: Program and fixed arguments.
        arguments: Options by name without dashes; `true` is a bare switch. The user may add or override.
        port: TCP port that the engine listens on.
    """

    command: tuple[str, ...] = Field(min_length=1)
    arguments: dict[str, str | int | float | bool] = Field(default_factory=dict)
    port: int = Field(ge=1, le=65535)


class Budget(Record):
    """What a build may cost.

    Attributes:
        build_disk_gb: Free disk that the build needs, in GB (10^9 bytes).
        layer_gb: No layer may be larger, in GB.
        compile_jobs: Compilers that run at once; one of a large kernel module takes 1 to 2 GB of memory.
    """

    build_disk_gb: float = Field(gt=0)
    layer_gb: float = Field(default=2.0, gt=0)
    compile_jobs: int = Field(default=2, ge=1)


class Stack(Record):
    """A declared inference stack.

    Attributes:
        name: Name of the stack, and of its file.
        description: One sentence for people.
        cuda: CUDA minor of the whole set of wheels; absent for a stack without CUDA.
        targets: GPU architectures.
        platform: What wheels are chosen for.
        engine: The inference engine.
        base: The root file system.
        lock: What is resolved into the lock.
        layers: Image layers of packages, slow to fast.
        allow: Known findings in the image.
        patches: Patch series, in order.
        kernels: Kernel modules compiled into the image.
        local_packages: Folders of `images/` with a Python package of this repository that the image gets.
        prune: Device code that no target runs leaves the libraries; `true`, or the rules on single files.
        serve: How it serves.
        run: How it is run on a host.
        environment: Variables of the image.
        release: What a release needs; without it the stack is never released.
        budget: What a build may cost.
    """

    name: Name
    description: str = Field(min_length=10)
    cuda: Minor | None = None
    targets: Targets = Targets()
    platform: Platform
    engine: Engine
    base: Base
    lock: LockRequest = LockRequest()
    layers: tuple[Layer, ...] = Field(min_length=1)
    allow: tuple[Allowance, ...] = ()
    patches: tuple[PatchSeries, ...] = ()
    kernels: Kernels | None = None
    local_packages: tuple[LocalPackage, ...] = ()
    prune: PruneRules | bool = False
    serve: Serve
    run: Run = Run()
    environment: dict[str, str] = Field(default_factory=dict)
    release: ReleasePolicy | None = None
    budget: Budget

    @field_validator("environment")
    @classmethod
    def _no_secrets(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if looks_secret(name):
                raise ValueError(f"{name} looks like a secret: an image is readable by everybody who pulls it")
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Stack:
        if bool(self.targets.required) != (self.cuda is not None):
            raise ValueError("cuda and targets.required belong together: give both or none")
        if bool(self.run.gpus) != (self.cuda is not None):
            raise ValueError("run.gpus is at least 1 for a stack with CUDA, and 0 for one without")
        if self.prune_rules is not None and not self.targets.required:
            raise ValueError("prune needs targets: without one nothing says which device code is kept")
        for layer in self.layers[:-1]:
            if not layer.packages:
                raise ValueError(f"layer {layer.name!r} lists no packages: only the last layer takes the rest")
        if self.layers[-1].packages:
            raise ValueError(f"the last layer {self.layers[-1].name!r} takes the rest and lists no packages")
        self._check_kernels()
        self._check_release()
        return self

    @property
    def prune_rules(self) -> PruneRules | None:
        """What is said about pruning; None for an image that keeps all device code."""
        return PruneRules() if self.prune is True else self.prune or None

    def _check_release(self) -> None:
        """A release of a GPU stack rests on GPUs that it is for."""
        if self.release is None:
            return
        device = Device.CUDA if self.cuda else Device.CPU
        if self.release.device is not device:
            raise ValueError(f"release.device is {self.release.device}, this stack computes on {device}")
        served = {f"sm_{capability.replace('.', '')}" for capability in self.release.compute_capabilities}
        strange = served - {target.rstrip("af") for target in (*self.targets.required, *self.targets.optional)}
        if strange:
            raise ValueError(f"release.compute_capabilities: {', '.join(sorted(strange))} is none of targets")

    def _check_kernels(self) -> None:
        """One architecture for what is compiled in and what the engine asks for."""
        if self.kernels is None:
            return
        architecture = self.kernels.architecture
        required = {target.rstrip("af") for target in self.targets.required}
        named = {"architecture": architecture} | {
            f"native.{name}": a for name, a in self.kernels.native.items()
        }
        for field, value in named.items():
            if f"sm_{value.rstrip('af').replace('.', '')}" not in required:
                raise ValueError(f"kernels.{field} {value} is none of targets.required")
        told = self.environment.get(ARCH_VARIABLE)
        if told != architecture:
            raise ValueError(
                f"environment.{ARCH_VARIABLE} is {told!r} and kernels.architecture is {architecture!r}: "
                "the engine would not find what was compiled"
            )

    @property
    def requirements(self) -> tuple[str, ...]:
        """Everything that the lock is resolved from (PEP 508)."""
        return (f"{self.engine.package}=={self.engine.version}", *self.lock.requirements)

    @property
    def pins(self) -> dict[str, str]:
        """Package -> version of every requirement that names one version; an override beats the rest."""
        wanted = [*self.requirements, *(one.requirement for one in self.lock.overrides)]
        found: dict[str, str] = {}
        for requirement in map(Requirement, wanted):
            exact = [one.version for one in requirement.specifier if one.operator == "=="]
            if len(requirement.specifier) == len(exact) == 1 and "*" not in exact[0]:
                found[canonicalize_name(requirement.name)] = exact[0]
        return found

    @property
    def image_sha256(self) -> str:
        """Hash of all that the declaration says of the image; what a release needs changes no image."""
        return sha256_of(self.model_dump(mode="json", exclude={"release"}))

    @property
    def lock_request_sha256(self) -> str:
        """Hash of all that decides the lock of wheels; a lock made for anything else is refused."""
        return sha256_of(
            {
                "stack": self.name,
                "cuda": self.cuda,
                "platform": self.platform.model_dump(mode="json"),
                "requirements": self.requirements,
                "lock": self.lock.model_dump(mode="json", exclude={"indexes": {"__all__": {"holds"}}}),
            }
        )

    @property
    def base_request_sha256(self) -> str:
        """Hash of all that decides the base."""
        return sha256_of(
            {"base": self.base.model_dump(mode="json"), "architecture": self.platform.architecture}
        )


class StackFile(Record):
    """A stack together with the files that stand beside it.

    Attributes:
        stack: The declaration.
        path: Its file.
    """

    stack: Stack
    path: Path

    @property
    def lock_path(self) -> Path:
        """The lock of wheels."""
        return self.path.with_name(f"{self.stack.name}.lock.txt")

    @property
    def census_path(self) -> Path:
        """The rules on the image's device code; a stack without targets has none."""
        return self.path.parent / "census" / f"{self.stack.name}.yaml"

    @property
    def base_lock_path(self) -> Path:
        """The lock of the base's packages."""
        return self.path.with_name(f"{self.stack.name}.base.lock.txt")
