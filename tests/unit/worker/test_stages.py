"""The first replay of an installation says that it compiles."""

from __future__ import annotations

from pathlib import Path

import pytest

from replay.kernels import jit
from worker.runner import _replaying


def test_a_cold_cache_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jit, "_BASE", tmp_path)
    assert _replaying("the trace") == "compiling the engine (once, up to a minute), then replaying the trace"
    version = jit.machine_code_version("replay.kernels.schedule")
    folder = tmp_path / f"{version}-numba{jit.numba.__version__}" / "kernels"
    folder.mkdir(parents=True)
    assert not jit.is_cached("replay.kernels.schedule"), "numba makes the folder before it compiles"
    (folder / "x.nbi").touch()
    assert _replaying("the trace") == "replaying the trace"
