"""Child process of the gate: loads the compiled client by its path, runs it once, adds its processor time.

Run as `python -I compiled_worker.py EXTENSION CONFIG RESULT`. Standard library only: each import would be paid
for in every window, and in the processor time that is reported.
"""

from __future__ import annotations

import importlib.util
import json
import resource
import sys
from pathlib import Path


def main() -> int:
    """Run one configuration and write the client's own result document."""
    extension, config_file, result_file = sys.argv[1:4]
    spec = importlib.util.spec_from_file_location("_bench", extension)
    if spec is None or spec.loader is None:
        sys.stderr.write(f"{extension} is no extension module\n")
        return 2
    client = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(client)
    config = json.loads(Path(config_file).read_text(encoding="utf-8"))
    details = Path(config["output_file"])
    try:
        client.run_config(json.dumps(config))
    except (RuntimeError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    # The returned document lacks the per-request columns; the line in the file has them.
    result = json.loads(details.read_text(encoding="utf-8").splitlines()[-1])
    usage = resource.getrusage(resource.RUSAGE_SELF)
    result["client_cpu_s"] = usage.ru_utime + usage.ru_stime
    Path(result_file).write_text(json.dumps(result), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
