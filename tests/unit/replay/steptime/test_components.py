"""Kernels put together: worked examples with planted timings, and what must hold for every shipped calibration."""

from dataclasses import replace

import numpy as np
import pytest

from replay.hardware.catalogue import shipped_catalogue
from replay.hardware.entries import ModelSpec
from replay.steptime.analytic import table_knots
from replay.steptime.calibrated import Limits, Overheads, calibrated_step_time, decode_table_s, prefill_table_s
from replay.steptime.calibrations import DATA, Calibration, read_calibration, shipped_calibration
from replay.steptime.components import KernelModel
from replay.steptime.kernel_tables import (
    LATENT_WIDTH,
    AllReduceTables,
    AttentionKey,
    AttentionTables,
    Elementwise,
    ExpertKey,
    ExpertTables,
    GemmTables,
    KernelTables,
)

CATALOGUE = shipped_catalogue()
TWO = np.array([1.0, 1000.0])
GEMM_US_PER_UNIT = 1e-9
LATENT_US = 5.0
DECODE_US_PER_TOKEN, PREFILL_US_PER_TOKEN, FLOOR_US = 0.25, 0.5, 10.0


def planted(gemm_floor_us: float = 0.0, knots: np.ndarray = TWO) -> KernelTables:
    """Timings that follow laws known in closed form: GEMMs ``floor + m n k * 1e-9`` us, decode attention 0.25 us a
    context token and KV head, prefill attention 10 us plus 0.5 us a new token and head."""
    m, n, k = knots[None, None, :], knots[:, None, None], knots[None, :, None]
    gemm = gemm_floor_us + GEMM_US_PER_UNIT * m * n * k
    rows, columns = np.array([1.0, 100.0]), np.array([0.0, 1000.0])
    key = AttentionKey(128, 0, "bf16")
    prefill = {(h, h): FLOOR_US + PREFILL_US_PER_TOKEN * h * np.repeat(rows[:, None], 2, 1) for h in (1, 64)}
    decode = {(h, h): DECODE_US_PER_TOKEN * h * rows[:, None] * columns[None, :] for h in (1, 8)}
    latent = AttentionKey(LATENT_WIDTH, 0, "bf16", "bf16")
    latent_us = {(1, 1): LATENT_US * rows[:, None] * (1.0 + columns[None, :])}
    latent_us[128, 1] = 128 * latent_us[1, 1]
    return KernelTables(
        gemm=GemmTables(knots, knots, {"bf16": knots}, {"bf16": gemm}),
        prefill=AttentionTables(rows, columns, {key: prefill}),
        decode=AttentionTables(rows, columns, {key: decode}),
        latent_prefill=AttentionTables(rows, columns, {latent: latent_us}),
        latent_decode=AttentionTables(rows, columns, {latent: latent_us}),
        experts=ExpertTables(TWO, {ExpertKey(64, 32, 2, 8, "bf16", 1, 1): np.array([5.0, 5.0 + 999.0])}),
        all_reduce=AllReduceTables(np.array([0.0, 1e6]), {2: np.array([8.0, 8.0 + 10.0])}),
        elementwise=Elementwise(memory_bytes_per_s=1e12, share=0.5, fixed_us=3.0),
        qk_norm_us=7.0,
    )


def small(**changes: object) -> ModelSpec:
    fields = {
        "key": "small", "num_layers": 2, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 128, "vocab_size": 500, "max_position": 4096, "source": "made up",
        "attention_kind": "MHA",
    }  # fmt: skip
    return ModelSpec.model_validate({**fields, **changes})


def test_a_dense_step_is_the_sum_of_its_kernels() -> None:
    kernels = KernelModel(small(), planted(), 1, "bf16", "bf16")
    tokens = 10.0
    weights = 2 * (64 * 768 + 256 * 64 + 64 * 2 * 96 + 96 * 64)  # two layers: qkv, output, gate and up, down
    gemms = tokens * weights * GEMM_US_PER_UNIT + 64 * 500 * GEMM_US_PER_UNIT  # and the head on one row
    moved = 2 * 2 * 4 * 64 + 2 * 3 * 96 + 64  # numbers: norms, activations, embedding
    elementwise = (2 * 2 + 2 + 1) * 3.0 + tokens * moved * 2 / 0.5e12 * 1e6
    assert kernels.rest_s(np.array([tokens]))[0] == pytest.approx((gemms + elementwise) * 1e-6, rel=1e-12)


def test_a_rank_of_two_halves_its_matrices_and_reduces_twice_a_layer() -> None:
    alone = KernelModel(small(), planted(), 1, "bf16", "bf16").rest_s(np.array([10.0]))[0]
    ranked = KernelModel(small(), planted(), 2, "bf16", "bf16").rest_s(np.array([10.0]))[0]
    reduces = 5 * (8.0 + 10 * 64 * 2 / 1e6 * 10.0) * 1e-6
    weights = 2 * (64 * 768 + 256 * 64 + 64 * 2 * 96 + 96 * 64)
    halves = (10 * weights + 64 * 500) * GEMM_US_PER_UNIT / 2 + 2 * 10 * 3 * 48 * 2 / 0.5e12 * 1e6
    assert ranked == pytest.approx(alone - halves * 1e-6 + reduces, rel=1e-12)


def test_experts_replace_the_mlp() -> None:
    spec = small(
        num_experts=8, experts_per_tok=2, moe_intermediate_size=32, num_moe_layers=2, intermediate_size=0
    )  # fmt: skip
    with_experts = KernelModel(spec, planted(), 1, "bf16", "bf16")
    assert with_experts.missing() is None
    router = 10 * 64 * 8 * GEMM_US_PER_UNIT
    assert with_experts.experts_us(np.array([10.0]))[0] == pytest.approx(2 * (router + 5.0 + 9.0))


def test_attention_by_hand() -> None:
    kernels = KernelModel(small(), planted(), 1, "bf16", "bf16")
    decode = kernels.decode_grid_s(np.array([5.0]), np.array([300.0]))
    assert decode[0, 0] == pytest.approx(2 * DECODE_US_PER_TOKEN * 2 * 5 * 300 * 1e-6)
    prefill = kernels.prefill_grid_s(np.array([20.0]), np.array([100.0]))
    assert prefill[0, 0] == pytest.approx(2 * (FLOOR_US + PREFILL_US_PER_TOKEN * 2 * 20) * 1e-6)
    assert kernels.prefill_step_s() == pytest.approx(2 * (FLOOR_US + PREFILL_US_PER_TOKEN * 2) * 1e-6)


def test_more_key_value_heads_than_timed_are_like_more_sequences() -> None:
    wide = KernelModel(small(num_attention_heads=32, num_key_value_heads=32), planted(), 1, "bf16", "bf16")
    decode = wide.decode_grid_s(np.array([5.0]), np.array([300.0]))
    assert decode[0, 0] == pytest.approx(2 * DECODE_US_PER_TOKEN * 32 * 5 * 300 * 1e-6)


def latent_model(**changes: object) -> ModelSpec:
    fields = {
        "attention_kind": "MLA", "hidden_size": 7168, "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "num_attention_heads": 16, "num_key_value_heads": 16,
        "num_layers": 1, "head_dim": 192,
    }  # fmt: skip
    return small(**{**fields, **changes})


def test_a_latent_block_is_its_projections_in_the_rest_and_attention_beside() -> None:
    """Together they are the block as timed: 5 us a token, head and context token."""
    kernels = KernelModel(latent_model(), planted(), 2, "bf16", "bf16")
    assert kernels.missing() is None
    batch, context = np.array([1.0, 20.0]), np.array([0.0, 300.0])
    beside = kernels.decode_grid_s(batch, context)
    projections = kernels.attention_projections_us(batch)[:, None] * 1e-6
    block = LATENT_US * 8 * batch[:, None] * (1 + context[None, :]) * 1e-6
    assert beside + projections == pytest.approx(block, rel=1e-9)
    by_gemm = (2112 * 7168 + 8 * 192 * 1536 + 7168 * 8 * 128) * GEMM_US_PER_UNIT * batch
    assert kernels.attention_projections_us(batch) == pytest.approx(by_gemm)
    assert kernels.kv_bytes_per_token() == 576 * 2


@pytest.mark.parametrize("change", [{"kv_lora_rank": 256}, {"indexer_heads": 64}])
def test_latent_attention_of_other_sizes_was_not_timed(change: dict[str, int]) -> None:
    assert "was not timed" in str(KernelModel(latent_model(**change), planted(), 2, "bf16", "bf16").missing())


def test_shared_experts_run_beside_the_routed_ones_in_small_batches_only() -> None:
    fields: dict[str, object] = {
        "num_experts": 8, "experts_per_tok": 2, "moe_intermediate_size": 32, "num_moe_layers": 2,
        "intermediate_size": 0, "attention_kind": "MHA",
    }  # fmt: skip
    alone = KernelModel(small(**fields), planted(), 1, "bf16", "bf16")
    both = KernelModel(small(**fields, shared_expert_intermediate_size=32), planted(), 1, "bf16", "bf16")
    tokens = np.array([256.0, 257.0])
    shared = both.mlp_us("shared_experts", 2, 32, tokens) * 1e-6
    routed = both.experts_us(tokens) * 1e-6
    assert (shared < routed).all()
    assert (both.rest_s(tokens) - alone.rest_s(tokens))[0] == pytest.approx(0.0, abs=1e-12)
    far = np.array([1000.0])
    more = both.rest_s(far) - alone.rest_s(far)
    assert more[0] == pytest.approx(both.mlp_us("shared_experts", 2, 32, far)[0] * 1e-6)


def test_window_layers_stop_at_their_window() -> None:
    spec = small(num_full_attn_layers=1, num_window_layers=1, sliding_window=100)
    decode = KernelModel(spec, planted(), 1, "bf16", "bf16").decode_grid_s(np.array([1.0]), np.array([300.0]))
    assert decode[0, 0] == pytest.approx(DECODE_US_PER_TOKEN * 2 * (300 + 100) * 1e-6)


def test_what_is_not_timed_is_said() -> None:
    tables = planted()
    assert "fp8 weights" in str(KernelModel(small(), tables, 1, "fp8", "bf16").missing())
    assert "fp8 cache" in str(KernelModel(small(), tables, 1, "bf16", "fp8").missing())
    assert "4 GPUs" in str(KernelModel(small(num_attention_heads=4), tables, 4, "bf16", "bf16").missing())
    assert KernelModel(small(), tables, 2, "bf16", "bf16").missing() is None


def test_the_record_holds_the_kernels_and_what_a_served_step_adds() -> None:
    kernels = KernelModel(small(), planted(), 1, "bf16", "bf16")
    calibration = Calibration("x/vllm/1", "X", "vllm", "1", "2026", "s", "l", planted(), {})
    limits = Limits(max_num_batched_tokens=64, max_num_seqs=8, max_context_tokens=512)
    plain = calibrated_step_time(kernels, calibration, limits)
    served = calibrated_step_time(
        kernels,
        calibration,
        limits,
        Overheads(
            kernels_factor=2.0, decode_row_s=3e-6, host_s=1e-3, host_per_request_s=1e-5, request_s=8e-3,
            decode_bandwidth_share=0.5,
        ),
    )  # fmt: skip
    assert plain.calibration_id == "x/vllm/1"
    assert plain.provenance == "transported"
    assert (plain.decode_request_ps, plain.host_ps, plain.request_overhead_ps, plain.decode_linear_ps) == (0, 0, 0, 0)
    assert plain.rest_ps[8] == round(kernels.rest_s(np.array([8.0]))[0] * 1e12)
    assert plain.rest_ps[9] == plain.rest_ps[16]  # the captured graph of 16
    assert served.rest_ps[8] == pytest.approx(2 * plain.rest_ps[8], abs=1)
    assert served.prefill_step_ps == pytest.approx(2 * plain.prefill_step_ps, abs=1)
    assert (served.decode_request_ps, served.host_ps) == (3_000_000, 10**9)
    assert (served.host_per_request_ps, served.request_overhead_ps) == (10**7, 8 * 10**9)
    assert served.decode_linear_ps == round(2 * 2 * 2 * 128 * 2 / 0.5 / 1e12 * 1e12)
    assert served.prefill_table_ps == pytest.approx(2 * plain.prefill_table_ps, abs=1)


def test_planted_timings_are_found_again_under_noise() -> None:
    """Noise of 2 % on every timing leaves a step of many kernels within that."""
    tables = planted(2.0, np.array([1.0, 16.0, 256.0, 4096.0, 65536.0, 262144.0]))
    rng = np.random.default_rng(11)
    clean = KernelModel(CATALOGUE.model("meta-llama/Llama-3.1-8B"), tables, 1, "bf16", "bf16")
    noisy_us = tables.gemm.us["bf16"] * rng.normal(1.0, 0.02, tables.gemm.us["bf16"].shape)
    noisy = replace(clean, tables=replace(tables, gemm=replace(tables.gemm, us={"bf16": noisy_us})))
    tokens = np.array([1.0, 16.0, 256.0, 4096.0])
    assert noisy.rest_s(tokens) == pytest.approx(clean.rest_s(tokens), rel=0.02)


MODELS = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B", "meta-llama/Llama-2-7b-hf")


@pytest.fixture(params=[path.stem for path in sorted(DATA.glob("*.json"))])
def shipped(request: pytest.FixtureRequest) -> Calibration:
    return read_calibration(DATA / f"{request.param}.json")


@pytest.mark.parametrize("key", MODELS)
def test_attention_never_gets_faster_with_more_work(shipped: Calibration, key: str) -> None:
    kernels = KernelModel(CATALOGUE.model(key), shipped.tables, 1, "bf16", "bf16")
    batches, contexts, chunks = table_knots(512), table_knots(65536), table_knots(8192)
    decode = decode_table_s(kernels, batches, contexts)
    assert (decode > 0)[1:].all()
    assert (np.diff(decode[1:], axis=0) >= -1e-12).all()
    assert (np.diff(decode[1:], axis=1) >= -1e-12).all()
    prefill = prefill_table_s(kernels, chunks, contexts)
    assert (prefill >= 0).all()
    assert (np.diff(prefill, axis=0) >= -1e-12).all()
    assert (np.diff(prefill[1:], axis=1) >= -1e-12).all()


@pytest.mark.parametrize("key", MODELS)
def test_many_more_tokens_never_take_less(shipped: Calibration, key: str) -> None:
    """Other tiles make 16-bit GEMMs of a few more tokens faster here and there, and of one token
    slower than of several; of eight times as many they are never more than 8 % faster."""
    rest = KernelModel(CATALOGUE.model(key), shipped.tables, 1, "bf16", "bf16").rest_s
    tokens = np.arange(1.0, 2049.0)
    assert (rest(8 * tokens) >= rest(tokens) * 0.92).all()


def test_more_bandwidth_is_never_slower() -> None:
    h100, h200 = shipped_calibration("H100-SXM", "vllm"), shipped_calibration("H200-SXM", "vllm")
    assert h100 is not None
    assert h200 is not None
    spec = CATALOGUE.model("meta-llama/Llama-3.1-70B")
    batches, contexts = table_knots(256), table_knots(32768)
    slow, fast = (
        decode_table_s(KernelModel(spec, found.tables, 2, "bf16", "bf16"), batches, contexts) for found in (h100, h200)
    )
    large = contexts >= 4096
    assert (fast[16:, large] < slow[16:, large]).all()


def test_a_ring_of_pairs() -> None:
    """The pair: 8 us and 10 us a MB. Eight cards: 7 hops' latency, and 7/8 of the bytes twice where a pair has one."""
    tables = AllReduceTables(np.array([0.0, 1e6]), {2: np.array([8.0, 18.0]), 8: np.array([8.0, 1000.0])})
    assert tables.ring_of_pairs(2, np.array([1e6])) == pytest.approx([18.0])
    assert tables.ring_of_pairs(8, np.array([0.0, 1e6])) == pytest.approx([56.0, 56.0 + 1.75 * 10.0])
