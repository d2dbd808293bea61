"""A batch on a real Ray cluster of two nodes, alone in a network and process namespace of its own."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from converters import cli
from tests.converters.tiny_checkpoints import save_hf, tiny_model

PORT = 6399
START = "--num-cpus 1 --object-store-memory 100000000 --disable-usage-stats"
SCRIPT = """
set -e
ip link set lo up
export RAY_ENABLE_UV_RUN_RUNTIME_ENV=0
export ONDEVICE_TOOLKIT_CACHE={temp}/cache-1
{python} -m ray.scripts.scripts start --head --port {port} --node-ip-address 127.0.0.1 \\
  --include-dashboard false --temp-dir {temp} {start} >&2
export ONDEVICE_TOOLKIT_CACHE={temp}/cache-2
{python} -m ray.scripts.scripts start --address 127.0.0.1:{port} {start} >&2
export ONDEVICE_TOOLKIT_CACHE={temp}/cache-of-the-caller
{python} -m converters.cli --batch {jobs} --ray 127.0.0.1:{port} --json
"""


def require_namespaces() -> None:
    tools = [tool for tool in ("unshare", "ip") if shutil.which(tool) is None]
    if tools:
        pytest.skip(f"no {tools[0]} here: the cluster is started in a namespace of its own")
    if subprocess.run(["unshare", "-rnpf", "--mount-proc", "ip", "link", "set", "lo", "up"], capture_output=True).returncode:
        pytest.skip("this system allows no namespaces: the cluster is started in one of its own")


def test_jobs_run_on_two_nodes_and_end_in_one_result(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra batch)")
    require_namespaces()
    model = save_hf(tiny_model("llama-tied", hidden_size=64, max_position_embeddings=512), tmp_path / "tiny")
    jobs = tmp_path / "jobs.toml"
    job = f'[[job]]\nto = ["mlx"]\ncontext = 256\nno-verify = true\nout = "{tmp_path / "out"}"\n'
    # Two that take a while first: a node has one CPU, so both nodes have one to do.
    wanted = ((model, "fp32"), (model, "fp16"), (tmp_path / "none", "fp32"))
    jobs.write_text("".join(f'{job}source = "{source}"\nrecipe = ["{recipe}"]\n' for source, recipe in wanted))
    short = tmp_path_factory.mktemp("r")  # Ray's sockets lie there, and a socket's path may have 107 characters
    script = SCRIPT.format(python=sys.executable, port=PORT, temp=short, start=START, jobs=jobs)
    command = ["unshare", "-rnpf", "--mount-proc", "--kill-child", "bash", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=Path(__file__).parents[2])
    result = json.loads(done.stdout)
    assert sorted(job["exit_code"] == 0 for job in result["jobs"]) == [False, True, True], done.stderr[-2000:]
    assert sorted(bundle["name"] for bundle in result["bundles"]) == ["tiny-mlx-fp16", "tiny-mlx-fp32"]
    assert sorted(path.name for path in (tmp_path / "out").glob("[!.]*")) == ["tiny-mlx-fp16", "tiny-mlx-fp32"]
    assert done.returncode != 0 and "3 of 3 jobs" in done.stderr
    worked = [(short / f"cache-{where}" / "convert").is_dir() for where in ("1", "2", "of-the-caller")]
    assert worked == [True, True, False], "each node has a cache of its own, so a conversion shows where it ran"


def test_an_address_where_nobody_answers_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("ray", reason="Ray is not installed (extra batch)")
    (tmp_path / "jobs.toml").write_text('[[job]]\nsource = "a"\n')
    assert cli.main(["--batch", str(tmp_path / "jobs.toml"), "--ray", "127.0.0.1:1"]) == 2
    assert "no Ray cluster answers at 127.0.0.1:1" in capsys.readouterr().err
