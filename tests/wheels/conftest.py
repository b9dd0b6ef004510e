import sys
from pathlib import Path

import pytest

# Helpers that several test modules share lie beside them; importlib mode puts no folder on the path.
sys.path.append(str(Path(__file__).parent))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.wheels)
