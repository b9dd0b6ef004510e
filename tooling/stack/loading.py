"""Read a stack file; every error names file, line, field, what is allowed and the nearest valid name."""

from __future__ import annotations

import difflib
import json
from typing import TYPE_CHECKING, Any

import yaml
from pydantic import BaseModel, ValidationError

from tooling.errors import InputError
from tooling.stack.model import Stack, StackFile

if TYPE_CHECKING:
    from pathlib import Path

    from pydantic_core import ErrorDetails

    Location = tuple[int | str, ...]


def stacks_directory(root: Path) -> Path:
    """Where the stacks of a checkout lie."""
    return root / "stacks"


def stack_names(root: Path) -> list[str]:
    """Names of the stacks of a checkout."""
    return sorted(path.stem for path in stacks_directory(root).glob("*.yaml"))


def load_stack(name: str, root: Path) -> StackFile:
    """Read and validate `stacks/<name>.yaml`.

    Raises:
        InputError: There is no such stack, or its file is not valid.
    """
    path = stacks_directory(root) / f"{name}.yaml"
    if not path.is_file():
        names = stack_names(root)
        near = difflib.get_close_matches(name, names, n=1)
        fix = f"did you mean {near[0]}?" if near else f"choose one of: {', '.join(names) or 'none exists'}"
        raise InputError(f"there is no stack {name!r}", where=str(path), fix=fix)
    stack = parse_stack(path.read_text(encoding="utf-8"), path)
    if stack.name != name:
        raise InputError(
            f"the stack calls itself {stack.name!r}",
            where=str(path),
            fix=f"write name: {name}, or rename the file",
        )
    return StackFile(stack=stack, path=path)


def parse_stack(text: str, path: Path) -> Stack:
    """Validate the text of a stack file; `path` is only used in messages."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        if node is None:
            raise InputError("the stack file is empty", where=str(path), fix="start from an existing stack")
        data = _data(node, path)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark else str(path)
        problem = getattr(error, "problem", None) or str(error)
        raise InputError(f"not valid YAML: {problem}", where=where, fix="mend the syntax") from error
    try:
        return Stack.model_validate(data)
    except ValidationError as error:
        problems = [_explain(detail, node, path) for detail in error.errors()]
        first = problems[0]
        first.details = [line for problem in problems[1:] for line in str(problem).splitlines()]
        raise first from error


def _data(node: yaml.Node, path: Path) -> Any:
    """Plain data of a YAML tree, refusing keys that stand twice (the parser would keep the last one)."""
    if isinstance(node, yaml.MappingNode):
        result: dict[Any, Any] = {}
        for key, value in node.value:
            if key.value in result:
                line = key.start_mark.line + 1
                raise InputError(f"field {key.value!r} stands twice", where=f"{path}:{line}", fix="keep one")
            result[key.value] = _data(value, path)
        return result
    if isinstance(node, yaml.SequenceNode):
        return [_data(item, path) for item in node.value]
    return yaml.SafeLoader("").construct_object(node, deep=True)


def _line(node: yaml.Node, location: Location) -> int:
    """Line of the field at a location, or of the nearest one that exists."""
    line = node.start_mark.line + 1
    for part in location:
        if isinstance(node, yaml.MappingNode):
            found = next(((key, value) for key, value in node.value if key.value == part), None)
            if found is None:
                break
            line, node = found[0].start_mark.line + 1, found[1]
        elif isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        else:
            break
    return line


def _fields_at(location: Location) -> list[str]:
    """Names of the fields that the model allows at a location."""
    model: Any = Stack
    for part in location:
        if isinstance(part, int):
            continue
        if not (isinstance(model, type) and issubclass(model, BaseModel)) or part not in model.model_fields:
            return []
        model = _model_in(model.model_fields[part].annotation)
    return sorted(model.model_fields) if isinstance(model, type) and issubclass(model, BaseModel) else []


def _model_in(annotation: Any) -> Any:
    """The record inside an annotation such as `tuple[Layer, ...]` or `Bootstrap | None`."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next(
        (model for part in getattr(annotation, "__args__", ()) if (model := _model_in(part)) is not None), None
    )


def _explain(detail: ErrorDetails, node: yaml.Node, path: Path) -> InputError:
    """Turn one validation error into a message a person can act on."""
    location = detail["loc"]
    field = ".".join(str(part) for part in location) or "the stack"
    where = f"{path}:{_line(node, location)}"
    if detail["type"] == "extra_forbidden":
        allowed = _fields_at(location[:-1])
        near = difflib.get_close_matches(str(location[-1]), allowed, n=1)
        fix = f"did you mean {near[0]!r}? " if near else ""
        return InputError(f"unknown field {field!r}", where=where, fix=f"{fix}allowed: {', '.join(allowed)}")
    if detail["type"] == "missing":
        return InputError(f"field {field!r} is missing", where=where, fix=f"add {location[-1]}")
    given = json.dumps(detail["input"], default=str)
    shown = "" if isinstance(detail["input"], dict | list | tuple) else f" (given: {given})"
    message = detail["msg"].removeprefix("Value error, ")
    unquoted = detail["type"] == "string_type" and isinstance(detail["input"], int | float)
    fix = f'quote it: "{given}"' if unquoted else "correct the value"
    return InputError(f"field {field!r}: {message}{shown}", where=where, fix=fix)
