"""Make the CUDA toolkit of the wheels usable as CUDA_HOME: the names that compilers and linkers look for.

The wheels bring `lib/libcudart.so.13` and no `lib64`, while nvcc, torch and FlashInfer link
with `-L$CUDA_HOME/lib64 -lcudart`.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path


def link_names(lib: Path) -> dict[str, str]:
    """Development names (`libcudart.so`) of versioned libraries, where they are missing."""
    links = {}
    for path in sorted(lib.glob("lib*.so.*")):
        name = re.sub(r"\.so\.[0-9.]+$", ".so", path.name)
        if not (lib / name).exists():
            links[name] = path.name
    return links


def main() -> None:
    """Create the links below the directory that is given."""
    home = Path(sys.argv[1])
    lib = home / "lib"
    links = link_names(lib)
    if not links:
        sys.exit(f"no CUDA libraries under {lib}: the toolkit wheels are not installed")
    for name, target in links.items():
        (lib / name).symlink_to(target)
    if not (home / "lib64").exists():
        (home / "lib64").symlink_to("lib")
    epoch = int(os.environ["EPOCH"])
    for path in (*(lib / name for name in links), home / "lib64", lib, home):
        os.utime(path, (epoch, epoch), follow_symlinks=False)


if __name__ == "__main__":
    main()
