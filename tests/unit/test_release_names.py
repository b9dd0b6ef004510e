import re
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.errors import InputError
from tooling.release.names import parse_release_name, release_name

WHEN = datetime(2026, 11, 29, tzinfo=UTC)
DIGEST = "sha256:" + "0123456789abcdef" * 4


def test_a_name_says_stack_version_day_and_digest():
    assert release_name("cu130", "0.5.23", WHEN, DIGEST) == "cu130-0.5.23-20261129-0123456789ab"


@pytest.mark.parametrize(
    ("stack", "engine"),
    [
        ("cpu", "0.2.9"),
        ("cu130-glm", "0.5.23.post1"),
        ("cu130", "2.14.1+cu130"),
        ("a-1", "2"),
        ("x_y.z", "1.0rc1"),
        ("4090", "1!2.0-1"),
    ],
)
def test_names_are_read_back(stack: str, engine: str):
    parsed = parse_release_name(release_name(stack, engine, WHEN, DIGEST))
    assert parsed is not None
    assert (parsed.stack, parsed.date) == (stack, "20261129")
    assert parsed.engine_version == re.sub("[+!-]", "_", engine)
    assert parsed.fits(DIGEST)
    assert parsed.tag == release_name(stack, engine, WHEN, DIGEST)
    assert not parsed.fits("sha256:" + "f" * 64)


@pytest.mark.parametrize(
    ("stack", "engine"),
    [
        ("", "1"),
        ("CPU", "1"),
        ("cpu", ""),
        ("cpu", "latest"),
        ("cpu", "1 2"),
        ("c" * 120, "1"),
    ],
)
def test_what_makes_no_tag_is_refused(stack: str, engine: str):
    with pytest.raises(InputError, match="cannot be the name of a release"):
        release_name(stack, engine, WHEN, DIGEST)


@pytest.mark.parametrize(
    "tag", ["latest", "stable", "sha256-" + "a" * 64, "cpu-1-20261129-xyz", "channel-stable-00000001", ""]
)
def test_other_tags_are_no_releases(tag: str):
    assert parse_release_name(tag) is None


@given(st.text(max_size=60))
def test_any_text_is_a_name_or_not(text: str):
    parsed = parse_release_name(text)
    assert parsed is None or text.endswith(f"-{parsed.date}-{parsed.digest_prefix}")
