"""Engine names as logs, presets and people write them."""

import pytest

from replay.errors import SpecError
from replay.hardware.versions import EngineVersion, parse_engine_version


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("vllm-0.33", EngineVersion("vllm", (0, 33))),
        ("vllm-0.19.0", EngineVersion("vllm", (0, 19))),
        ("vLLM 0.24.0+build.13", EngineVersion("vllm", (0, 24))),
        ("0.15.1", EngineVersion("vllm", (0, 15))),
        ("vllm", EngineVersion("vllm", (0, 33))),
        ("vllm-v0", EngineVersion("vllm", (0, 7), legacy=True)),
        ("vllm-0.7", EngineVersion("vllm", (0, 7), legacy=True)),
        ("vllm-0.6.4+", EngineVersion("vllm", (0, 6), legacy=True)),
        ("sglang", EngineVersion("sglang", (0, 33))),
        ("trtllm", EngineVersion("trtllm", (0, 33))),
        ("tgi-v3", EngineVersion("tgi", (0, 33))),
        ("static", EngineVersion("generic", (0, 33))),
    ],
)
def test_reads_the_spellings_in_use(text: str, expected: EngineVersion) -> None:
    assert parse_engine_version(text) == expected


@pytest.mark.parametrize("text", ["", "vlmm-0.33", "llama.cpp", "0"])
def test_refuses_unknown_engines_with_a_cure(text: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_engine_version(text)
    assert caught.value.code == "engine.unknown_version"
    assert "vllm-0.33" in str(caught.value.errors[0].cure)


def test_releases_compare_by_number_not_by_text() -> None:
    engine = parse_engine_version("vllm-0.9.1")
    assert engine.at_least(0, 8)
    assert not engine.at_least(0, 11)
