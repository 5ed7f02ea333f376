"""The catalogue: GPU types, model specs and prices, shipped as CSV files and extended by users.

Lookups take a key, an alias or a Hugging Face id in any case; a near miss names the nearest entries.
"""

from __future__ import annotations

import csv
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from typing import TypeVar

from replay.errors import FieldError, SpecError
from replay.hardware.entries import Entry, GpuType, ModelSpec, Price
from replay.hardware.names import gpu_candidates, model_forms, normal, parse_model_name
from replay.specs import PriceFilter

CATALOGUE_DATE = "2026-11-29"
"""Day of the last change to the shipped files; part of the version."""

_FILES = ("gpus.csv", "models.csv", "prices.csv")
_LIST_FIELDS = {"aliases", "unquantized"}
EntryT = TypeVar("EntryT", bound=Entry)


@dataclass(frozen=True)
class Catalogue:
    """GPU types and models by key, prices in file order, and a version that changes with any content.

    User entries override shipped ones of the same key.
    """

    gpus: dict[str, GpuType]
    models: dict[str, ModelSpec]
    prices: tuple[Price, ...]
    version: str
    _gpu_names: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)
    _model_names: dict[str, tuple[str, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(
            self, "_gpu_names", _index((g.key, (normal(n),)) for g in self.gpus.values() for n in (g.key, *g.aliases))
        )
        names = ((m.key, model_forms(n)) for m in self.models.values() for n in (m.key, *m.aliases))
        object.__setattr__(self, "_model_names", _index(names))

    def with_entries(
        self, gpus: Iterable[GpuType] = (), models: Iterable[ModelSpec] = (), prices: Iterable[Price] = ()
    ) -> Catalogue:
        """A new catalogue with these entries added; the same key replaces. A price may name its GPU by any spelling.

        Raises:
            SpecError: a price names an unknown GPU type.
        """
        added = (tuple(gpus), tuple(models), tuple(prices))
        digest = hashlib.sha256(self.version.encode())
        for entries in added:
            for entry in entries:
                digest.update(entry.model_dump_json().encode())
        if not any(added):
            return self
        replaced = {price.id for price in added[2]}
        kept = tuple(price for price in self.prices if price.id not in replaced)
        merged = Catalogue(
            gpus={**self.gpus, **{g.key: g for g in added[0]}},
            models={**self.models, **{m.key: m for m in added[1]}},
            prices=kept,
            version=f"{self.version.split('+')[0]}+{digest.hexdigest()[:12]}",
        )
        own = tuple(price.model_copy(update={"gpu": merged.gpu(price.gpu).key}) for price in added[2])
        return replace(merged, prices=(*own, *kept))

    def gpu(self, key: str) -> GpuType:
        """The GPU type of this key, alias or common spelling.

        Raises:
            SpecError: ``catalogue.unknown_gpu`` with the nearest names, ``catalogue.ambiguous_gpu`` with the choices.
        """
        for candidate in gpu_candidates(key):
            found = self._gpu_names.get(candidate, ())
            if len(found) == 1:
                return self.gpus[found[0]]
            if found:
                raise _ambiguous("gpu", key, found)
        partial = tuple(k for k in self.gpus if normal(k).startswith(normal(key)) and len(normal(key)) > 1)
        if len(partial) > 1:
            raise _ambiguous("gpu", key, partial)
        raise _unknown("gpu", key, self._gpu_names)

    def model(self, key: str) -> ModelSpec:
        """The model of this key, alias or Hugging Face id.

        Instruction-tuned and base siblings share an architecture, and a quantised repack (``...-FP8-dynamic``,
        ``...-AWQ``) is its base model with another weight format; the spec returned says so in its notes.

        Raises:
            SpecError: ``catalogue.unknown_model`` with the nearest names, or ``catalogue.ambiguous_model``.
        """
        name = parse_model_name(key)
        for spelling in name.spellings:
            found = self._model_names.get(spelling, ())
            if len(found) == 1:
                return _as_asked(self.models[found[0]], key, spelling, name.weight_dtype)
            if found:
                raise _ambiguous("model", key, found)
        raise _unknown("model", key, self._model_names)

    def offers(self, gpu_key: str, price_filter: PriceFilter) -> tuple[Price, ...]:
        """Offers of this GPU type that pass the filter, cheapest per GPU-hour first (ties by id).

        The user's own price in the filter is not an offer: the planner takes it before it asks here.

        Raises:
            SpecError: the GPU type is unknown.
        """
        gpu = self.gpu(gpu_key).key
        wanted = [
            price
            for price in self.prices
            if price.gpu == gpu
            and price.term == price_filter.term
            and _same(price.provider, price_filter.provider)
            and _same(price.region, price_filter.region)
        ]
        return tuple(sorted(wanted, key=lambda price: (price.usd_per_gpu_hour, price.id)))


@cache
def shipped_catalogue() -> Catalogue:
    """The catalogue inside the package; read once per process."""
    texts = {name: files("replay.hardware").joinpath("data", name).read_text("utf-8") for name in _FILES}
    digest = hashlib.sha256("\0".join(texts[name] for name in _FILES).encode()).hexdigest()
    return Catalogue(
        gpus={gpu.key: gpu for gpu in _rows(texts["gpus.csv"], GpuType)},
        models={model.key: model for model in _rows(texts["models.csv"], ModelSpec)},
        prices=tuple(_rows(texts["prices.csv"], Price)),
        version=f"{CATALOGUE_DATE}-{digest[:12]}",
    )


def _rows(text: str, kind: type[EntryT]) -> list[EntryT]:
    """Entries of a CSV file whose columns are the entry's fields; an empty cell is an absent field, lists use ``;``."""
    entries = []
    for row in csv.DictReader(text.splitlines()):
        values: dict[str, object] = {name: cell for name, cell in row.items() if cell}
        for name in _LIST_FIELDS & values.keys():
            values[name] = tuple(part.strip() for part in str(values[name]).split(";"))
        entries.append(kind.model_validate(values))
    return entries


def _index(names: Iterable[tuple[str, tuple[str, ...]]]) -> dict[str, tuple[str, ...]]:
    index: dict[str, tuple[str, ...]] = {}
    for key, spellings in names:
        for spelling in spellings:
            known = index.get(spelling, ())
            if key not in known:
                index[spelling] = (*known, key)
    return index


def _as_asked(spec: ModelSpec, asked: str, spelling: str, implied: str | None) -> ModelSpec:
    """The spec itself where the name is its own; else a copy under the name asked for, saying what it stands on."""
    own = {form for name in (spec.key, *spec.aliases) for form in model_forms(name)[:2]}
    if spelling in own and implied is None:
        return spec
    if spelling in model_forms(asked)[:2]:
        return spec
    note = f"architecture of {spec.key}"
    update: dict[str, object] = {"key": asked.strip(), "aliases": ()}
    if implied is not None:
        update["weight_dtype"] = implied
        note += f"; weights in {implied}, read from the name"
    update["notes"] = f"{spec.notes}; {note}" if spec.notes else note
    return spec.model_copy(update=update)


def _same(value: str, wanted: str | None) -> bool:
    return wanted is None or value.casefold() == wanted.casefold()


def _ambiguous(kind: str, asked: str, choices: tuple[str, ...]) -> SpecError:
    cure = "choose one of " + ", ".join(sorted(choices))
    return SpecError(
        f"catalogue.ambiguous_{kind}",
        f"{asked!r} names several entries: {cure}",
        [FieldError(cure, field=kind, cure=cure)],
    )


def _unknown(kind: str, asked: str, names: dict[str, tuple[str, ...]]) -> SpecError:
    tail = normal(asked.rsplit("/", 1)[-1])
    near = get_close_matches(normal(asked), names, n=4, cutoff=0.5) + get_close_matches(tail, names, n=3, cutoff=0.55)
    nearest = list(dict.fromkeys(key for name in near for key in names[name]))[:4]
    word = "GPU type" if kind == "gpu" else "model"
    cure = f"nearest: {', '.join(nearest)}" if nearest else f"list the catalogue's {word}s for the known keys"
    if kind == "model":
        cure += (
            "; or bring its config.json: as --model on the command line, by POST /v1/model-specs or the catalogue page"
        )
    return SpecError(
        f"catalogue.unknown_{kind}", f"unknown {word} {asked!r}; {cure}", [FieldError(cure, kind, cure=cure)]
    )
