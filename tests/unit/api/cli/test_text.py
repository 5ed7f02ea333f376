"""Reports as text name what was replayed, what is bought, and why one replica fewer is not enough."""

from __future__ import annotations

from report_documents import plan_document, replay_document, without_range

from api.cli.text import plan_text, replay_text


def test_a_plan_names_model_engine_formats_and_evidence() -> None:
    document = plan_document()
    text = plan_text(document)
    best = document["recommendations"][0]
    assert f"Model: {document['model']}; engine: vllm-0.33; weights bf16, KV cache bf16." in text
    assert f"Evidence for {best['gpu']} at TP {best['tp']}: {best['evidence']['sentence']}" in text
    assert "share of the capacity limit, not of the latency limit" in text
    assert ": one note of the run" in text


def test_paid_gpus_are_shown_where_whole_instances_are_bought() -> None:
    document = plan_document()
    assert "paid GPUs" not in plan_text(document)
    best = document["recommendations"][0]
    best["price"]["paid_gpus"] = best["gpus"] + 61
    line = next(line for line in plan_text(document).splitlines() if line.lstrip().startswith("1  "))
    assert f"  {best['gpus'] + 61}  " in line


def test_a_replay_names_gpu_and_total_price() -> None:
    document = replay_document()
    text = replay_text(document, 1.0, 2.0)
    assert f"Price: {document['gpu']} at TP {document['tp']}: " in text
    assert f"In all {document['cost']['usd_per_hour']:.2f} USD per hour." in text
    assert "Model: " in text
    document["operating"]["notes"] = ["max_model_len 131072 does not fit: replayed with max_model_len 64752"]
    assert "replayed with max_model_len 64752" in replay_text(document, 1.0, 2.0)


def test_a_plan_says_how_sure_it_is() -> None:
    document = plan_document()
    best = document["recommendations"][0]
    text = plan_text(document)
    line = next(line for line in text.splitlines() if line.lstrip().startswith("1  H100-SXM"))
    assert "4 (3 to 6)" in line
    assert "7.50 to 15.00" in line
    assert f"How sure: {best['certainty']['how_sure']} {best['certainty']['sentence']}" in text
    for one in document["recommendations"]:
        one["certainty"] = None
    text = plan_text(document)
    assert "How sure" not in text
    assert "within the error" not in text


def test_a_candidate_without_a_range_is_to_be_measured_first() -> None:
    document = plan_document()
    second = document["recommendations"][1] = without_range(document["recommendations"][1])
    text = plan_text(document)
    line = next(line for line in text.splitlines() if line.lstrip().startswith("2  A100"))
    assert "  measure first  " in line
    assert f"Measure A100-SXM-80GB at TP 2 before buying it: {second['certainty']['sentence']}" in text
