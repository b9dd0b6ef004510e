import sys
from pathlib import Path

# Helpers that several test modules share lie beside them; importlib mode puts no folder on the path.
sys.path.append(str(Path(__file__).parent))
