from tooling.errors import InputError


def test_a_message_says_what_where_and_what_to_do():
    error = InputError(
        "unknown field 'patchs'", where="stacks/x.yaml:3", fix="write patches", details=["line 3"]
    )
    assert str(error) == "unknown field 'patchs'\n  where: stacks/x.yaml:3\n    line 3\n  to do: write patches"
    assert error.exit_code == 2
    assert error.as_record()["kind"] == "InputError"
