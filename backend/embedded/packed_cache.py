"""A packed target on disk: built once per dtype, CPU and torch, then read in a second or two."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from backend.embedded.config import RopeScaling, TargetConfig
from backend.embedded.linear import Dtype, Linear, restore
from backend.embedded.target import Target, TargetLayer

FORMAT = "2"  # of the packed file; raise it when its contents change

LINEARS = ("qkv", "output", "gate_up", "down")
NORMS = ("input_norm", "post_norm", "query_norm", "key_norm")


def packed_path(folder: Path, source: str, dtype: Dtype) -> Path:
    """int4 packing depends on the CPU's vector width and may change with torch, so both are in the name."""
    cpu = torch.backends.cpu.get_cpu_capability().replace(" ", "")
    version = torch.__version__.split("+")[0]
    return folder / f"{source}-{dtype}-{cpu}-torch{version}-v{FORMAT}.safetensors"


def save_packed(path: Path, target: Target) -> None:
    """Written beside its place, then moved."""
    tensors: dict[str, Tensor] = {"embedding": target.embedding, "final_norm": target.final_norm}
    tensors |= _named("head", target.head.tensors())
    for index, layer in enumerate(target.layers):
        for name in LINEARS:
            tensors |= _named(f"layers.{index}.{name}", getattr(layer, name).tensors())
        for name in NORMS:
            norm = getattr(layer, name)
            if norm is not None:
                tensors[f"layers.{index}.{name}"] = norm
    # bf16 and fp32 share the embedding with a tied head; safetensors refuses shared memory.
    tensors = {name: tensor.clone() if name.startswith("head.") else tensor for name, tensor in tensors.items()}
    partial = path.with_name(path.name + ".partial")
    save_file(tensors, partial, metadata={"config": json.dumps(asdict(target.config)), "dtype": target.dtype})
    partial.replace(path)


def load_packed(path: Path) -> Target | None:
    """The packed target, or None where there is none or it is damaged (then it is built anew)."""
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a dict
    except (SafetensorError, OSError):
        return None
    config = _read_config(json.loads(metadata["config"]))
    layers = [_read_layer(tensors, f"layers.{index}.") for index in range(config.num_layers)]
    dtype: Dtype = metadata["dtype"]
    return Target(config, dtype, layers, tensors["embedding"], tensors["final_norm"], _read_linear(tensors, "head"))


def _read_layer(tensors: Mapping[str, Tensor], prefix: str) -> TargetLayer:
    return TargetLayer(
        input_norm=tensors[prefix + "input_norm"],
        qkv=_read_linear(tensors, prefix + "qkv"),
        output=_read_linear(tensors, prefix + "output"),
        post_norm=tensors[prefix + "post_norm"],
        gate_up=_read_linear(tensors, prefix + "gate_up"),
        down=_read_linear(tensors, prefix + "down"),
        query_norm=tensors.get(prefix + "query_norm"),
        key_norm=tensors.get(prefix + "key_norm"),
    )


def _read_linear(tensors: Mapping[str, Tensor], prefix: str) -> Linear:
    dot = prefix + "."
    return restore({name.removeprefix(dot): tensor for name, tensor in tensors.items() if name.startswith(dot)})


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def _read_config(raw: Mapping[str, Any]) -> TargetConfig:
    scaling = raw["rope_scaling"]
    fields = dict(raw) | {"taps": tuple(raw["taps"]), "rope_scaling": RopeScaling(**scaling) if scaling else None}
    return TargetConfig(**fields)
