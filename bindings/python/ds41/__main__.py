"""python -m ds41 info: what this installation offers, as the library tells it."""
from __future__ import annotations

import argparse
import ctypes
import os
import platform
import re
import sys
from typing import List, Optional

import ds41


def _tiny_config() -> ds41.Config:
    """The smallest geometry that a model accepts: asking whether a backend runs here takes a model."""
    return ds41.Config(
        n_layers=1, dim=32, n_heads=1, head_dim=32, rope_head_dim=2, q_lora_rank=32, o_groups=1, o_lora_rank=32,
        window_size=1, index_n_heads=1, index_head_dim=32, index_topk=1, norm_eps=1e-6, rope_theta=10000.0,
        compress_rope_theta=10000.0, rope_factor=1.0, beta_fast=32.0, beta_slow=1.0, max_seq_len=1, compress_ratios=[0],
    )  # fmt: skip


def _instruction_sets(model: ds41.Model) -> Optional[str]:
    """Those that the cpu backend can use here, best first. The library lists them when it is asked for one that there
    is not."""
    name = "DS41_CPU_TARGET"
    before = os.environ.get(name)
    os.environ[name] = "?"
    try:
        ds41.Context(model, n_threads=1).close()
    except ds41.NoBackendError as error:
        found = re.search(r"of: (.+)$", error.message)
        return found.group(1) if found else None
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before
    return None


def _describe_backend(name: str) -> str:
    try:
        with ds41.Model(_tiny_config(), backend=name) as model:
            sets = _instruction_sets(model) if name == "cpu" else None
    except ds41.Error as error:
        return f"does not run here: {error}"
    return "runs here" + (f", instruction sets {sets}" if sets else "")


def _n_cpus() -> int:
    """CPUs that the process may run on, as the library counts them."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _nvidia_devices() -> str:
    """What the driver itself says, whether or not the backend can use it."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        count, name = ctypes.c_int(), ctypes.create_string_buffer(128)
        if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value == 0:
            return "none"
        names = []
        for index in range(count.value):
            known = driver.cuDeviceGetName(name, len(name), index) == 0
            names.append(name.value.decode(errors="replace") if known else f"number {index}")
        return ", ".join(names)
    except (OSError, AttributeError):
        return "none, and no driver"


def info() -> List[str]:
    lines = [
        f"libds41 {ds41.version()}, package {ds41.__version__}, Python {platform.python_version()}",
        f"host: {platform.machine()}, {_n_cpus()} CPUs for this process",
    ]
    lines.append(f"NVIDIA devices: {_nvidia_devices()}")
    lines += [f"backend {name}: {_describe_backend(name)}" for name in ds41.backends()]
    with ds41.Model(_tiny_config()) as model:
        lines.append(f"chosen by default: {model.backend}")
    forced = os.environ.get("DS41_CPU_TARGET")
    if forced:
        lines.append(f"DS41_CPU_TARGET is set: {forced}")
    return lines


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m ds41", description="libds41's Python package")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("info", help="print version, backends, devices and CPU features")
    parser.parse_args(arguments)
    print("\n".join(info()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
