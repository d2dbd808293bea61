from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolkit.machine_root import machine_root
from toolkit.device.accelerators import Accelerator, probe_accelerators
from toolkit.device.isa import NAMES, cpu_model, machine_name, probe_isa

PI_4 = "Features\t: fp asimd evtstrm crc32 cpuid\nCPU part\t: 0xd08\n"
PI_5 = "Features\t: fp asimd evtstrm aes pmull sha1 sha2 crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp\nCPU part\t: 0xd0b\n"
LAPTOP = "model name\t: AMD Ryzen 9\nflags\t\t: fpu sse2 avx f16c fma avx2 avx512f avx512_vnni\n"


@pytest.mark.parametrize(
    ("cpuinfo", "machine", "isa"),
    [
        (PI_4, "aarch64", ("neon",)),
        (PI_5, "arm64", ("neon", "lse", "fp16", "dotprod")),
        (LAPTOP, "x86_64", ("avx", "avx2", "fma", "f16c", "avx512", "avx512-vnni")),
    ],
)
def test_instruction_sets_have_one_name_on_every_system(tmp_path: Path, cpuinfo: str, machine: str, isa: tuple[str, ...]) -> None:
    root = machine_root(tmp_path, files={"proc/cpuinfo": cpuinfo})
    assert probe_isa(root, machine=machine) == isa
    assert set(isa) <= set(NAMES)


def test_what_only_the_big_cores_have_does_not_count(tmp_path: Path) -> None:
    root = machine_root(tmp_path, files={"proc/cpuinfo": PI_5 + "\n" + PI_4})
    assert probe_isa(root, machine="aarch64") == ("neon",)


def test_nothing_is_said_where_nothing_is_told(tmp_path: Path) -> None:
    assert probe_isa(tmp_path) is None


def test_a_processor_has_a_name_for_people(tmp_path: Path) -> None:
    assert cpu_model(machine_root(tmp_path / "a", files={"proc/cpuinfo": LAPTOP})) == "AMD Ryzen 9"
    assert "0xd08" in cpu_model(machine_root(tmp_path / "b", files={"proc/cpuinfo": PI_4}))
    assert cpu_model(tmp_path)


def test_machines_are_spelled_one_way() -> None:
    assert [machine_name(name) for name in ("AMD64", "x86_64", "arm64", "aarch64", "riscv64")] == [
        "x86_64",
        "x86_64",
        "aarch64",
        "aarch64",
        "riscv64",
    ]


def test_accelerators_are_found_by_their_drivers_each_once(tmp_path: Path) -> None:
    files = {
        "dev/kgsl-3d0": "",
        "dev/apex_0": "",
        "dev/apex_1": "",
        "sys/class/drm/renderD128/device/vendor": "0x8086\n",
        "sys/class/drm/renderD129/device/uevent": "DRIVER=panfrost\nOF_NAME=gpu\n",
        "sys/class/accel/accel0/device/vendor": "0x8086\n",
    }
    assert set(probe_accelerators(machine_root(tmp_path, files=files))) == {
        Accelerator("gpu", "Adreno"),
        Accelerator("gpu", "Intel"),
        Accelerator("gpu", "panfrost"),
        Accelerator("npu", "Coral Edge TPU"),
        Accelerator("npu", "Intel"),
    }


def test_a_machine_without_accelerators_has_none(tmp_path: Path) -> None:
    assert probe_accelerators(machine_root(tmp_path)) == ()
