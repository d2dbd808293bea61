"""A batch of conversions on a Ray cluster. Ray places, retries and collects; each job is the same process as on one machine.

Every node needs this project with the convert extra, and OUT on a folder that all nodes share.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from typing import Any

from converters.batch import BatchJob, BatchResult, Runner, run_job
from toolkit.errors import BackendUnavailableError, UsageError

CPUS_PER_JOB = 2  # lowering takes one, the checkpoint's answers and the second recipe the other
KNOCK_SECONDS = 5.0
RETRIES = 2  # of a node that went away; a conversion that fails by itself is a result and not tried again


def on_ray(address: str) -> Runner:
    """A runner for the cluster at `address` (`auto`, `local`, or HOST:PORT).

    Raises:
        BackendUnavailableError: Ray is not installed.
        UsageError: There is no cluster at the address (when the runner is called).
    """
    try:
        import ray
    except ModuleNotFoundError as error:
        raise BackendUnavailableError(
            "a batch cannot be spread over machines here", why="Ray is not installed", fix="pip install 'ondevice-toolkit[batch]'"
        ) from error

    def run(jobs: Sequence[BatchJob]) -> Iterator[BatchResult]:
        _connect(ray, address)
        try:
            remote = ray.remote(num_cpus=_cpus(ray), max_retries=RETRIES)(run_job)
            waiting = [remote.remote(job) for job in jobs]
            while waiting:
                done, waiting = ray.wait(waiting, num_returns=1)
                yield ray.get(done[0])
        finally:
            ray.shutdown()

    return run


def _connect(ray: Any, address: str) -> None:
    _require_answer(address)
    try:
        ray.init(address=address, log_to_driver=True, logging_level="warning")
    except (ConnectionError, ValueError, RuntimeError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UsageError(f"no Ray cluster answers at {address}", why=why, fix="start one with: ray start --head") from error


def _require_answer(address: str) -> None:
    """Knock at HOST:PORT first: Ray itself goes on trying for a minute and then names only itself."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        return  # auto and local are Ray's own words
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise UsageError(f"no Ray cluster answers at {address}", why=str(error), fix="start one with: ray start --head") from error


def _cpus(ray: Any) -> float:
    """CPUs a job asks for: never more than the largest node has, or it would wait for ever."""
    largest = max((node["Resources"].get("CPU", 0.0) for node in ray.nodes() if node["Alive"]), default=1.0)
    return min(CPUS_PER_JOB, max(largest, 1.0))
