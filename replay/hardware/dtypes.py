"""Number formats of weights and of the KV cache: their names, and how many bytes a matrix takes in each.

Sources: docs/memory.md (formats) and the quantisation layouts of vLLM's compressed-tensors, AWQ/GPTQ and MXFP4 kernels.
"""

from __future__ import annotations

from replay.errors import FieldError, SpecError

_WEIGHT_ALIASES = {
    "bf16": ("bfloat16", "bf16", "fp16", "float16", "half", "f16", "16bit"),
    "fp32": ("float32", "fp32", "float"),
    "fp8": ("fp8", "fp8_e4m3", "fp8-dynamic", "fp8_dynamic", "fp8_channel", "fp8-static", "w8a8-fp8", "fbgemm_fp8"),
    "fp8_block": ("fp8_block", "fp8-block", "fp8_128x128", "fp8_blockwise"),
    "int8": ("int8", "w8a8", "quantized.w8a8"),
    "w8a16": ("w8a16", "quantized.w8a16", "gptq-int8", "8bit", "bnb-8bit"),
    "int4": ("int4", "w4a16", "w4a8", "awq", "gptq", "gptq-int4", "quantized.w4a16", "4bit", "bnb-4bit"),
    "mxfp4": ("mxfp4",),
    "nvfp4": ("nvfp4", "fp4"),
    "nvfp4a16": ("nvfp4a16",),
}
WEIGHT_FORMATS = tuple(_WEIGHT_ALIASES)
_WEIGHTS = {alias: name for name, aliases in _WEIGHT_ALIASES.items() for alias in aliases}

KV_BYTES = {"bf16": 2, "fp8": 1, "fp32": 4}
_KV_ALIASES = {
    "bf16": "bf16", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16", "half": "bf16",
    "fp8": "fp8", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp8_inc": "fp8",
    "fp32": "fp32", "float32": "fp32",
}  # fmt: skip


def weight_format(name: str | None, published: str) -> str:
    """The canonical weight format, one of ``WEIGHT_FORMATS`` (fp16 counts as bf16). Those with ``a16`` in their name,
    int4 and mxfp4 quantise the weights only: their GEMMs compute at 16 bit.

    ``None``, ``auto`` and an empty text mean as published.

    Raises:
        SpecError: ``memory.weight_dtype`` with the accepted names.
    """
    wanted = (name or "auto").strip().lower()
    if wanted in {"auto", "as-published", ""}:
        wanted = published.strip().lower()
    if wanted not in _WEIGHTS:
        cure = "use one of " + ", ".join(_WEIGHT_ALIASES)
        raise SpecError(
            "memory.weight_dtype",
            f"unknown weight format {wanted!r}",
            [FieldError(cure, field="weight_dtype", cure=cure)],
        )
    return _WEIGHTS[wanted]


def kv_format(name: str | None) -> str:
    """The canonical KV-cache format ``bf16`` (also fp16), ``fp8`` or ``fp32``; ``None`` and ``auto`` mean 16 bit.

    The weights' format never changes it: a 4-bit model still caches 16-bit keys and values unless asked otherwise.

    Raises:
        SpecError: ``memory.kv_dtype`` with the accepted names.
    """
    wanted = (name or "auto").strip().lower()
    if wanted in {"auto", ""}:
        return "bf16"
    if wanted not in _KV_ALIASES:
        cure = "use auto, bf16, fp16, fp8, fp8_e4m3, fp8_e5m2 or fp32"
        raise SpecError(
            "memory.kv_dtype", f"unknown KV-cache format {wanted!r}", [FieldError(cure, field="kv_dtype", cure=cure)]
        )
    return _KV_ALIASES[wanted]


def matrix_bytes(rows: int, cols: int, fmt: str) -> tuple[int, ...]:
    """Bytes of each tensor that stores a ``rows x cols`` matrix: the values, then its scales where it has any.

    Per output row a 4-byte scale (fp8, int8, w8a16); per 128 x 128 block 4 bytes (fp8_block); per 128 inputs an fp16
    scale and a 4-bit zero (int4); per 32 inputs one byte (mxfp4); per 16 inputs one byte (nvfp4).
    """
    n = rows * cols
    if fmt == "bf16":
        return (2 * n,)
    if fmt == "fp32":
        return (4 * n,)
    if fmt in {"fp8", "int8", "w8a16"}:
        return (n, 4 * rows)
    if fmt == "fp8_block":
        return (n, 4 * -(-rows // 128) * -(-cols // 128))
    if fmt == "int4":
        return (n // 2, 2 * -(-n // 128), -(-n // 256))
    if fmt == "mxfp4":
        return (n // 2, n // 32)
    return (n // 2, n // 16)
