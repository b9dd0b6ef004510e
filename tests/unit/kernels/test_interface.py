"""Both sides of the C interface say the same: functions, their arguments, the version, a call's structure."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from blackwell_kernels.library import _SIGNATURES, VERSION

KERNELS = Path(__file__).resolve().parents[3] / "images" / "kernels"
SOURCE = re.sub(r"//[^\n]*", "", (KERNELS / "csrc" / "library.cu").read_text())


def test_every_function_is_declared_with_its_number_of_arguments():
    found = re.findall(r"BK_EXPORT [\w\s*]*?\b(bk_\w+)\(([^)]*)\)", SOURCE)
    exported = {name: len(arguments.split(",")) if arguments.strip() else 0 for name, arguments in found}
    assert "bk_mhc_launch" in exported
    assert exported == {name: len(arguments) for name, (_, arguments) in _SIGNATURES.items()}


def test_the_version_is_the_librarys():
    assert re.search(rf"\bbk_version\(\) {{ return {VERSION}; }}", SOURCE)


def test_the_structure_of_a_call_has_the_same_fields_in_the_same_order():
    declared = re.search(r"struct bk_mhc \{(.*?)\};", SOURCE, re.DOTALL)
    assert declared
    kinds = {"const void *": "c_void_p", "void *": "c_void_p", "float ": "c_float", "int32_t ": "c_int32"}
    there = []
    for line in declared[1].split(";"):
        kind = next((kind for kind in kinds if line.strip().startswith(kind)), None)
        if kind is None:
            assert not line.strip()
            continue
        names = line.strip().removeprefix(kind.strip().rstrip("*")).split(",")
        there += [(name.strip(" *"), kinds[kind]) for name in names]
    tree = ast.parse((KERNELS / "blackwell_kernels" / "mhc.py").read_text())
    structure = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "_Call")
    here = []
    for part in ast.walk(structure):
        if isinstance(part, ast.GeneratorExp):
            kind = ast.unparse(part.elt).strip("()").split(", ")[1]
            here += [(name, kind) for name in ast.literal_eval(part.generators[0].iter)]
    assert len(there) == 21
    assert here == there
