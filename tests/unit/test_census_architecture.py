import pytest

from tooling.census.architecture import Architecture, parse_architecture, ptx_release, runs_on, version_key
from tooling.census.records import least_driver
from tooling.errors import InputError

DEVICES = ("8.0", "8.6", "8.7", "9.0", "10.0", "10.3", "11.0", "12.0", "12.1")

#: Code -> the devices of DEVICES that it runs on; CUDA Programming Guide.
TABLE = {
    ("sass", "12.0"): {"12.0", "12.1"},
    ("sass", "12.0a"): {"12.0"},
    ("sass", "12.0f"): {"12.0", "12.1"},
    ("sass", "12.1"): {"12.1"},
    ("sass", "12.1a"): {"12.1"},
    ("sass", "12.1f"): {"12.1"},
    ("sass", "10.0"): {"10.0", "10.3"},
    ("sass", "10.0a"): {"10.0"},
    ("sass", "10.0f"): {"10.0", "10.3"},
    ("sass", "10.3f"): {"10.3"},
    ("sass", "11.0f"): {"11.0"},
    ("sass", "9.0"): {"9.0"},
    ("sass", "8.0"): {"8.0", "8.6"},
    ("sass", "8.7"): {"8.7"},
    ("ptx", "8.0"): set(DEVICES),
    ("ptx", "9.0"): {"9.0", "10.0", "10.3", "11.0", "12.0", "12.1"},
    ("ptx", "9.0a"): {"9.0"},
    ("ptx", "12.0"): {"12.0", "12.1"},
    ("ptx", "12.0a"): {"12.0"},
    ("ptx", "12.0f"): {"12.0", "12.1"},
    ("ptx", "12.1"): {"12.1"},
    ("ptx", "10.0f"): {"10.0", "10.3"},
}


@pytest.mark.parametrize(("code", "expected"), TABLE.items(), ids=lambda value: "-".join(sorted(value)))
def test_the_table(code: tuple[str, str], expected: set[str]):
    kind, arch = code
    found = {
        device for device in DEVICES if runs_on(kind, parse_architecture(arch), parse_architecture(device))
    }
    assert found == expected


def test_an_unknown_family_is_taken_for_its_own_member_alone():
    later = parse_architecture("14.0f")
    assert runs_on("sass", later, parse_architecture("14.0"))
    assert not runs_on("sass", later, parse_architecture("14.1"))


def test_an_unknown_kind_runs_nowhere():
    assert not runs_on("kind-64", parse_architecture("12.0"), parse_architecture("12.0"))


@pytest.mark.parametrize("text", ["12.0a", "sm_120a", "compute_120a", "120a", " 12.0a "])
def test_every_way_of_writing_it(text: str):
    assert parse_architecture(text) == Architecture(12, 0, "a")


@pytest.mark.parametrize("text", ["", "12", "12.0b", "sm_", "Blackwell", "12.0+PTX", "1200"])
def test_what_is_not_an_architecture(text: str):
    with pytest.raises(InputError, match="not a GPU architecture"):
        parse_architecture(text)


def test_ptx_needs_the_driver_of_its_cuda_release():
    release = ptx_release("9.0")
    assert release is not None
    assert (release.cuda, release.driver) == ("13.0", "580.65.06")
    assert ptx_release("99.0") is None


def test_the_newest_ptx_decides_and_an_unknown_one_is_unknown():
    assert least_driver({"8.7", "9.0"}) == "580.65.06"
    assert least_driver({"8.7", "99.0"}) == "unknown"
    assert least_driver(set()) == "unknown"


def test_versions_sort_as_numbers():
    assert version_key("580.65.06") > version_key("570.124.06")
    assert version_key("9.10") > version_key("9.9")
    with pytest.raises(InputError, match="not a version"):
        version_key("new")
