"""Records the scheduler of SGLang on random small cases: its prefill adder, batches, radix tree and allocator.

    python tests/recorders/sglang_srt.py UNPACKED_WHEEL tests/data/sglang-0.5.23-scheduler-cases.json

Needs torch, msgspec and numpy, all on the CPU. ``UNPACKED_WHEEL`` is the folder that the wheel was unpacked to,
or an environment's site-packages. Pages hold one token: larger ones are handed out by a GPU kernel. Every request ends
by length, after ``N`` tokens, also where it declared more (``M``).
"""

from __future__ import annotations

import logging
import random
import re
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from recorders.cases import MOST_STEPS, Batch, Case, Log, draw, duration, output_id, prompt_ids, write
from recorders.stand_ins import open_release

KEPT = (
    "sglang.srt.environ",
    "sglang.srt.managers.schedule_batch",
    "sglang.srt.managers.schedule_policy",
    "sglang.srt.managers.scheduler",
    "sglang.srt.managers.scheduler_components",
    "sglang.srt.mem_cache",
)
NO_CUT = 1 << 30

MODES: dict[str, dict[str, Any]] = {
    "fcfs": {},
    "declared": {"declares": True},
    "whole": {"chunk": None},
    "synchronous": {"overlap": False},
    "conservative": {"ratio": 1.0},
    "retracting": {"ratio": 0.05, "S": 8, "is_tight": True},
    "radix": {"caching": True},
    "radix_retracting": {"caching": True, "ratio": 0.05, "S": 8, "is_tight": True},
    "radix_lpm": {"caching": True, "policy": "lpm"},
}
CASES_A_MODE = 12


def cases(release: str) -> Iterator[Case]:
    """The workloads, the same for every run."""
    for mode, settings in MODES.items():
        rng = random.Random(f"{mode} of sglang")
        for _ in range(CASES_A_MODE):
            drawn = draw(rng, mode, **{**settings, "bs": 1})
            declares, is_tight = drawn.pop("declares", False), drawn.pop("is_tight", False)
            if is_tight:
                drawn["N"] = [n + rng.randint(5, 30) for n in drawn["N"]]
                drawn["arrival"] = [at // 10 for at in drawn["arrival"]]
                drawn["blocks"] = 1
            case = {"release": release, "policy": "fcfs", "caching": False, "overlap": True, "ratio": 0.7, **drawn}
            case["M"] = [n + (rng.randint(0, 30) if declares else 0) for n in case["N"]]
            case.setdefault("chunk", rng.choice([1, 4, 16, 100]))
            case["max_prefill_tokens"] = rng.choice([8, 40, 400])
            most = max(p + m for p, m in zip(case["P"], case["M"], strict=True)) + 3
            case["blocks"] = max(case["blocks"], most) + rng.choice([0, 2, 10])
            del case["B"]
            yield case


def _imitate_the_server(case: Case) -> None:
    """What the scheduler reads from modules that stand in."""
    from sglang.srt.managers import schedule_batch, schedule_policy, scheduler
    from sglang.srt.managers.scheduler_components import new_token_ratio_tracker
    from sglang.srt.mem_cache import allocation

    settings = SimpleNamespace(
        schedule_policy=case["policy"],
        schedule_low_priority_values_first=False,
        retraction_policy="length",
        prefill_max_requests=None,
        schedule_conservativeness=case["ratio"] / 0.7,
    )
    for module in (schedule_batch, schedule_policy, scheduler, new_token_ratio_tracker):
        module.get_schedule = lambda: settings
    scheduler.get_parallel = lambda: SimpleNamespace(pp_max_micro_batch_size=case["S"])
    for module in (schedule_batch, allocation):
        module.is_pin_memory_available = lambda _=None: False
    allocation.attention_backends = lambda: ("torch_native", "torch_native")
    schedule_batch.ForwardMode = _Modes
    for module in (schedule_batch, schedule_policy):
        module.get_disagg = lambda: SimpleNamespace(disaggregation_mode="null")
    scheduler.DisaggregationMode = SimpleNamespace(NULL=0, PREFILL=1, DECODE=2)
    no_members = {
        "num_beam_member_rows": lambda _: 0,
        "beam_retraction_order": lambda order, _: order,
        "strip_beam_tail": lambda _: None,
        "append_beam_tail": lambda _: None,
        "get_return_hidden_states_mode": lambda _: 0,
        "get_batch_return_hidden_states_mode": lambda _: _NoHiddenStates(),
    }
    for name, function in no_members.items():
        setattr(schedule_batch, name, function)


class _NoHiddenStates(int):
    def need_capture(self) -> bool:
        return False


class _Mode:
    def __init__(self, name: str) -> None:
        self.name = name

    def is_extend(self) -> bool:
        return self.name == "extend"


class _Modes:
    EXTEND = _Mode("extend")
    DECODE = _Mode("decode")


class Engine:
    """One scheduler, on the CPU."""

    def __init__(self, case: Case) -> None:
        import torch
        from sglang.srt.managers.schedule_batch import ScheduleBatch
        from sglang.srt.managers.schedule_policy import SchedulePolicy
        from sglang.srt.managers.scheduler import Scheduler
        from sglang.srt.managers.scheduler_components.new_token_ratio_tracker import NewTokenRatioTracker
        from sglang.srt.mem_cache.allocator.token import TokenToKVPoolAllocator
        from sglang.srt.mem_cache.cache_init_params import CacheInitParams
        from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
        from sglang.srt.mem_cache.radix_cache import RadixCache

        _imitate_the_server(case)
        self.case = case
        self.allocator = TokenToKVPoolAllocator(case["blocks"], torch.int64, "cpu", None, False)
        rows = ReqToTokenPool(case["S"], 4096, "cpu", False)
        self.tree = RadixCache(CacheInitParams(not case["caching"], rows, self.allocator, 1))
        none = SimpleNamespace(is_none=lambda: True)
        first = min(1.0, case["ratio"])
        least = first * 0.14
        fields = {
            "page_size": 1,
            "tree_cache": self.tree,
            "token_to_kv_pool_allocator": self.allocator,
            "req_to_token_pool": rows,
            "new_token_ratio_tracker": NewTokenRatioTracker(
                init=first, min=least, decay=(first - least) / 600, current=first
            ),
            "policy": SchedulePolicy(case["policy"], self.tree, False, False, False),
            "waiting_queue": [],
            "running_batch": ScheduleBatch(reqs=[], batch_is_full=False),
            "last_batch": None,
            "chunked_req": None,
            "chunked_prefill_size": case["chunk"],
            "max_prefill_tokens": case["max_prefill_tokens"],
            "max_running_requests": case["S"],
            "max_prefill_bs": 0,
            "enable_overlap": case["overlap"],
            "enable_skip_finishing_decode": case["overlap"],
            "spec_algorithm": none,
            "model_config": SimpleNamespace(vocab_size=1 << 40, is_encoder_decoder=False),
            "dp_attn_adapter": SimpleNamespace(
                maybe_prepare_mlp_sync_batch=lambda batch, need_sync=None: batch,
                maybe_convert_decode_to_extend=lambda batch: batch,
            ),
            "ngram_embedding_manager": SimpleNamespace(prepare_for_forward=lambda batch, chunked_req: batch),
            "beam_coordinator": SimpleNamespace(pending_member_rows=lambda _: 0, retire_group=lambda _: None),
            "grammar_manager": SimpleNamespace(has_waiting_grammars=lambda: False),
            "disaggregation_mode": 0,
            "result_queue": [],
            "processed_tokens_counter": 0,
            "is_mixed_chunk": False,
            "max_queued_requests": None,
            "prefill_decode_interval": 0,
            "_prefill_decode_interval_remaining": 0,
        }
        absent = (
            "dllm_config min_free_slots_delayer prefill_delayer dynamic_chunk_sizer decode_offload_manager lora_drainer"
            " truncation_align_size hisparse_coordinator _pending_chunked_abort_req"
        )
        fields |= dict.fromkeys(absent.split())
        self.scheduler = object.__new__(Scheduler)
        self.scheduler.__dict__.update(fields)
        self.log = Log(case)
        self.pending = list(range(len(case["P"])))

    def arrive(self, now: int) -> None:
        from sglang.srt.managers.schedule_batch import Req

        while self.pending and self.case["arrival"][self.pending[0]] <= now:
            i = self.pending.pop(0)
            wants = SimpleNamespace(max_new_tokens=self.case["M"][i], ignore_eos=False, custom_params=None)
            req = Req(str(i), "", array("q", prompt_ids(self.case, i)), wants)
            req.next_output_finishes_by_length = lambda req=req, i=i: len(req.output_ids) + 1 >= self.case["N"][i]
            self.scheduler.waiting_queue.append(req)

    @property
    def is_busy(self) -> bool:
        scheduler = self.scheduler
        last = scheduler.last_batch.reqs if scheduler.last_batch is not None else []
        live = [req for req in (*scheduler.running_batch.reqs, *last) if not req.finished()]
        return bool(scheduler.waiting_queue or live or scheduler.chunked_req is not None)

    def schedule(self) -> tuple[Any, Batch]:
        """The engine's next batch, and what it holds."""
        scheduler = self.scheduler
        before = {int(r.rid): r.retraction_count for r in scheduler.running_batch.reqs}
        reqs = {int(r.rid): r for r in scheduler.running_batch.reqs}
        plan = scheduler.get_next_batch_to_run(scheduler.running_batch, scheduler.last_batch)
        for i, count in before.items():
            self.log.preemptions[i] += reqs[i].retraction_count - count
        scheduler.running_batch = plan.running_batch
        batch = plan.batch_to_run
        scheduler.last_batch = batch
        if batch is None:
            return None, []
        rows = list[tuple[int, int, int]]()
        for req, end in zip(batch.reqs, batch.seq_lens_cpu.tolist(), strict=True):
            start = req.prefix_len if batch.forward_mode.is_extend() else end - 1
            rows.append((int(req.rid), end - start, start))
            if batch.forward_mode.is_extend() and req.extend_batch_idx == 1:
                self.log.hits += start
        self.log.step(rows, self.allocator.available_size() + self.tree.evictable_size())
        kept = SimpleNamespace(reqs=list(batch.reqs), extends=batch.forward_mode.is_extend())
        scheduler.result_queue.append((kept, None))
        return kept, rows

    def process(self, batch: Any, now: int) -> None:
        """A batch's results, as ``process_batch_result_prefill`` and ``_decode`` take them."""
        from sglang.srt.managers.schedule_batch import FINISH_LENGTH
        from sglang.srt.mem_cache.common import checkpoint_kv_cache, release_kv_cache

        self.scheduler.result_queue.pop(0)
        self.allocator.free_group_begin()
        for req in batch.reqs:
            if req.finished() or req.is_retracted:
                continue
            if batch.extends and req.inflight_middle_chunks > 0:
                req.inflight_middle_chunks -= 1
                continue
            i = int(req.rid)
            req.output_ids.append(output_id(i, len(req.output_ids)))
            self.log.token(i, now)
            if len(req.output_ids) == self.case["N"][i]:
                req.finished_reason = FINISH_LENGTH(len(req.output_ids))
                release_kv_cache(req, self.tree, checkpoint=True)
            elif batch.extends:
                checkpoint_kv_cache(req, self.tree)
        self.allocator.free_group_end()

    def play(self) -> Log:
        """Runs the case to its end, with the next batch scheduled while one runs unless ``overlap`` is off."""
        now, end = 0, 0
        queue = list[tuple[Any, Batch, int]]()
        for _ in range(MOST_STEPS):
            self.arrive(now)
            if not self.is_busy and not any(batch for _, batch, _ in queue):
                queue.clear()
                self.scheduler.last_batch = None
                self.scheduler.new_token_ratio_tracker.reset()
                if not self.pending:
                    self.log.end = end
                    return self.log
                now = max(now, self.case["arrival"][self.pending[0]])
                continue
            while len(queue) < (2 if self.case["overlap"] else 1):
                queue.append((*self.schedule(), now))
            kept, batch, at = queue.pop(0)
            if kept is not None:
                now = end = max(end, at) + duration(self.case, batch)
                self.process(kept, now)
        raise RuntimeError(f"no end of {self.case}")


def main(root: Path, target: Path) -> None:
    """Records all cases of the release in ``root``."""
    logging.disable(logging.WARNING)
    open_release(root, "sglang", KEPT)
    release = (root / "sglang" / "_version.py").read_text()
    match = re.search(r"version = '([\d.]+)'", release)
    about = {
        "source": f"SGLang {match[1] if match else ''}: Scheduler.get_next_batch_to_run, PrefillAdder, ScheduleBatch, "
        "RadixCache and TokenToKVPoolAllocator as released, on the CPU",
        "licence": "Apache-2.0, Copyright SGLang Team",
        "recorded_by": "tests/recorders/sglang_srt.py",
    }
    write(target, about, cases(match[1] if match else ""), lambda case: Engine(case).play())


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
