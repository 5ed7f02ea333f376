"""KV capacity and settings read from the start-up log of a vLLM or SGLang server.

Formats: the engines' own log lines (vLLM: engine configuration, "GPU KV cache size", "# GPU blocks", "Maximum
concurrency"; SGLang: ``ServerArgs(...)``, "max_total_num_tokens="). What is not in the log is named; nothing is taken
from memory models here.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from replay.errors import FieldError, SpecError
from replay.hardware.entries import ModelSpec
from replay.hardware.weights import layer_counts

MAX_TEXT_CHARACTERS = 8 * 1024**2
LogValue = int | float | str | bool
Engine = Literal["vllm", "sglang"]

_ALIASES = {
    "model": "model",
    "model_path": "model",
    "tensor_parallel_size": "tp",
    "tp_size": "tp",
    "pipeline_parallel_size": "pp",
    "pp_size": "pp",
    "data_parallel_size": "dp",
    "dp_size": "dp",
    "max_model_len": "max_model_len",
    "max_seq_len": "max_model_len",
    "context_length": "max_model_len",
    "context_len": "max_model_len",
    "kv_cache_dtype": "kv_cache_dtype",
    "dtype": "dtype",
    "quantization": "quantization",
}
_VLLM_KNOBS = (
    "max_num_seqs",
    "max_num_batched_tokens",
    "block_size",
    "gpu_memory_utilization",
    "enforce_eager",
    "enable_prefix_caching",
    "async_scheduling",
)
_SGLANG_KNOBS = (
    "max_running_requests",
    "chunked_prefill_size",
    "page_size",
    "mem_fraction_static",
    "schedule_conservativeness",
    "disable_overlap_schedule",
    "disable_cuda_graph",
)
_KEYS = {**_ALIASES, **{name: name for name in (*_VLLM_KNOBS, *_SGLANG_KNOBS)}}
_COUNTS = {
    "tp", "pp", "dp", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size", "max_running_requests",
    "page_size",
}  # fmt: skip
"""What is only taken where it is a whole number above 0: an automatic choice is logged as None, 0 or -1."""
_TEXTS = {"model", "dtype", "kv_cache_dtype", "quantization"}
_LARGEST = 2**53
_PAIR = re.compile(r"['\"]?\b(\w+)['\"]?\s*[=:]\s*('[^']*'|\"[^\"]*\"|-?[\w.]+)")
_SETTINGS_LINE = re.compile(
    r"non-default args|with config:|args: Namespace\(|ServerArgs\(|max_total_num_tokens=|"
    r"Chunked prefill is enabled with|cache_config_info\{"
)
_START = re.compile(r"vLLM API server version|server_args=ServerArgs\(")
_NUMBER = r"([0-9][0-9,]{0,20})"
_KV_TOKENS = re.compile(rf"GPU KV cache size: {_NUMBER} tokens|max_total_num_tokens={_NUMBER}")
_KV_BLOCKS = re.compile(rf"# GPU blocks: {_NUMBER}|num_gpu_blocks=\"?{_NUMBER}")
_OVERRIDE = re.compile(rf"num_gpu_blocks_override={_NUMBER}")
_CONCURRENCY = re.compile(rf"Maximum concurrency for {_NUMBER} tokens per request: " r"([0-9]{1,9}(?:\.[0-9]{1,9})?)x")
_VERSION = re.compile(r"(?:vLLM API server version |LLM engine \(v)v?(\d+\.\d+[\w.+]*)")
_BANNER_VERSION = re.compile(r"█\s{1,8}version (\d+\.\d+[\w.+]*)")
_SGLANG_VERSION = re.compile(r"sglang[ =_]*(?:version[ :=]*)?v?(\d+\.\d+\.\d+)", re.IGNORECASE)
_MAX_LEN = re.compile(r"Using max model len ([0-9]{1,12})")
_ASYNC = re.compile(r"Asynchronous scheduling is (enabled|disabled)")
_SPECULATION = re.compile(r"speculative_(?:config|algorithm)['\"]?\s*[=:]\s*(?!None|null|['\"]?\s*[,)}])")
_DEFAULT_BLOCK_SIZE = 16


@dataclass(frozen=True)
class Found:
    """One setting and the line (from 1) that says it."""

    value: LogValue
    line: int


@dataclass(frozen=True)
class StartUpLog:
    """What a start-up log says. ``found`` is by the names below; ``missing`` are the names the log does not tell."""

    engine: Engine
    found: dict[str, Found]
    missing: tuple[str, ...]
    notes: tuple[str, ...] = ()
    overrides: dict[str, LogValue] = field(default_factory=dict)
    """Engine knobs under the engine's own names, for the ``engine.overrides`` of a deployment."""

    def value(self, name: str) -> LogValue | None:
        """A setting, or ``None`` where the log does not say it."""
        return self.found[name].value if name in self.found else None

    @property
    def preset(self) -> str:
        """The engine preset of the deployment."""
        version = self.value("version")
        if self.engine == "sglang":
            return "sglang"
        return "vllm-0.33" if version is None else f"vllm-{_release(str(version))}"

    def deployment(self) -> dict[str, object]:
        """The part of a deployment's specification that the log settles: model, tp, engine, dtypes, length."""
        spec: dict[str, object] = {"engine": {"preset": self.preset, "overrides": dict(self.overrides)}}
        for name in ("model", "tp", "max_model_len"):
            if name in self.found:
                spec[name] = self.found[name].value
        if str(self.value("kv_cache_dtype") or "auto").startswith("fp8"):
            spec["kv_dtype"] = "fp8"
        if self.value("quantization") == "fp8":
            spec["weight_dtype"] = "fp8"
        return spec

    def document(self) -> dict[str, object]:
        """The answer of the verb and the route, as JSON values."""
        return {
            "engine": self.engine,
            "found": {name: {"value": one.value, "line": one.line} for name, one in self.found.items()},
            "missing": list(self.missing),
            "deployment": self.deployment(),
            "notes": list(self.notes),
        }


def read_start_up_log(text: str, model: ModelSpec | None = None) -> StartUpLog:
    """Reads the last start in ``text``. ``model``, where known, says whether tokens can be turned into blocks.

    Raises:
        SpecError: ``start_up_log.too_long``, ``start_up_log.unknown`` (no line of either engine) or
            ``start_up_log.no_capacity`` (the server did not come up).
    """
    if len(text) > MAX_TEXT_CHARACTERS:
        raise _refuse("too_long", "the log is longer than 8 MiB", "paste the part from the start to the first request")
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if _START.search(line)]
    first = starts[-1] if starts else 0
    notes = []
    if len(starts) > 1:
        notes.append(f"the log holds {len(starts)} starts; the last one, from line {first + 1}, was read")
    reader = _Reader()
    for number, line in enumerate(lines[first:], first + 1):
        reader.read(line, number)
    return reader.result(notes, model)


class _Reader:
    def __init__(self) -> None:
        self.found: dict[str, Found] = {}
        self.tokens: list[Found] = []
        self.blocks: list[Found] = []
        self.concurrency: tuple[int, float] | None = None
        self.is_sglang = False
        self.is_vllm = False
        self.speculates = False

    def read(self, line: str, number: int) -> None:
        if "ServerArgs(" in line or "max_total_num_tokens=" in line:
            self.is_sglang = True
        if (
            "vLLM API server" in line
            or "LLM engine (v" in line
            or "GPU KV cache size" in line
            or "# GPU blocks" in line
        ):
            self.is_vllm = True
        if _SETTINGS_LINE.search(line):
            self.speculates = self.speculates or _SPECULATION.search(line) is not None
            for name, value in _pairs(line):
                self.found[name] = Found(value, number)
        override = _OVERRIDE.search(line) if "Overriding num_gpu_blocks=" in line else None
        if override is not None:
            self.blocks = [Found(_whole(override[1]), number)]
        for pattern, kept in ((_KV_TOKENS, self.tokens), (_KV_BLOCKS, self.blocks)):
            match = pattern.search(line) if override is None else None
            count = 0 if match is None else _whole(next(one for one in match.groups() if one))
            if count > 0:
                kept.append(Found(count, number))
        match = _CONCURRENCY.search(line)
        if match is not None:
            self.concurrency = (_whole(match[1]), float(match[2]))
            self.found.setdefault("max_model_len", Found(_whole(match[1]), number))
        for pattern in (_VERSION, _BANNER_VERSION):
            match = pattern.search(line)
            if match is not None:
                self.found["version"] = Found(match[1], number)
        match = _SGLANG_VERSION.search(line)
        if match is not None and "version" not in self.found:
            self.found["version"] = Found(match[1], number)
        match = _MAX_LEN.search(line)
        if match is not None:
            self.found["max_model_len"] = Found(int(match[1]), number)
        match = _ASYNC.search(line)
        if match is not None:
            self.found["async_scheduling"] = Found(match[1] == "enabled", number)

    def result(self, notes: list[str], model: ModelSpec | None) -> StartUpLog:
        if not self.is_vllm and not self.is_sglang:
            raise _refuse(
                "unknown",
                "no line of a vLLM or SGLang start-up was found in the log",
                "paste the server's own output from its start on, at its default log level",
            )
        if not self.tokens and not self.blocks:
            raise _refuse(
                "no_capacity",
                "the log does not say how large the KV cache is: the server had not got that far, or failed",
                'paste the log up to the line "GPU KV cache size", "# GPU blocks" or "max_total_num_tokens"',
            )
        engine: Engine = "sglang" if self.is_sglang else "vllm"
        size_name = "page_size" if engine == "sglang" else "block_size"
        self._capacity(size_name, notes)
        knobs = _SGLANG_KNOBS if engine == "sglang" else _VLLM_KNOBS
        overrides = {name: self.found[name].value for name in knobs if name in self.found}
        if engine == "vllm":
            self._vllm_overrides(overrides, notes, model)
        else:
            notes.append(
                "SGLang's capacity is replayed from mem_fraction_static: compare kv_tokens with capreplay memory"
            )
        if self.speculates:
            notes.append(
                "the server decodes speculatively, which is not read from the log: set num_speculative_tokens and "
                "acceptance_rate, or a replay takes one token a step"
            )
        if self.value_above_one("pp"):
            notes.append(
                "pipeline parallelism is not replayed yet: the layers of all stages are taken as one GPU group"
            )
        if self.value_above_one("dp"):
            notes.append(
                f"{self.found['dp'].value} data-parallel ranks: set replicas to that, behind the router vllm_dp"
            )
        wanted = ("version", "model", "tp", "max_model_len", "kv_tokens", "kv_blocks", *knobs)
        missing = tuple(name for name in wanted if name not in self.found)
        return StartUpLog(engine, self.found, missing, tuple(notes), overrides)

    def value_above_one(self, name: str) -> bool:
        value = self.found[name].value if name in self.found else 1
        return isinstance(value, int) and value > 1

    def _capacity(self, size_name: str, notes: list[str]) -> None:
        """Tokens and blocks of one engine: the smallest rank's, each made from the other where one is not logged."""
        for name, kept in (("kv_tokens", self.tokens), ("kv_blocks", self.blocks)):
            if not kept:
                continue
            least = min(kept, key=lambda one: int(one.value))
            self.found[name] = least
            if len({one.value for one in kept}) > 1:
                notes.append(f"{name} differs between ranks: {least.value}, the smallest, counts")
        if size_name not in self.found and size_name == "block_size":
            self._guess_block_size(notes)
        size = int(self.found[size_name].value) if size_name in self.found else 1
        if "kv_blocks" not in self.found:
            tokens = self.found["kv_tokens"]
            self.found["kv_blocks"] = Found(int(tokens.value) // size, tokens.line)
        elif "kv_tokens" not in self.found:
            blocks = self.found["kv_blocks"]
            self.found["kv_tokens"] = Found(int(blocks.value) * size, blocks.line)

    def _guess_block_size(self, notes: list[str]) -> None:
        """Block size from the logged concurrency, else the engine's default, said aloud."""
        if "kv_blocks" in self.found and self.concurrency is not None:
            blocks, (length, times) = self.found["kv_blocks"], self.concurrency
            exact = times * length / int(blocks.value)
            size = 1 << max(0, round(exact).bit_length() - 1)
            size = min((size, 2 * size), key=lambda one: abs(one - exact))
            if abs(exact / size - 1) < 0.02:
                self.found["block_size"] = Found(size, blocks.line)
                return
        notes.append(f"the log does not say block_size: {_DEFAULT_BLOCK_SIZE}, vLLM's default on CUDA, was taken")
        line = (self.found.get("kv_tokens") or self.found["kv_blocks"]).line
        self.found["block_size"] = Found(_DEFAULT_BLOCK_SIZE, line)

    def _vllm_overrides(self, overrides: dict[str, LogValue], notes: list[str], model: ModelSpec | None) -> None:
        version = self.found.get("version")
        if version is not None and tuple(int(part) for part in _release(str(version.value)).split(".")[:2]) < (0, 8):
            for name in ("enable_prefix_caching", "async_scheduling"):
                overrides.pop(name, None)
        if model is not None and layer_counts(model)[1] > 0 and not self.blocks:
            notes.append(
                f"{model.key} keeps its KV cache in several groups, so the logged tokens are no count of blocks: "
                "num_gpu_blocks_override is left out"
            )
            return
        if model is None and not self.blocks:
            notes.append(
                "kv_blocks is kv_tokens / block_size, which holds for models whose layers all keep the whole context"
            )
        overrides["num_gpu_blocks_override"] = int(self.found["kv_blocks"].value)


def _pairs(line: str) -> Iterator[tuple[str, LogValue]]:
    """Settings of one line, by our names; automatic choices (None, -1) are no settings."""
    for key, text in _PAIR.findall(line):
        name = _KEYS.get(key)
        if name is None:
            continue
        value = text.strip("'\"") if name in _TEXTS and _value(text) is not None else _value(text)
        if value is None or (name in _COUNTS and (type(value) is not int or value < 1)):
            continue
        yield name, value


def _value(text: str) -> LogValue | None:
    text = text[1:-1] if text[:1] in "'\"" else text.rstrip(".")
    if text in ("None", "", "null"):
        return None
    if text in ("True", "False", "true", "false"):
        return text.lower() == "true"
    try:
        number = float(text)
    except ValueError:
        return text
    if not abs(number) < _LARGEST:
        return None
    return int(text) if re.fullmatch(r"-?[0-9]+", text) else number


def _whole(text: str) -> int:
    return int(text.replace(",", ""))


def _release(version: str) -> str:
    """``0.10.1rc2.dev189+ge2db`` -> ``0.10.1``."""
    match = re.match(r"\d+\.\d+(?:\.\d+)?", version)
    return match[0] if match else version


def _refuse(code: str, detail: str, cure: str) -> SpecError:
    return SpecError(f"start_up_log.{code}", detail, [FieldError(detail, field="log", cure=cure)])
