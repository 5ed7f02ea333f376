"""The shipped catalogue: lookups, spellings, near misses, offers, user entries, and the facts that were corrected."""

import subprocess
import sys

import pytest

from replay.errors import SpecError
from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.entries import GpuType, ModelSpec, Price
from replay.hardware.weights import layer_counts
from replay.specs import PriceFilter

CATALOGUE = shipped_catalogue()


def test_it_is_read_once_and_has_a_version_with_a_date() -> None:
    assert shipped_catalogue() is CATALOGUE
    assert len(CATALOGUE.gpus) >= 50
    assert len(CATALOGUE.models) >= 180
    assert len(CATALOGUE.prices) >= 800
    date, digest = CATALOGUE.version.rsplit("-", 1)
    assert date.startswith("2026-")
    assert len(digest) == 12


def test_every_row_names_its_source_and_prices_their_date_and_licence() -> None:
    assert all(entry.source and entry.date for entry in (*CATALOGUE.gpus.values(), *CATALOGUE.models.values()))
    assert all(p.source and p.date and p.licence and p.licence != "facts only" for p in CATALOGUE.prices)
    assert len({p.id for p in CATALOGUE.prices}) == len(CATALOGUE.prices)
    assert all(p.gpu in CATALOGUE.gpus for p in CATALOGUE.prices)


@pytest.mark.parametrize(
    ("spelling", "key"),
    [
        ("H100", "H100-SXM"),
        ("h100_sxm", "H100-SXM"),
        ("H100-80GB", "H100-SXM"),
        ("H100-SXM-80GB", "H100-SXM"),
        ("NVIDIA H100 80GB HBM3", "H100-SXM"),
        ("8xH100", "H100-SXM"),
        ("2x H100 NVL 94GB (a cloud's name)", "H100-NVL"),
        ("H200-141GB", "H200-SXM"),
        ("A100-80GB", "A100-SXM-80GB"),
        ("NVIDIA A100-SXM4-80GB", "A100-SXM-80GB"),
        ("A100-40GB", "A100-SXM-40GB"),
        ("A100 80GB PCIe", "A100-PCIe-80GB"),
        ("L40S-48GB", "L40S"),
        ("Tesla T4", "T4"),
        ("NVIDIA GeForce RTX 4090", "RTX-4090"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_common_spellings_of_gpus(spelling: str, key: str) -> None:
    assert CATALOGUE.gpu(spelling).key == key


@pytest.mark.parametrize("name", ["A100", "V100"])
def test_a_name_of_several_gpus_lists_them(name: str) -> None:
    with pytest.raises(SpecError) as caught:
        CATALOGUE.gpu(name)
    assert caught.value.code == "catalogue.ambiguous_gpu"
    assert caught.value.detail.count(name + "-") >= 3


def test_near_misses_name_the_nearest() -> None:
    with pytest.raises(SpecError, match="H100-SXM") as gpu:
        CATALOGUE.gpu("H10O")
    assert gpu.value.code == "catalogue.unknown_gpu"
    with pytest.raises(SpecError, match="Qwen/Qwen3-8B") as model:
        CATALOGUE.model("qwen3-9b")
    assert model.value.code == "catalogue.unknown_model"
    assert "config.json" in model.value.detail
    for empty in ("", "  "):
        with pytest.raises(SpecError):
            CATALOGUE.gpu(empty)
        with pytest.raises(SpecError):
            CATALOGUE.model(empty)


@pytest.mark.parametrize(
    ("asked", "shape_of", "weights"),
    [
        ("qwen/QWEN3-8b", "Qwen/Qwen3-8B", "bf16"),
        ("Qwen3-8B", "Qwen/Qwen3-8B", "bf16"),
        ("meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.1-8B", "bf16"),
        ("mistralai/Mixtral-8x22B-Instruct-v0.1", "mistralai/Mixtral-8x22B-v0.1", "bf16"),
        ("RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "meta-llama/Llama-3.3-70B-Instruct", "fp8"),
        ("redhatai/Llama-3.3-70B-Instruct-quantized.w8a8", "meta-llama/Llama-3.3-70B-Instruct", "int8"),
        ("RedHatAI/granite-3.1-8b-instruct-quantized.w4a16", "ibm-granite/granite-3.1-8b-instruct", "int4"),
        ("Qwen/Qwen2.5-7B-Instruct-AWQ", "Qwen/Qwen2.5-7B-Instruct", "int4"),
        ("Qwen/Qwen3-30B-A3B-FP8", "Qwen/Qwen3-30B-A3B", "fp8_block"),
        ("redhatai/Llama-3.3-70B-Instruct-quantized.w8a16", "meta-llama/Llama-3.3-70B-Instruct", "w8a16"),
        ("nvidia/DeepSeek-R1-FP4", "deepseek-ai/DeepSeek-R1", "nvfp4"),
        ("openai/gpt-oss-120b", "openai/gpt-oss-120b", "mxfp4"),
    ],
)
def test_siblings_and_quantised_repacks(asked: str, shape_of: str, weights: str) -> None:
    found, base = CATALOGUE.model(asked), CATALOGUE.models[shape_of]
    assert found.weight_dtype == weights
    assert found.num_layers == base.num_layers
    assert found.hidden_size == base.hidden_size
    assert found.max_position == base.max_position
    if weights != base.weight_dtype:
        assert found.key == asked
        assert base.key in found.notes


def test_a_family_name_with_different_lengths_is_ambiguous() -> None:
    with pytest.raises(SpecError) as caught:
        CATALOGUE.model("Qwen/Qwen2.5-7B-Chat")
    assert caught.value.code == "catalogue.ambiguous_model"


def test_a_rate_without_its_host_is_no_price_of_a_machine() -> None:
    apart = [p for p in CATALOGUE.prices if "host VM not included" in p.notes or "billed separately" in p.notes]
    assert len(apart) >= 20
    assert {p.term for p in apart} == {"gpu_adder", "spot_gpu_adder"}
    for gpu in ("T4", "V100-SXM2-16GB"):
        for term in ("on_demand", "spot"):
            assert not any("not included" in p.notes for p in CATALOGUE.offers(gpu, PriceFilter(term=term)))


def test_offers_filter_and_sort() -> None:
    offers = CATALOGUE.offers("H100", PriceFilter())
    assert offers
    assert {p.gpu for p in offers} == {"H100-SXM"}
    assert {p.term for p in offers} == {"on_demand"}
    assert [p.usd_per_gpu_hour for p in offers] == sorted(p.usd_per_gpu_hour for p in offers)
    azure = CATALOGUE.offers("A100-80GB", PriceFilter(provider="azure", region="eastus"))
    assert azure
    assert {(p.provider, p.region) for p in azure} == {("Azure", "eastus")}
    assert CATALOGUE.offers("H100", PriceFilter(term="spot"))
    assert not CATALOGUE.offers("H100", PriceFilter(provider="nobody"))


def test_user_entries_override_and_change_the_version() -> None:
    own_gpu = GpuType(
        key="Mine",
        vendor="NVIDIA",
        memory_spec_gb=10,
        memory_total_gib=9.5,
        mem_bw_gb_per_s=500,
        fp16_tflops=50,
        source="data sheet",
    )
    own_price = Price(
        id="own",
        provider="Us",
        gpu="h100",
        region="here",
        term="on_demand",
        usd_per_instance_hour=0.01,
        date="2026-11-29",
        source="contract",
    )
    own_model = CATALOGUE.models["Qwen/Qwen3-8B"].model_copy(update={"max_position": 1000})
    wider = CATALOGUE.with_entries(gpus=[own_gpu], models=[own_model], prices=[own_price])
    assert wider.version != CATALOGUE.version
    assert wider.version == CATALOGUE.with_entries([own_gpu], [own_model], [own_price]).version
    assert wider.gpu("mine") == own_gpu
    assert wider.model("Qwen3-8B").max_position == 1000
    assert wider.offers("H100-SXM", PriceFilter())[0].id == "own"
    assert CATALOGUE.model("Qwen3-8B").max_position == 40960
    assert CATALOGUE.with_entries() is CATALOGUE
    with pytest.raises(SpecError, match="unknown GPU type"):
        CATALOGUE.with_entries(prices=[own_price.model_copy(update={"gpu": "no such card"})])


def test_instances_are_priced_per_gpu() -> None:
    whole = next(p for p in CATALOGUE.prices if p.gpus_per_instance == 8)
    assert whole.usd_per_gpu_hour == pytest.approx(whole.usd_per_instance_hour / 8)


@pytest.mark.parametrize(
    ("key", "vocab"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", 152064),
        ("Qwen/Qwen2.5-3B-Instruct", 151936),
        ("meta-llama/Meta-Llama-3-8B", 128256),
        ("google/gemma-3-27b-it", 262208),
        ("ibm-granite/granite-3.1-2b-instruct", 49155),
    ],
)
def test_vocabularies_are_those_that_are_allocated(key: str, vocab: int) -> None:
    assert CATALOGUE.models[key].vocab_size == vocab
    assert "vocab" in CATALOGUE.models[key].notes


def test_llama4_has_chunked_layers() -> None:
    for key in ("meta-llama/Llama-4-Scout-17B-16E-Instruct", "meta-llama/Llama-4-Maverick-17B-128E-Instruct"):
        assert layer_counts(CATALOGUE.models[key]) == (12, 36, 0)
        assert CATALOGUE.models[key].window_kind == "chunked"


@pytest.mark.parametrize(
    ("key", "total"),
    [
        ("H100-SXM", 79.19),
        ("A100-SXM-80GB", 79.15),
        ("A100-SXM-40GB", 39.38),
        ("L40S", 44.42),
        ("T4", 14.56),
        ("H200-SXM", 139.8),
    ],
)
def test_memory_is_what_cuda_reports(key: str, total: float) -> None:
    gpu = CATALOGUE.gpus[key]
    assert gpu.memory_total_gib == total
    assert "CUDA" in gpu.notes


def test_layers_of_every_model_add_up() -> None:
    for model in CATALOGUE.models.values():
        assert sum(layer_counts(model)) == model.num_layers, model.key
        assert model.num_attention_heads % model.num_key_value_heads == 0, model.key
        assert model.num_moe_layers <= model.num_layers, model.key
        assert (model.num_experts > 0) == (model.experts_per_tok > 0) == (model.num_moe_layers > 0), model.key
        assert not model.num_window_layers or model.sliding_window, model.key


def test_entries_survive_json() -> None:
    for kind, entries in ((GpuType, CATALOGUE.gpus), (ModelSpec, CATALOGUE.models)):
        for entry in entries.values():
            assert kind.model_validate_json(entry.model_dump_json()) == entry


def test_importing_needs_neither_numba_nor_numpy() -> None:
    code = (
        "import sys, replay.hardware.catalogue as c, replay.hardware.memory, replay.hardware.hf_config;"
        "c.shipped_catalogue();"
        "print(sorted({'numpy', 'numba', 'polars', 'fastapi', 'sqlalchemy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("field", ["memory_spec_gb", "max_scaleup_gpus"])
def test_true_is_no_number_of_an_entry(field: str) -> None:
    with pytest.raises(ValueError, match="valid number"):
        GpuType.model_validate({**CATALOGUE.gpu("L4").model_dump(), field: True})
