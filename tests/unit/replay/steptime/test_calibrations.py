"""Shipped calibration files, and files that are refused."""

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import pytest

from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.steptime.calibrations import DATA, calibration_of, read_calibration, shipped_calibration

FILES = sorted(DATA.glob("*.json"))
TIMED = ("A100-SXM-80GB", "H100-SXM", "H200-SXM", "B200-SXM", "B300-SXM", "GB200", "GB300", "L40S")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_shipped_file_is_small_named_and_carries_its_error(path: Any) -> None:
    assert path.stat().st_size <= 100_000
    found = read_calibration(path)
    assert found.id == f"{path.stem.rpartition('_')[0]}/{found.family}/1"
    assert path.stem.endswith(f"_{found.family}")
    assert found.licence == "Apache-2.0"
    assert "NVIDIA" in found.source
    assert found.date
    assert found.engine_version
    assert found.errors["dense"]["all"].steps > 100
    for phases in found.errors.values():
        assert "all" in phases
        assert set(phases) <= {"all", "prefill", "decode", "mixed"}
        assert all(0 < error.median <= error.p95 for error in phases.values())


@pytest.mark.parametrize("key", TIMED)
def test_each_timed_gpu_of_the_catalogue_has_one(key: str) -> None:
    found = shipped_calibration(key, "vllm")
    assert found is not None
    assert found.gpu == key == shipped_catalogue().gpu(key).key
    stated = shipped_catalogue().gpu(key).mem_bw_gb_per_s
    assert found.tables.elementwise.memory_bytes_per_s == pytest.approx(stated * 1e9, rel=0.05)


def test_a_family_without_a_file_gets_vllms_and_an_unknown_gpu_none() -> None:
    found = shipped_calibration("B300-SXM", "sglang")
    assert found is not None
    assert found.family == "vllm"
    assert shipped_calibration("T4", "vllm") is None


def poison(path: tuple[Any, ...], value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


def seconds(document: dict[str, Any]) -> None:
    table = document["gemm"]["formats"]["bf16"]
    table["us"] = [[[value * 1e-6 for value in curve] for curve in row] for row in table["us"]]


def milliseconds(document: dict[str, Any]) -> None:
    table = document["gemm"]["formats"]["bf16"]
    table["us"] = [[[value * 1e3 for value in curve] for curve in row] for row in table["us"]]


FIRST_DECODE = ("decode_attention", "kernels", 0, "us", 2)


@pytest.mark.parametrize(
    ("change", "field", "word"),
    [
        (poison((*FIRST_DECODE, 1), -3.0), "decode_attention.kernels.0.us", "no kernel takes no time"),
        (poison((*FIRST_DECODE, 1), 0.0), "decode_attention.kernels.0.us", "no kernel takes no time"),
        (poison((*FIRST_DECODE, 1), math.nan), "decode_attention.kernels.0.us", "not a number"),
        (poison((*FIRST_DECODE, 1), math.inf), "decode_attention.kernels.0.us", "not a number"),
        (poison((*FIRST_DECODE, 1), "fast"), "decode_attention.kernels.0.us", "not a full table"),
        (poison(FIRST_DECODE, [1.0]), "decode_attention.kernels.0.us", "not a full table"),
        (poison(("all_reduce", "us", "2"), [1.0]), "all_reduce.us.2", "shape"),
        (poison(("decode_attention", "batch"), [4, 2, 1]), "decode_attention.batch", "rising"),
        (seconds, "gemm.formats.bf16.us", "TFLOP/s"),
        (milliseconds, "gemm.formats.bf16.us", "TFLOP/s"),
        (lambda document: document.pop("source"), "source", "missing"),
    ],
)
def test_a_poisoned_file_is_refused_with_its_field(change: Any, field: str, word: str) -> None:
    document = copy.deepcopy(DOCUMENT)
    change(document)
    with pytest.raises(SpecError) as refused:
        calibration_of(document)
    assert refused.value.code == "steptime.calibration"
    assert refused.value.errors[0].field == field
    assert word in str(refused.value)
    assert refused.value.errors[0].cure


def test_a_file_that_is_no_json_is_refused(tmp_path: Any) -> None:
    path = tmp_path / "broken.json"
    path.write_text("{")
    with pytest.raises(SpecError, match="cannot be read as JSON"):
        read_calibration(path)


DOCUMENT = json.loads((DATA / "h100_sxm_vllm.json").read_text())
