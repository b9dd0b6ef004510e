"""Reads a request from JSON: unknown, missing and contradicting fields are refused before anything is done."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from tooling.errors import InputError
from tooling.host.fields import Fields
from tooling.host.request import (
    SCHEMA,
    CacheMount,
    Contract,
    Health,
    Layer,
    Model,
    Mount,
    Port,
    Question,
    Request,
    Requirements,
    Sizes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

DIGEST = r"sha256:[0-9a-f]{64}"
#: A name that is safe in file and container names.
NAME = r"[a-z0-9][a-z0-9_.-]{0,62}"
REFERENCE = r"[A-Za-z0-9][A-Za-z0-9._:/-]*@" + DIGEST
GPU = r"[0-9]{1,3}|(GPU|MIG)-[0-9a-fA-F-]{8,64}"
ABSOLUTE = r"/[^,\0\n]*"
ADDRESS = r"[0-9a-fA-F.:\[\]]*"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
LABEL = r"[A-Za-z0-9][A-Za-z0-9._/-]*"
GPU_MODES = ("cdi", "gpus", "runtime", "none")
PULLS = ("registry", "present")
#: Variables that are secrets by their name; these come from files, which no process list shows.
SECRET = re.compile(
    r"(TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIAL|PRIVATE_KEY|ACCESS_KEY|API_?KEY)(_|$)|^HF_TOKEN$", re.IGNORECASE
)
#: A file that names a secret is no secret.
NO_SECRET = re.compile(r"_(FILE|PATH)$|^TOKENIZERS?_|_TOKENS$", re.IGNORECASE)
#: Labels that the program writes itself.
OWN_LABELS = "blackwell-stacks."


def read_request(text: str, source: str = "request") -> Request:
    """Read a request from its JSON text.

    Raises:
        InputError: It is no JSON, or not a request.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise InputError(
            f"the request is no JSON: {error}", where=source, fix="send one JSON document"
        ) from error
    return parse_request(document, source)


def parse_request(document: Any, source: str = "request") -> Request:
    """Check a request.

    Args:
        document: Parsed JSON.
        source: Where it came from, for messages.

    Raises:
        InputError: A field is unknown, missing or wrong; the message names it.
    """
    fields = Fields(document, source=source)
    schema = fields.text("schema")
    if schema != SCHEMA:
        raise InputError(
            f"the request's schema is {schema!r}, this program reads {SCHEMA!r}",
            where=source,
            fix="use a toolkit and a host program of the same version",
        )
    request = Request(
        release=fields.text("release", pattern=r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}"),
        reference=fields.text("reference", pattern=REFERENCE),
        digest=fields.text("digest", pattern=DIGEST),
        image_id=fields.text("image_id", pattern=DIGEST),
        stack=fields.text("stack", pattern=NAME),
        contract=fields.one("contract", _contract),
        sizes=fields.maybe("sizes", _sizes) or Sizes(),
        group=fields.text("group", "default", NAME),
        model=fields.maybe("model", _model),
        requirements=fields.maybe("requirements", _requirements) or Requirements(),
        attestations=fields.texts("attestations", pattern=f"({DIGEST})|[0-9a-f]{{64}}"),
        records=fields.objects("records"),
        trust=fields.texts("trust"),
        keep=fields.integer("keep", 3, low=1, high=1000),
        pull=fields.text("pull", "registry", "|".join(PULLS)),
        confirm_seconds=fields.seconds("confirm_seconds", 0.0),
    )
    fields.end()
    if not request.reference.endswith(f"@{request.digest}"):
        raise fields.error("reference", f"does not end in the digest {request.digest}")
    if request.records and not request.trust:
        raise fields.error("trust", "is empty, and there are records to verify")
    return request


def _sizes(fields: Fields) -> Sizes:
    return Sizes(
        compressed=fields.integer("compressed", 0),
        unpacked=fields.integer("unpacked", 0),
        layers=fields.many("layers", _layer),
        margin=fields.integer("margin", Sizes.margin),
    )


def _layer(fields: Fields) -> Layer:
    return Layer(
        fields.text("diff_id", pattern=DIGEST), fields.integer("compressed"), fields.integer("unpacked")
    )


def _model(fields: Fields) -> Model:
    return Model(
        id=fields.text("id", pattern=r"[^\n]{1,200}"),
        revision=fields.text("revision", "", r"[A-Za-z0-9._/-]{1,128}"),
        path=fields.text("path", "", ABSOLUTE),
    )


def _requirements(fields: Fields) -> Requirements:
    return Requirements(
        driver_minimum=fields.text("driver_minimum", "", r"\d+(\.\d+)*"),
        target=fields.text("target", "", r"sm_\d{2,3}[af]?"),
        gpu_count=fields.integer("gpu_count", 0, high=64),
        platform=fields.text("platform", "", r"linux/[a-z0-9]+(/v\d)?"),
    )


def _contract(fields: Fields) -> Contract:
    contract = Contract(
        health=fields.one("health", _health),
        gpus=fields.texts("gpus", pattern=GPU),
        gpu_mode=fields.text("gpu_mode", "none", "|".join(GPU_MODES)),
        arguments=fields.texts("arguments"),
        environment=fields.table("environment", VARIABLE),
        environment_files=fields.texts("environment_files", pattern=ABSOLUTE),
        mounts=fields.many("mounts", _mount),
        cache_mount=fields.maybe("cache_mount", _cache_mount),
        ports=fields.many("ports", _port),
        ipc=fields.text("ipc", "", "host|private|shareable|none"),
        shm_bytes=fields.integer("shm_bytes", 0),
        memlock=fields.integer("memlock", 0, low=-1),
        log_max_bytes=fields.integer("log_max_bytes", 50_000_000, low=1),
        log_files=fields.integer("log_files", 3, low=1, high=1000),
        stop_grace_seconds=fields.integer("stop_grace_seconds", 60, high=86400),
        gpu_release_seconds=fields.seconds("gpu_release_seconds", 60.0),
        labels=fields.table("labels", LABEL),
        user=fields.text("user", "", r"[A-Za-z0-9_.-]+(:[A-Za-z0-9_.-]+)?"),
        network=fields.text("network", "", r"[A-Za-z0-9][A-Za-z0-9_.-]*"),
        init=fields.flag("init", default=True),
    )
    _check_contract(contract, fields)
    return contract


def _check_contract(contract: Contract, fields: Fields) -> None:
    """Refuse fields that do not fit each other."""
    secrets = [name for name in contract.environment if SECRET.search(name) and not NO_SECRET.search(name)]
    own = [label for label in contract.labels if label.startswith(OWN_LABELS)]
    targets = [mount.target for mount in contract.mounts]
    targets += [contract.cache_mount.target] if contract.cache_mount else []
    host_network = contract.network == "host"
    faults = (
        (
            "gpu_mode",
            bool(contract.gpus) == (contract.gpu_mode == "none"),
            f"is {contract.gpu_mode!r} and {len(contract.gpus)} GPUs are named",
        ),
        ("gpus", _repeats(contract.gpus), "names a GPU twice"),
        (
            "environment",
            bool(secrets),
            f"holds secrets by their names ({', '.join(secrets)}); put them into a file of environment_files",
        ),
        ("labels", bool(own), f"uses labels of the program itself: {', '.join(own)}"),
        ("mounts", _repeats(targets), "has a target twice"),
        ("ports", _repeats([port.host for port in contract.ports]), "publishes a port of the host twice"),
        ("ports", bool(contract.ports) and host_network, "has no effect with network host"),
        ("shm_bytes", bool(contract.shm_bytes) and contract.ipc == "host", "has no effect with ipc host"),
        ("network", contract.network == "none", "leaves no way to ask the engine whether it is ready"),
    )
    for name, wrong, message in faults:
        if wrong:
            raise fields.error(name, message)


def _repeats(values: Sequence[object]) -> bool:
    return len(set(values)) != len(values)


def _health(fields: Fields) -> Health:
    prompt, expect = fields.text("prompt", ""), fields.text("expect", "")
    questions = fields.many("questions", _question)
    if prompt:
        questions = (Question(prompt, expect), *questions)
    if not questions:
        raise fields.error("questions", "is empty: an engine that nobody asked is not ready")
    for question in questions:
        if not question.prompt.strip() or not question.expect.strip():
            raise fields.error("questions", "has an empty prompt or expectation, which any answer meets")
    return Health(
        port=fields.integer("port", low=1, high=65535),
        model=fields.text("model", ""),
        questions=questions,
        system_prompt=fields.text("system_prompt", ""),
        max_tokens=fields.integer("max_tokens", 64, low=1, high=100_000),
        logprobs=fields.flag("logprobs", default=True),
        ready_timeout_seconds=fields.seconds("ready_timeout_seconds", 1800.0, low=0.1),
        answer_timeout_seconds=fields.seconds("answer_timeout_seconds", 120.0, low=0.1),
        interval_seconds=fields.seconds("interval_seconds", 0.25, low=0.01),
    )


def _question(fields: Fields) -> Question:
    return Question(fields.text("prompt"), fields.text("expect"))


def _mount(fields: Fields) -> Mount:
    return Mount(
        fields.text("source", pattern=ABSOLUTE),
        fields.text("target", pattern=ABSOLUTE),
        fields.flag("read_only", default=True),
    )


def _cache_mount(fields: Fields) -> CacheMount:
    return CacheMount(fields.text("source_root", pattern=ABSOLUTE), fields.text("target", pattern=ABSOLUTE))


def _port(fields: Fields) -> Port:
    return Port(
        fields.text("address", "127.0.0.1", ADDRESS),
        fields.integer("host", low=1, high=65535),
        fields.integer("container", low=1, high=65535),
    )
