"""Serve a GGUF file with llama.cpp's own HTTP server, which comes as the wheel xllamacpp.

The wheel has no command of its own; this is the least that makes one, with the names that SGLang uses.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path


def parse(argv: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="llama_server", description=__doc__, allow_abbrev=False)
    parser.add_argument(
        "--model-path", type=Path, required=True, help="a GGUF file, or a folder with exactly one"
    )
    parser.add_argument("--served-model-name", default="", help="default: name of the file")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=30000)
    parser.add_argument("--context-length", type=int, default=9216, help="tokens for each running request")
    parser.add_argument("--max-running-requests", type=int, default=4)
    parser.add_argument("--http-threads", type=int, default=72, help="must exceed the requests that wait")
    parser.add_argument("--threads", type=int, default=0, help="0: as many as llama.cpp takes")
    return parser.parse_args(argv)


def gguf_of(path: Path) -> Path:
    """The model file: the path itself, or the one GGUF file of a folder."""
    files = sorted(path.glob("*.gguf")) if path.is_dir() else [path]
    if len(files) != 1 or not files[0].is_file():
        found = ", ".join(file.name for file in files) or "none"
        sys.exit(
            f"error: one GGUF file is needed at {path}, found {found}\n  to do: name the file by --model-path"
        )
    return files[0]


def main() -> None:
    """Serve until SIGTERM or SIGINT."""
    options = parse(sys.argv[1:])
    model = gguf_of(options.model_path)
    import xllamacpp  # noqa: PLC0415  # a wrong argument is told before the engine is loaded

    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {options.served_model_name or model.stem}
    params.hostnames, params.port = [options.host], options.port
    params.n_ctx = options.context_length * options.max_running_requests
    params.n_parallel = options.max_running_requests
    params.n_threads_http = options.http_threads
    params.use_jinja, params.endpoint_metrics, params.warmup = True, True, False
    if options.threads:
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    server = xllamacpp.Server(params)
    print(f"llama_server: {model} at {server.listening_address}", flush=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    while True:
        signal.pause()


if __name__ == "__main__":
    main()
