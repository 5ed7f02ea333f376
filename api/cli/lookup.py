"""Models and GPU types by catalogue key, Hugging Face id, or a file of the user's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from api.cli.options import load_json

if TYPE_CHECKING:
    from replay.hardware.catalogue import Catalogue


def with_model(catalogue: Catalogue, text: str) -> tuple[Catalogue, str]:
    """The catalogue that holds the model, and its key. ``text``: a key, an id, or a path to a ``config.json``.

    Raises:
        SpecError: naming the nearest models, or the field that a config lacks.
    """
    path = Path(text)
    if path.suffix != ".json" and not path.is_dir():
        return catalogue, catalogue.model(text).key
    from replay.hardware.hf_config import model_from_config

    path = path / "config.json" if path.is_dir() else path
    config = load_json(path, "--model")
    name = config.get("_name_or_path")
    key = name if isinstance(name, str) and name else (path.parent.name if path.name == "config.json" else path.stem)
    spec = model_from_config(config, key or "model", str(path))
    return catalogue.with_entries(models=(spec,)), spec.key


def with_gpus(catalogue: Catalogue, texts: tuple[str, ...]) -> tuple[Catalogue, tuple[str, ...]]:
    """The catalogue that holds the GPU types, and their keys. Each text: a key, an alias, or a path to a JSON entry.

    Raises:
        SpecError: naming the nearest GPU types.
    """
    from replay.hardware.entries import GpuType

    keys = []
    for text in texts:
        if text.endswith(".json"):
            gpu = GpuType.model_validate({"source": text, **load_json(Path(text), "--gpu")})
            catalogue = catalogue.with_entries(gpus=(gpu,))
            keys.append(gpu.key)
        else:
            keys.append(catalogue.gpu(text).key)
    if not keys:
        raise click.UsageError("--gpu names no GPU type")
    return catalogue, tuple(dict.fromkeys(keys))
