"""Options and model configs that the last version saved, in today's names.

There, ``--quantizer ddcl`` was two classes: DDCLEMCodebook with the recipe tokens, DDCLCodebook
with the recipe paper. ``--decay`` was the hard codebooks' alone, and every run saved it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .quantizers import read_quantizers

# What a model config said for every quantizer.
SHARED = ("commitment", "usage_weight", "balance", "decay", "restart_threshold")
SOFT_DECAY = 0.9
# What a run with the recipe paper meant where it gave nothing.
PAPER = {"commitment": 0.25, "usage_weight": 0.05}
# What that class had not got yet.
PLAIN = {"noise": 0.0, "pull": 0.0}


def migrate_config(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The flat options of a run in today's names.

    Args:
        saved: What config.json or a checkpoint holds; options of this version stay as they are.

    Example:
        >>> migrate_config({"quantizer": "ddcl", "recipe": "paper", "decay": 0.99})
        {'quantizer': 'ddcl', 'commitment': 0.25, 'usage_weight': 0.05, 'temperature_end': 1.3, \
'noise': 0.0, 'pull': 0.0}
    """
    flat = dict(saved)
    recipe = flat.pop("recipe", None)
    if recipe is None:
        return flat
    quantizer = flat.get("quantizer", "ddcl")
    if quantizer == "ddcl" and recipe == "tokens":
        quantizer = "ddcl-em"
        flat.setdefault("balance", 0.0)  # runs of before there was balance go on without
    elif quantizer == "ddcl":
        meant = dict(PAPER)
        if flat.get("temperature_mode", "codes") == "codes":
            meant["temperature_end"] = min(1.3, flat.get("codebook_size", 512))
        given = {name: value for name, value in flat.items() if value is not None}
        flat |= meant | {name: given[name] for name in meant if name in given} | PLAIN
    return _own(flat | {"quantizer": quantizer}, soft_decay=None)


def migrate_model_config(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The model config of a checkpoint of the last version, for today's constructors.

    Args:
        saved: Its keys of all quantizers are reduced to those of its own.
    """
    flat = dict(saved)
    if flat["quantizer"] == "ddcl-em":
        flat.setdefault("balance", 0.0)
    elif flat["quantizer"] == "ddcl":
        flat |= PLAIN
    return _own(flat, soft_decay=SOFT_DECAY)


def _own(flat: dict[str, Any], soft_decay: float | None) -> dict[str, Any]:
    """Keep only the shared options that the quantizer has."""
    quantizer = read_quantizers()[flat["quantizer"]]
    kept = {n: v for n, v in flat.items() if n not in SHARED or n in quantizer.options}
    if quantizer.soft:
        kept["decay"] = soft_decay
    return {n: v for n, v in kept.items() if n not in SHARED or v is not None}
