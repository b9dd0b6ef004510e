from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tooling.errors import InputError
from tooling.lock.lockfile import Lock, LockedWheel, parse_lock, render_lock

PATH = Path("stacks/tiny.lock.txt")
WHEEL = LockedWheel(name="hello", version="1.0", wheel="hello-1.0-py3-none-any.whl", size=12, sha256="a" * 64)
OTHER = LockedWheel(
    name="world",
    version="2.0+cu130",
    wheel="world-2.0-py3-none-any.whl",
    size=3,
    sha256="b" * 64,
    index="extra",
)
LOCK = Lock(stack="tiny", request_sha256="c" * 64, wheels=(WHEEL, OTHER))


def _refused(text: str) -> InputError:
    with pytest.raises(InputError) as caught:
        parse_lock(text, PATH)
    return caught.value


def test_a_lock_comes_back_as_it_was_written():
    assert parse_lock(render_lock(LOCK), PATH) == LOCK
    assert LOCK.download_bytes == 15


def test_a_lock_carries_no_address():
    assert "://" not in render_lock(LOCK)


def test_a_version_without_a_hash_names_its_line():
    text = render_lock(LOCK).replace(f" --hash=sha256:{'a' * 64}", "")
    error = _refused(text)
    assert error.what == "a version without a hash: 'hello==1.0'"
    assert error.where == "stacks/tiny.lock.txt:7"


def test_a_pin_whose_index_is_not_recorded_is_refused():
    text = render_lock(LOCK).replace("# world-2.0-py3-none-any.whl 3 extra\n", "")
    assert "no file and index recorded for world" in _refused(text).what


def test_a_change_by_hand_is_found():
    text = render_lock(LOCK).replace("world==2.0+cu130", "world==2.1+cu130")
    assert "changed by hand" in _refused(text).what


def test_a_package_twice_is_refused():
    twice = Lock(stack="tiny", request_sha256="c" * 64, wheels=(WHEEL, WHEEL))
    assert "pins hello twice" in _refused(render_lock(twice)).what


def test_an_empty_lock_is_refused():
    assert _refused(render_lock(LOCK.model_copy(update={"wheels": ()}))).what == "the lock holds no package"


def test_somebody_elses_requirements_are_not_a_lock():
    text = f"# hello-1.0-py3-none-any.whl 12 default\nhello==1.0 --hash=sha256:{'a' * 64}\n"
    assert "not a lock of ours" in _refused(text).what


@given(st.text(max_size=200))
def test_any_text_is_either_a_lock_or_one_clear_error(text):
    with pytest.raises(InputError):
        parse_lock(text, PATH)
