"""The in-toto Statement v1: some claim (a predicate) about one image manifest, named by its digest.

Sources of the shapes: the in-toto attestation framework, `spec/v1/statement.md` and `spec/v1/digest_set.md`.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from tooling.errors import CheckError
from tooling.records import Record, canonical_json

#: `payloadType` of the DSSE envelope that carries a statement.
PAYLOAD_TYPE = "application/vnd.in-toto+json"

#: Hex SHA-256, lower case, as it is written everywhere.
Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
#: The digest of a manifest or blob with its algorithm, as registries write it.
Digest = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]


class StatementError(CheckError):
    """The signed text is not a statement that this toolkit understands."""


class WireRecord(Record):
    """A record whose JSON names are camelCase because a specification of others says so."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        alias_generator=to_camel,
        validate_by_name=True,
        validate_by_alias=True,
        serialize_by_alias=True,
    )


class Predicate(Record):
    """Base of the claims that this toolkit makes.

    Attributes:
        PREDICATE_TYPE: The type URI that says how to read the claim.
    """

    PREDICATE_TYPE: ClassVar[str]


class DigestSet(WireRecord):
    """Digests of one artifact; this toolkit writes and accepts SHA-256 only."""

    sha256: Sha256


class ResourceDescriptor(WireRecord):
    """An artifact that a claim names: `name` and `uri` are for people, the digest is what counts."""

    name: str = ""
    uri: str = ""
    digest: DigestSet
    annotations: dict[str, str] = Field(default_factory=dict)


class Subject(WireRecord):
    """What a statement is about: an image manifest. The name is a hint, the digest is the subject."""

    name: str
    digest: DigestSet


AnyPredicate = TypeVar("AnyPredicate", bound=Predicate)


class Statement(WireRecord):
    """An in-toto Statement v1 with exactly one subject."""

    type_: Literal["https://in-toto.io/Statement/v1"] = Field(
        default="https://in-toto.io/Statement/v1", alias="_type"
    )
    subject: tuple[Subject, ...] = Field(min_length=1, max_length=1)
    predicate_type: str
    predicate: dict[str, Any]

    @classmethod
    def about(cls, image: str, digest: str, predicate: Predicate) -> Self:
        """Say something about an image.

        Args:
            image: Repository or file that holds the image, for people.
            digest: Digest of its manifest, `sha256:<64 hex>`.
            predicate: The claim.
        """
        subject = Subject(name=image, digest=DigestSet(sha256=digest.removeprefix("sha256:")))
        return cls(
            subject=(subject,),
            predicate_type=predicate.PREDICATE_TYPE,
            predicate=predicate.model_dump(mode="json"),
        )

    @property
    def digest(self) -> str:
        """Digest of the image manifest that this is about, `sha256:<64 hex>`."""
        return f"sha256:{self.subject[0].digest.sha256}"

    def payload(self) -> bytes:
        """The bytes that are signed: canonical JSON, so that equal statements have equal hashes."""
        return canonical_json(self)

    def read(self, kind: type[AnyPredicate]) -> AnyPredicate:
        """Read the predicate as a record.

        Raises:
            StatementError: The predicate is of another type, or does not have the shape of its type.
        """
        if self.predicate_type != kind.PREDICATE_TYPE:
            raise StatementError(
                f"the statement is a {self.predicate_type}, not a {kind.PREDICATE_TYPE}",
                where=self.digest,
            )
        try:
            return kind.model_validate(self.predicate)
        except ValidationError as error:
            raise StatementError(
                f"the predicate does not have the shape of {kind.PREDICATE_TYPE}",
                where=self.digest,
                details=_lines(error),
            ) from error


def parse_statement(payload: bytes) -> Statement:
    """Read signed bytes as a statement.

    Raises:
        StatementError: They are no in-toto Statement v1 with one SHA-256 subject.
    """
    try:
        return Statement.model_validate(json.loads(payload))
    except ValidationError as error:
        raise StatementError("the signed text is no in-toto Statement v1", details=_lines(error)) from error
    except ValueError as error:
        raise StatementError(f"the signed text is not JSON: {error}") from error


def _lines(error: ValidationError) -> list[str]:
    """One line for each complaint of pydantic, with the place in the record."""
    return [
        f"{'.'.join(str(part) for part in item['loc']) or '(record)'}: {item['msg']}" for item in error.errors()
    ]
