"""The GPUs of this machine, as SGLang's own Python sees them."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

# In a process of its own: asking makes a CUDA context, which would keep some of the memory asked about.
_ASK = """
import json, os, torch
visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
def describe(i):
    free, total = torch.cuda.mem_get_info(i)
    device = visible[i] if visible else str(i)
    name = torch.cuda.get_device_name(i)
    return {"index": i, "name": name, "total_bytes": total, "free_bytes": free, "device": device}
print(json.dumps([describe(i) for i in range(torch.cuda.device_count())]))
"""


@dataclass(frozen=True)
class Gpu:
    """One GPU now. `index` counts the visible ones, `device` is its name in CUDA_VISIBLE_DEVICES."""

    index: int
    name: str
    total_bytes: int
    free_bytes: int
    device: str


def read_gpus(python: Path) -> tuple[Gpu, ...]:
    """The visible GPUs; none where there is no CUDA. Raises RuntimeError where that Python cannot say."""
    answer = subprocess.run([str(python), "-c", _ASK], capture_output=True, text=True, timeout=120, check=False)
    if answer.returncode != 0:
        last = (answer.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"{python} cannot list the GPUs: {last}")
    return tuple(Gpu(**entry) for entry in json.loads(answer.stdout.strip().splitlines()[-1]))
