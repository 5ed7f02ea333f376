"""Records the V0 scheduler and block manager of vLLM 0.8 on random small cases, with outputs processed in step.

    python tests/recorders/vllm_v0.py UNPACKED_WHEEL tests/data/vllm-v0-0.8.5-scheduler-cases.json

Needs msgspec. ``UNPACKED_WHEEL`` is the folder that the wheel was unpacked to, or an environment's site-packages.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from recorders.cases import MOST_STEPS, Case, Log, draw, duration, output_id, prompt_ids, write
from recorders.stand_ins import open_release
from recorders.vllm_v1 import release_in

KEPT = ("vllm.core", "vllm.sequence", "vllm.utils")
LONGEST = 4096
ROOMY = 200
"""A budget that holds any prompt of a case with its output: what is over it V0 turns away."""

MODES: dict[str, dict[str, Any]] = {
    "whole": {"chunked": False, "B": ROOMY},
    "whole_tight": {"chunked": False, "B": 90},
    "swap": {"chunked": False, "B": ROOMY, "swap": True},
    "chunked": {"chunked": True},
    "model_len": {"chunked": False, "B": ROOMY, "max_model_len": 30},
    "chunked_model_len": {"chunked": True, "max_model_len": 30},
}
CASES_A_MODE = 16


def cases(release: str) -> Iterator[Case]:
    """The workloads, the same for every run."""
    for mode, settings in MODES.items():
        rng = random.Random(f"{mode} of vllm v0")
        for _ in range(CASES_A_MODE):
            case = {"release": release, "swap": False, **draw(rng, mode, **settings)}
            case["watermark_blocks"] = rng.choice([0, 0, 1, 3])
            case["blocks"] += (
                case["watermark_blocks"] + case["chunked"]
            )  # a chunk may ask for one that it does not need
            case["cpu_blocks"], case["copy"] = 1000, rng.choice([0, 10**5, 10**7])
            if "max_model_len" in settings:
                case["P"] = [min(p, case["max_model_len"] - 1) for p in case["P"]]
            yield case


class Engine:
    """One V0 engine, on no GPU."""

    def __init__(self, case: Case) -> None:
        from vllm.core.scheduler import Scheduler

        self.case = case
        scheduling = SimpleNamespace(
            max_num_seqs=case["S"],
            max_num_batched_tokens=case["B"],
            max_model_len=case.get("max_model_len", LONGEST),
            chunked_prefill_enabled=case["chunked"],
            max_num_partial_prefills=1,
            max_long_partial_prefills=1,
            long_prefill_token_threshold=0,
            delay_factor=0.0,
            policy="fcfs",
            preemption_mode="swap" if case["swap"] else "recompute",
            runner_type="generate",
            is_multi_step=False,
            num_scheduler_steps=1,
            num_lookahead_slots=0,
            send_delta_data=False,
        )
        memory = SimpleNamespace(
            block_size=case["bs"],
            num_gpu_blocks=case["blocks"],
            num_cpu_blocks=case["cpu_blocks"],
            is_attention_free=False,
            sliding_window=None,
            enable_prefix_caching=False,
        )
        self.scheduler = Scheduler(scheduling, memory, None)
        self.scheduler.block_manager.watermark_blocks = case["watermark_blocks"]
        self.log = Log(case)
        self.pending = list(range(len(case["P"])))

    def arrive(self, now: int) -> None:
        from vllm.sequence import Sequence, SequenceGroup

        while self.pending and self.case["arrival"][self.pending[0]] <= now:
            i = self.pending.pop(0)
            inputs = {"type": "token", "prompt_token_ids": prompt_ids(self.case, i)}
            wants = SimpleNamespace(n=1, best_of=None, max_tokens=self.case["N"][i], prompt_logprobs=None)
            group = SequenceGroup(str(i), [Sequence(i, inputs, self.case["bs"])], float(i), sampling_params=wants)
            self.scheduler.add_seq_group(group)

    def step(self, now: int) -> int:
        """One step from ``now`` on; returns its end, or ``now`` where nothing was executed."""
        from vllm.sequence import SequenceStatus

        scheduler = self.scheduler
        running = {int(group.request_id) for group in scheduler.running}
        metadata, output, _ = scheduler.schedule()
        for i in running - {int(group.request_id) for group in scheduler.running}:
            self.log.preemptions[i] += 1
        batch, emitting = list[tuple[int, int, int]](), list[Any]()
        for scheduled, data in zip(output.scheduled_seq_groups, metadata, strict=True):
            group, q = scheduled.seq_group, scheduled.token_chunk_size
            sequence = group.first_seq
            before = sequence.data.get_num_computed_tokens() if group.is_prefill() else sequence.get_len() - 1
            batch.append((sequence.seq_id, q, before))
            group.update_num_computed_tokens(q)
            if data.do_sample:
                emitting.append(group)
        moved = len(output.blocks_to_swap_in) + len(output.blocks_to_swap_out)
        if not batch and not moved:
            return now
        self.log.step(batch, scheduler.block_manager.get_num_free_gpu_blocks())
        end = now + moved * self.case["copy"] + (duration(self.case, batch) if batch else 0)
        for group in emitting:
            sequence = group.first_seq
            token = output_id(sequence.seq_id, sequence.get_output_len())
            sequence.append_token_id(token, {token: SimpleNamespace(logprob=0.0)})
            self.log.token(sequence.seq_id, end)
            longest = self.case.get("max_model_len", LONGEST)
            if sequence.get_output_len() == group.sampling_params.max_tokens or sequence.get_len() >= longest:
                sequence.status = SequenceStatus.FINISHED_LENGTH_CAPPED
                scheduler.free_seq(sequence)
        scheduler.free_finished_seq_groups()
        self.log.end = end
        return end

    def play(self) -> Log:
        """Runs the case to its end."""
        now = 0
        for _ in range(MOST_STEPS):
            self.arrive(now)
            if self.scheduler.has_unfinished_seqs():
                now = self.step(now)
            elif self.pending:
                now = max(now, self.case["arrival"][self.pending[0]])
            else:
                return self.log
        raise RuntimeError(f"no end of {self.case}")


def main(root: Path, target: Path) -> None:
    """Records all cases of the release in ``root``."""
    open_release(root, "vllm", KEPT, absent=("torch",))
    release = release_in(root)
    about = {
        "source": f"vLLM {release}: Scheduler and SelfAttnBlockSpaceManager of vllm.core as released, no GPU",
        "licence": "Apache-2.0, Copyright contributors to the vLLM project",
        "recorded_by": "tests/recorders/vllm_v0.py",
    }
    write(target, about, cases(release), lambda case: Engine(case).play())


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
