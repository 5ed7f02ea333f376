"""How a model's layer groups share a replica's blocks in a replay: the cache layout as the kernels read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from replay.hardware.entries import ModelSpec
from replay.hardware.kv import KvLayout

Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LayerGroups:
    """Fields of ``replay.kernels.state.Config`` by the same names."""

    full_groups: int = 0
    full_block_size: int = 1
    window_groups: int = 0
    window_block_size: int = 1
    window_tokens: int = 1
    window_chunked: int = 0
    window_cap_blocks: int = 0
    window_ring: int = 0
    state_blocks: int = 0

    def most_blocks(self, tokens: Int64Array) -> Int64Array:
        """Blocks that a request of ``tokens`` tokens holds at most at any time, shape as given."""
        full = -(-tokens // self.full_block_size)
        window = np.minimum(-(-tokens // self.window_block_size), self.window_cap_blocks)
        held: Int64Array = self.full_groups * full + self.window_groups * window + self.state_blocks
        return held


def is_plain(layout: KvLayout) -> bool:
    """Whether a request takes one block for every ``block_tokens`` tokens and nothing else."""
    return len(layout.groups) == 1 and layout.groups[0].kind == "full" and layout.group_count == 1


def layer_groups(layout: KvLayout, model: ModelSpec, max_model_len: int, max_num_batched_tokens: int) -> LayerGroups:
    """The groups of ``layout``. A window group is counted at ``ceil(min(W - 1 + tokens in flight, max_model_len) /
    block) + 1`` blocks at most (chunked attention: the chunk instead of W - 1, and none more)."""
    fields = dict[str, int]()
    for group in layout.groups:
        if group.kind == "full":
            fields |= {"full_groups": group.count, "full_block_size": group.block_tokens}
        elif group.kind == "state":
            fields["state_blocks"] = group.count * group.state_blocks
        else:
            chunked, size = group.kind == "chunked", group.block_tokens
            window = model.sliding_window or 0
            live = window + max_num_batched_tokens - (not chunked)
            fields |= {
                "window_groups": group.count,
                "window_block_size": size,
                "window_tokens": window,
                "window_chunked": int(chunked),
                "window_cap_blocks": -(-min(group.window_tokens or 0, max_model_len) // size) + group.extra_blocks,
                "window_ring": -(-live // size) + 2,
            }
    return LayerGroups(**fields)
