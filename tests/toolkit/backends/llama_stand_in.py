"""Stands in for the program llama-server: takes its arguments and runs llama.cpp's real server, out of the xllamacpp wheel."""

from __future__ import annotations

import os
import sys
import time


def main(arguments: list[str]) -> None:
    import xllamacpp

    given = dict(zip(arguments[::2], arguments[1::2], strict=True))
    params = xllamacpp.CommonParams()
    params.model.path, params.port, params.n_ctx = given["--model"], int(given["--port"]), int(given["--ctx-size"])
    params.n_parallel, params.warmup, params.cpuparams.n_threads = int(given["--parallel"]), False, int(given["--threads"])
    params.api_keys = [os.environ["LLAMA_API_KEY"]]
    assert given["--host"] == "127.0.0.1"
    server = xllamacpp.Server(params)
    print("listening on", server.listening_address, file=sys.stderr, flush=True)
    time.sleep(600)


if __name__ == "__main__":
    main(sys.argv[1:])
