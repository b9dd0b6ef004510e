import entrypoint
import link_toolkit
import pytest
import selftest

SERVE = {
    "command": ["python", "-m", "engine"],
    "arguments": {"host": "::", "metrics": True, "quiet": False},
}


def test_serve_uses_the_stacks_arguments():
    assert entrypoint.serve_argv(SERVE, []) == ["python", "-m", "engine", "--host", "::", "--metrics"]


@pytest.mark.parametrize("given", [["--host", "::1"], ["--host=::1"]])
def test_an_argument_given_again_replaces_the_stacks(given):
    assert entrypoint.serve_argv(SERVE, given) == ["python", "-m", "engine", "--metrics", *given]


def test_the_version_contract():
    stack = {"python": "9.9", "engine": {"package": "pytest", "version": "0"}, "environment": {"ABSENT": "1"}}
    contents = {"packages": [], "hashed_files": 0, "findings": [], "stale": [], "libraries": 0, "allowed": []}
    for check in (
        selftest.check_python,
        selftest.check_packages,
        selftest.check_engine,
        selftest.check_contents,
        selftest.check_environment,
    ):
        assert not check(stack, contents).passed, check.__name__
    assert not selftest.check_engine({"engine": {"package": "no-such-thing", "version": "1"}}, {}).passed


def test_a_stack_with_cuda_also_tests_its_compiler():
    assert selftest.check_nvcc in selftest.checks_for({"cuda": "13.0"})
    assert selftest.check_nvcc not in selftest.checks_for({"cuda": None})


def test_development_names_of_the_toolkit(tmp_path):
    for name in ("libcudart.so.13", "libnvrtc-builtins.so.13.0", "libnvrtc.alt.so.13", "libcheckpoint.so"):
        (tmp_path / name).touch()
    assert link_toolkit.link_names(tmp_path) == {
        "libcudart.so": "libcudart.so.13",
        "libnvrtc-builtins.so": "libnvrtc-builtins.so.13.0",
        "libnvrtc.alt.so": "libnvrtc.alt.so.13",
    }
