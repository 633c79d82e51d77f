"""The weight files of a model folder, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from pickle import UnpicklingError

import torch
from safetensors import safe_open
from torch import Tensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED = "pytorch_model.bin"


def list_weight_files(folder: Path) -> list[Path]:
    """The files that together hold the model once: those of the index, else the single one, else the pickled one.

    Raises FileNotFoundError where there are none, or where one that the index names is missing.
    """
    if (folder / INDEX).is_file():
        names = sorted(set(json.loads((folder / INDEX).read_text())["weight_map"].values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise FileNotFoundError(f"{folder} is incomplete: {missing[0]} is missing. Download the model again.")
        return [folder / name for name in names]
    for name in (SINGLE, PICKLED):
        if (folder / name).is_file():
            return [folder / name]
    raise FileNotFoundError(f"{folder} holds no {SINGLE} and no {PICKLED}: it has no weights that can be read.")


def iterate_tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    """Every tensor with its name, as it is stored. A pickled file is read as tensors only: it can run no code.

    Raises ValueError where a pickled file holds anything else.
    """
    for file in list_weight_files(folder):
        if file.suffix == ".bin":
            yield from _load_pickled(file).items()
            continue
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118  not a dict
                yield name, opened.get_tensor(name)


def _load_pickled(file: Path) -> dict[str, Tensor]:
    try:
        tensors: dict[str, Tensor] = torch.load(file, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise ValueError(f"{file} holds more than tensors and is not opened; give a model with safetensors.") from error
    return tensors
