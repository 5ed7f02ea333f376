"""Records the scheduler and KV cache manager of a vLLM V1 release on random small cases.

    python tests/recorders/vllm_v1.py UNPACKED_WHEEL tests/data/vllm-0.11.0-scheduler-cases.json

``UNPACKED_WHEEL`` is the folder that a wheel of 0.8 to 0.11 was unpacked to, or an environment's site-packages.
"""

from __future__ import annotations

import functools
import hashlib
import pickle
import random
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from recorders.cases import MOST_STEPS, Batch, Case, Log, draw, duration, output_id, prompt_ids, write
from recorders.stand_ins import open_release

KEPT = (
    "vllm.utils",
    "vllm.v1.core",
    "vllm.v1.engine",
    "vllm.v1.kv_cache_interface",
    "vllm.v1.metrics.stats",
    "vllm.v1.outputs",
    "vllm.v1.request",
    "vllm.v1.utils",
)
LONGEST = 4096

MODES: dict[str, dict[str, Any]] = {
    "fcfs": {},
    "thr": {"thr": 3},
    "model_len": {"max_model_len": 30},
    "prefix": {"caching": True},
    "prefix_thr": {"caching": True, "thr": 5},
}
MODES_011: dict[str, dict[str, Any]] = {
    **MODES,
    "unchunked": {"chunked": False, "B": 50},
    "unchunked_prefix": {"chunked": False, "B": 50, "caching": True},
    "priority": {"policy": "priority"},
    "priority_thr": {"policy": "priority", "thr": 3},
    "prefix_priority": {"policy": "priority", "caching": True},
    "async": {"async_": True},
    "async_prefix": {"async_": True, "caching": True},
    "async_thr": {"async_": True, "thr": 3},
}
"""No asynchronous ``priority``: 0.11 preempts there whom it has scheduled, and stops at an assertion of its own."""
SETTINGS = {
    "policy": "fcfs",
    "async_": False,
    "caching": False,
    "thr": 0,
    "chunked": True,
    "full_isl": False,
    "watermark": 0.0,
    "priority": None,
    "prefix": None,
}
CASES_A_MODE = 12


def cases(release: str) -> Iterator[Case]:
    """The workloads, the same for every run."""
    for mode, settings in (MODES if release.startswith("0.8.") else MODES_011).items():
        rng = random.Random(f"{mode} of vllm")
        for _ in range(CASES_A_MODE):
            case = {"release": release, **SETTINGS, **draw(rng, mode, **settings)}
            if case["policy"] == "priority":
                case["priority"] = [rng.randrange(4) for _ in case["P"]]
            if "max_model_len" in settings:
                case["P"] = [min(p, case["max_model_len"] - 1) for p in case["P"]]
            yield case


class Engine:
    """One replica of a release, on no GPU."""

    def __init__(self, case: Case) -> None:
        from vllm.v1.core.sched import scheduler
        from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

        self.case = case
        self.is_0_8 = case["release"].startswith("0.8.")
        blocks = case["blocks"] + 1  # the null block
        scheduling = SimpleNamespace(
            max_num_seqs=case["S"],
            max_num_batched_tokens=case["B"],
            max_model_len=case.get("max_model_len", LONGEST),
            long_prefill_token_threshold=case["thr"],
            chunked_prefill_enabled=case["chunked"],
            policy=case["policy"],
            async_scheduling=case["async_"],
        )
        config = SimpleNamespace(
            scheduler_config=scheduling,
            cache_config=SimpleNamespace(
                num_gpu_blocks=blocks,
                block_size=case["bs"],
                enable_prefix_caching=case["caching"],
                prefix_caching_hash_algo="builtin",
            ),
            model_config=SimpleNamespace(is_encoder_decoder=False, is_multimodal_model=False),
            parallel_config=SimpleNamespace(
                data_parallel_rank=0, decode_context_parallel_size=1, pipeline_parallel_size=1
            ),
            lora_config=None,
            kv_transfer_config=None,
            kv_events_config=None,
            speculative_config=None,
        )
        if self.is_0_8:
            spec = FullAttentionSpec(block_size=case["bs"], num_kv_heads=1, head_size=1, dtype=None, use_mla=False)
            memory = KVCacheConfig(num_blocks=blocks, tensors={}, kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)])
        else:
            spec = FullAttentionSpec(block_size=case["bs"], num_kv_heads=1, head_size=1, dtype=None)
            memory = KVCacheConfig(
                num_blocks=blocks, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
            )
        kind = scheduler.Scheduler
        if case["async_"]:
            from vllm.v1.core.sched.async_scheduler import AsyncScheduler

            kind = AsyncScheduler
        no_grammar = SimpleNamespace(
            grammar_bitmask=lambda *_: None, should_advance=lambda _: False, should_fill_bitmask=lambda _: False
        )
        self.scheduler = kind(config, memory, no_grammar)
        self.log = Log(case)
        self.pending = list(range(len(case["P"])))

    def arrive(self, now: int) -> None:
        while self.pending and self.case["arrival"][self.pending[0]] <= now:
            self.scheduler.add_request(self.request(self.pending.pop(0)))

    def request(self, i: int) -> Any:
        from vllm.v1.request import Request

        wants = SimpleNamespace(
            max_tokens=self.case["N"][i],
            ignore_eos=True,
            stop_token_ids=(),
            logprobs=None,
            prompt_logprobs=None,
            structured_outputs=None,
            guided_decoding=None,
            extra_args=None,
        )
        if self.is_0_8:
            return Request(str(i), prompt_ids(self.case, i), None, None, None, wants, None, float(i))
        priority = self.case["priority"][i] if self.case["priority"] else 0
        hasher = _block_hasher(self.case["bs"]) if self.case["caching"] else None
        return Request(
            str(i),
            prompt_ids(self.case, i),
            wants,
            None,
            None,
            arrival_time=float(i),
            priority=priority,
            block_hasher=hasher,
        )

    @property
    def is_busy(self) -> bool:
        return bool(self.scheduler.running or self.scheduler.waiting)

    def schedule(self) -> tuple[Any, Batch, list[int]]:
        """The engine's own output of one schedule, the batch, and who gets a token at its end."""
        scheduler = self.scheduler
        running = {r.request_id: r.num_computed_tokens for r in scheduler.running}
        kept = {r.request_id: r.num_computed_tokens for r in scheduler.waiting}
        in_flight = {name: getattr(r, "num_output_placeholders", 0) for name, r in scheduler.requests.items()}
        output = scheduler.schedule()
        batch, emitting = list[tuple[int, int, int]](), list[int]()
        for name, q in output.num_scheduled_tokens.items():
            r, i = scheduler.requests[name], int(name)
            before = running[name] if name in running else r.num_computed_tokens - q
            if name not in running:
                self.log.hits += before - kept[name]
            batch.append((i, q, before))
            if before + q >= r.num_tokens + in_flight[name]:
                emitting.append(i)
        for name in running.keys() - {r.request_id for r in scheduler.running}:
            self.log.preemptions[int(name)] += 1
        if batch:
            self.log.step(batch, scheduler.kv_cache_manager.block_pool.get_num_free_blocks())
        return output, batch, emitting

    def finish(self, output: Any, emitting: list[int], now: int) -> None:
        """The batch's end: tokens come out."""
        from vllm.v1.outputs import ModelRunnerOutput

        names = list(output.num_scheduled_tokens)
        tokens = list[list[int]]()
        for name in names:
            i, r = int(name), self.scheduler.requests.get(name)
            gives = i in emitting and r is not None
            tokens.append([output_id(i, r.num_output_tokens)] if gives and r is not None else [])
            if gives:
                self.log.token(i, now)
        result: dict[str, Any] = {
            "req_ids": names,
            "req_id_to_index": {name: at for at, name in enumerate(names)},
            "sampled_token_ids": tokens,
            "logprobs": None,
            "prompt_logprobs_dict": {},
        }
        result |= {"spec_token_ids": None} if self.is_0_8 else {"pooler_output": []}
        self.scheduler.update_from_output(output, ModelRunnerOutput(**result))

    def play(self) -> Log:
        """Runs the case to its end: batches queue up to one, or two under asynchronous scheduling."""
        now, end = 0, 0
        depth = 2 if self.case["async_"] else 1
        queue = list[tuple[Any, Batch, list[int], int]]()
        for _ in range(MOST_STEPS):
            self.arrive(now)
            if not self.is_busy:
                for _, batch, _, at in queue:  # of requests that have ended
                    if batch:
                        now = end = max(end, at) + duration(self.case, batch)
                queue.clear()
                if self.pending and self.case["arrival"][self.pending[0]] <= now:
                    continue
                if not self.pending:
                    self.log.end = end
                    return self.log
                now = max(now, self.case["arrival"][self.pending[0]])
                continue
            while len(queue) < depth:
                queue.append((*self.schedule(), now))
            output, batch, emitting, at = queue.pop(0)
            if batch:
                end = max(end, at) + duration(self.case, batch)
                for i in self.pending[:]:  # seen while the batch still runs
                    if self.case["arrival"][i] < end:
                        self.arrive(self.case["arrival"][i])
                now = end
            self.finish(output, emitting, now)
        raise RuntimeError(f"no end of {self.case}")


@functools.cache
def _block_hasher(block_size: int) -> Any:
    from vllm.v1.core import kv_cache_utils

    def digest(value: object) -> bytes:
        return hashlib.sha256(pickle.dumps(value)).digest()

    kv_cache_utils.init_none_hash(digest)
    return kv_cache_utils.get_request_block_hasher(block_size, digest)


def release_in(root: Path) -> str:
    """The release of vLLM in a folder, by its metadata."""
    names = [re.match(r"vllm-(\d+\.\d+\.\d+).*\.dist-info", folder.name) for folder in root.glob("vllm-*.dist-info")]
    if not names or names[0] is None:
        raise SystemExit(f"no vllm-*.dist-info in {root}: give the folder that a wheel was unpacked to")
    return names[0].group(1)


def main(root: Path, target: Path) -> None:
    """Records all cases of the release in ``root``."""
    open_release(root, "vllm", KEPT, absent=("torch",))
    release = release_in(root)
    about = {
        "source": f"vLLM {release}: Scheduler, KVCacheManager and BlockPool of vllm.v1.core as released, no GPU",
        "licence": "Apache-2.0, Copyright contributors to the vLLM project",
        "recorded_by": "tests/recorders/vllm_v1.py",
    }
    write(target, about, cases(release), lambda case: Engine(case).play())


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
