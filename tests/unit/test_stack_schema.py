import json
from pathlib import Path

import jsonschema
import pytest
import yaml

from tooling.stack.schema import SCHEMA_PATH, stack_schema

ROOT = Path(__file__).resolve().parents[2]


def test_the_committed_schema_is_the_model():
    committed = json.loads((ROOT / SCHEMA_PATH).read_text())
    assert committed == json.loads(json.dumps(stack_schema())), "run: blackwell-stacks schema"


@pytest.mark.parametrize("path", sorted((ROOT / "stacks").glob("*.yaml")), ids=lambda path: path.stem)
def test_every_stack_fits_the_schema(path):
    validator = jsonschema.Draft202012Validator(stack_schema())
    assert list(validator.iter_errors(yaml.safe_load(path.read_text()))) == []


def test_the_schema_refuses_an_unknown_field():
    validator = jsonschema.Draft202012Validator(stack_schema())
    stack = yaml.safe_load((ROOT / "stacks" / "cu130.yaml").read_text())
    assert any("patchs" in error.message for error in validator.iter_errors({**stack, "patchs": []}))
