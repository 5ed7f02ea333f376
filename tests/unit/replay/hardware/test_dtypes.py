"""Names of number formats and the bytes of a matrix in each."""

import pytest

from replay.errors import SpecError
from replay.hardware.dtypes import kv_format, matrix_bytes, weight_format


@pytest.mark.parametrize(
    ("fmt", "expected"),
    [
        ("bf16", (2 * 256 * 512,)),
        ("fp32", (4 * 256 * 512,)),
        ("fp8", (256 * 512, 4 * 256)),
        ("int8", (256 * 512, 4 * 256)),
        ("fp8_block", (256 * 512, 4 * 2 * 4)),
        ("int4", (256 * 256, 2 * 1024, 512)),
        ("mxfp4", (256 * 256, 256 * 16)),
        ("nvfp4", (256 * 256, 256 * 32)),
    ],
)
def test_bytes_of_values_and_scales(fmt: str, expected: tuple[int, ...]) -> None:
    assert matrix_bytes(256, 512, fmt) == expected


def test_bytes_per_weight_of_the_four_bit_formats() -> None:
    n = 4096 * 4096
    assert sum(matrix_bytes(4096, 4096, "int4")) / n == pytest.approx(0.5 + 2.5 / 128)
    assert sum(matrix_bytes(4096, 4096, "mxfp4")) / n == 0.53125
    assert sum(matrix_bytes(4096, 4096, "nvfp4")) / n == 0.5625


@pytest.mark.parametrize(
    ("asked", "published", "expected"),
    [
        (None, "bf16", "bf16"),
        ("auto", "mxfp4", "mxfp4"),
        ("AWQ", "bf16", "int4"),
        ("float16", "fp8", "bf16"),
        ("w8a8", "bf16", "int8"),
    ],
)
def test_weight_format_falls_back_to_the_published_one(asked: str | None, published: str, expected: str) -> None:
    assert weight_format(asked, published) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(None, "bf16"), ("auto", "bf16"), ("fp8_e5m2", "fp8"), ("FLOAT16", "bf16"), ("fp32", "fp32")],
)
def test_kv_format(asked: str | None, expected: str) -> None:
    assert kv_format(asked) == expected


def test_unknown_formats_name_the_field_and_what_works() -> None:
    with pytest.raises(SpecError, match="int3") as weights:
        weight_format("int3", "bf16")
    assert weights.value.errors[0].field == "weight_dtype"
    with pytest.raises(SpecError, match="int4") as kv:
        kv_format("int4")
    assert kv.value.errors[0].field == "kv_dtype"
    assert "fp8" in str(kv.value.errors[0].cure)
