"""What is really in the image: run while it is built, over every file of every package.

Usage: contents.py EXPECTED.json REPORT.json. EXPECTED has `packages` (name -> version), `cuda` (minor or null),
`targets` and `allow` (findings that are known). Exit code 1 and the findings on stderr when something is not as
it must be.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent / "site"))

from distributions import (
    altered_files,
    compare_with_lock,
    read_distributions,
    read_pruned,
    shared_files,
    unmet_requirements,
    wrong_tags,
)
from dropped import judge_dropped
from libraries import read_libraries, split_families, too_new_symbols
from torch_build import torch_build


def examine(site: Path, expected: dict[str, Any]) -> dict[str, Any]:
    """Run every check over a site-packages folder; the report has what was looked at and what was found."""
    distributions = read_distributions(site)
    libraries = read_libraries(site)
    pruning = json.loads(Path(expected["pruned"]).read_text("utf-8")) if expected["pruned"] else None
    altered, hashed_files, hashed_bytes = altered_files(
        distributions, read_pruned(site, pruning) if pruning else None
    )
    findings = [
        *compare_with_lock(distributions, expected["packages"]),
        *altered,
        *shared_files(distributions),
        *unmet_requirements(distributions),
        *wrong_tags(distributions),
        *too_new_symbols(
            libraries,
            os.confstr("CS_GNU_LIBC_VERSION") or "",
            Path("/usr/lib"),
            expected=any(not tag.endswith("-any") for found in distributions.values() for tag in found.tags),
        ),
        *split_families(libraries),
        *(judge_dropped(site, distributions, libraries, pruning) if pruning else ()),
    ]
    torch, torch_findings = torch_build(distributions, expected["cuda"], expected["targets"])
    findings += torch_findings
    known = set(expected["allow"])
    return {
        "packages": [
            {"name": name, "version": found.version, "files": len(found.files), "bytes": found.size}
            for name, found in sorted(distributions.items())
        ],
        "python": platform.python_version(),
        "hashed_files": hashed_files,
        "hashed_bytes": hashed_bytes,
        "libraries": len(libraries),
        "torch": torch,
        "pruned": pruning["totals"] if pruning else None,
        "allowed": sorted(known & set(findings)),
        "findings": sorted(set(findings) - known),
        "stale": sorted(known - set(findings)),
    }


def main() -> int:
    """Examine this interpreter's packages and write the report."""
    expected = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    site = Path(next(path for path in sys.path if path.endswith("site-packages")))
    report = examine(site, expected)
    Path(sys.argv[2]).write_text(json.dumps(report, indent=1, sort_keys=True), encoding="utf-8")
    print(
        f"contents: {len(report['packages'])} packages, {report['hashed_files']} files hashed, "
        f"{report['libraries']} libraries, {len(report['allowed'])} known findings"
    )
    for finding in report["findings"]:
        print(f"finding: {finding}", file=sys.stderr)
    for entry in report["stale"]:
        print(f"stale: the stack allows {entry!r}, which is not found any more: remove it", file=sys.stderr)
    return 1 if report["findings"] or report["stale"] else 0


if __name__ == "__main__":
    sys.exit(main())
