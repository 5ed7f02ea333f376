"""Lets the scheduler of an engine's release run without what surrounds it: no GPU, no model, no torch.

Schedulers are plain Python, but their modules import half of the engine for types and defaults. ``open_release`` makes
a release importable from where its wheel was unpacked; every module outside ``kept``, and every module that the machine
lacks, becomes a stand-in: any name in it is a class that accepts all and does nothing.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any


class _Inert(type):
    """Of classes that stand for anything: types, bases, decorators, constants."""

    def __new__(mcs, name: str, bases: tuple[type, ...], names: dict[str, Any], **_: object) -> _Inert:
        return super().__new__(mcs, name, bases, names)

    def __init__(cls, name: str, bases: tuple[type, ...], names: dict[str, Any], **_: object) -> None:
        super().__init__(name, bases, names)
        cls.is_stand_in = names.get("is_stand_in", False)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __bool__(cls) -> bool:
        return not cls.is_stand_in

    def __getitem__(cls, _: object) -> _Inert:
        return cls

    def __or__(cls, _: object) -> Any:
        return cls

    def __ror__(cls, _: object) -> Any:
        return cls


def _decorates(given: tuple[Any, ...]) -> bool:
    return len(given) == 1 and callable(given[0]) and not getattr(given[0], "is_stand_in", False)


class StandIn(metaclass=_Inert):
    """Accepts every call. As a decorator it returns what it decorates."""

    is_stand_in = True

    def __new__(cls, *given: Any, **_: Any) -> Any:
        return given[0] if cls.is_stand_in and _decorates(given) else super().__new__(cls)

    def __init__(self, *_: Any, **named: Any) -> None:
        self.__dict__.update(named)

    def __call__(self, *given: Any, **_: Any) -> Any:
        return given[0] if _decorates(given) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn

    def __bool__(self) -> bool:
        return not type(self).is_stand_in

    def __iter__(self) -> Any:
        return iter(())

    def __enter__(self) -> StandIn:
        return self

    def __exit__(self, *_: object) -> None:
        return None


class _Module(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        made = _Inert(name, (StandIn,), {"is_stand_in": True})
        setattr(self, name, made)
        return made


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = _Module(spec.name)
        module.__path__ = []
        return module

    def exec_module(self, module: ModuleType) -> None:
        """A stand-in runs nothing."""


class _Finder(importlib.abc.MetaPathFinder):
    """Stands in for modules of ``package`` outside ``kept``; without a package, for whole packages it is asked for."""

    def __init__(self, package: str = "", kept: Sequence[str] = ()) -> None:
        self.package, self.kept = package, kept

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        top = name.split(".")[0]
        if top in sys.stdlib_module_names or self.package not in ("", top):
            return None
        parent = name.rpartition(".")[0]
        if parent and not self.package and not isinstance(sys.modules[parent], _Module):
            return None
        if any(name == keep or name.startswith(f"{keep}.") for keep in self.kept):
            return None
        return importlib.machinery.ModuleSpec(name, _Loader(), is_package=True)


def open_release(root: Path, package: str, kept: Sequence[str], absent: Sequence[str] = ()) -> None:
    """Makes ``package`` importable from ``root``, with ``kept`` as they are and all its other modules standing in.

    The packages above a kept module are not executed. ``absent`` modules, and all that the machine lacks, stand in too.
    """
    for name in absent:
        sys.modules[name] = _Loader().create_module(importlib.machinery.ModuleSpec(name, None))
    above = {".".join(keep.split(".")[:n]) for keep in kept for n in range(1, len(keep.split(".")))} - {*kept}
    for name in sorted(above):
        module = ModuleType(name)
        module.__path__ = [str(root / name.replace(".", "/"))]
        sys.modules[name] = module
    sys.meta_path.insert(0, _Finder(package, kept))
    sys.meta_path.append(_Finder())
    sys.path.insert(0, str(root))
