"""Prune what an image layer installed: prune.py POLICY.json TREE REPORT.json, in the RUN of the installation.

A layer of its own would keep the unpruned files below it. `tooling/`, the part of the toolkit that needs no
other package, lies beside this file. The report of the layers before is carried on, so that after the last
layer it says of every file what its wheel had and what is there. A layer without device code is no error here;
that nothing was pruned in the whole image is found from the last report (`tooling.prune.run.check_whole`).
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tooling.census.reader.compatibility import parse
from tooling.prune.containers import Policy
from tooling.prune.inplace import PruneError, load_report, prune, save_report


def main() -> None:
    """Prune, write the report, and give it the time that all files of the layer have."""
    policy_file, tree, report = sys.argv[1:4]
    asked = json.loads(Path(policy_file).read_text("utf-8"))
    patterns = {name: tuple(asked[name]) for name in Policy._fields if name != "targets"}
    policy = Policy(tuple(parse(target) for target in asked["targets"]), **patterns)
    try:
        document = prune([tree], policy, load_report(report), partial=True, progress=print)
    except PruneError as error:
        sys.exit(f"error: {error}")
    save_report(report, document)
    epoch = int(os.environ["EPOCH"])
    for path in (Path(report), Path(report).parent):
        os.utime(path, (epoch, epoch))
    print(json.dumps(document["totals"]))


if __name__ == "__main__":
    main()
