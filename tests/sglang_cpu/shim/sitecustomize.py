"""Let a torchvision wheel that was built for CUDA be imported beside a CPU torch.

Its compiled operators cannot load there, and one of its Python modules describes two of them, which would then not
exist. Declaring their signatures just before torchvision is imported is enough; nothing calls them here.
"""

from __future__ import annotations

import importlib.abc
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType


class _DeclareOperatorsFirst(importlib.abc.MetaPathFinder):
    """Finds nothing itself: acts once, when torchvision is looked for, and steps aside."""

    library: object = None  # the declarations live as long as this

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname == "torchvision":
            sys.meta_path.remove(self)
            self.library = _declare_operators()
        return None


def _declare_operators() -> object:
    import torch  # noqa: PLC0415 - not at every start of a Python process

    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library


_finder = _DeclareOperatorsFirst()
sys.meta_path.insert(0, _finder)
