#!/bin/sh
# On the GPU machine: unpack what assemble.py packed (once), and run the chain with the python3 that has torch.
# Standard library and tar only, since nothing else is there before it is unpacked.
# PYTHON: that interpreter; OUT: folder for the results; SITE: where the packages are unpacked.
set -eu
cd "$(dirname "$0")/../../.."
CARRIED=$PWD/.h200
SITE=${SITE:-/tmp/engine-site}
OUT=${OUT:-build/gpu-engine}
mkdir -p "$OUT"
# The GPU is idle while the packages are unpacked: the moment for the probe.
"${PYTHON:-python3}" images/runtime/probe.py --json --no-collective > "$OUT/probe.json" &
probe=$!
if ! [ -f "$SITE/complete" ]; then
    mkdir -p "$SITE"
    (cd "$CARRIED" && sha256sum --check --quiet sha256sums)
    cat "$CARRIED"/environment.tar.xz.* | tar -xJ --ignore-zeros -C "$SITE"
    touch "$SITE/complete"
fi
code=0
wait "$probe" || code=$?
echo "probe: exit code $code" >&2
CACHES=
[ -f "$CARRIED/caches.tar.xz" ] && CACHES="--caches $CARRIED/caches.tar.xz"
export PYTHONPATH="$SITE/site:$PWD" XDG_CACHE_HOME="$SITE/cache" PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
export BLACKWELL_STACKS_ROOT="$PWD"
# shellcheck disable=SC2086  # an empty CACHES is no argument
exec "${PYTHON:-python3}" -m tests.gpu.engine.run --site "$SITE/site" --out "$OUT" \
    --assembled "$CARRIED/assembled.json" $CACHES "$@"
