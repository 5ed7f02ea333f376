"""Naive twin of vLLM V1 with layers in several groups (engine semantics 2.3, 2.4, 3.2): a list of blocks a group, block
by block; a block that left a window is ``None`` in it."""

from __future__ import annotations

from dataclasses import dataclass

from naive.vllm import Block, Config, Engine, Request, ceil_div


@dataclass(frozen=True)
class Group:
    bs: int
    window: int | None = None
    """Sliding window with the token itself, or the chunk; ``None``: the whole context."""
    chunked: bool = False
    cap: int = 0
    """Blocks that the admission test counts at most."""

    def outside(self, comp: int) -> int:
        """Whole blocks that the next token does not read."""
        if self.window is None:
            return 0
        if self.chunked:
            return comp // self.window * self.window // self.bs
        return max(0, comp - self.window + 1) // self.bs


Table = list[Block | None]


class GroupedEngine(Engine):
    def __init__(self, config: Config, requests: list[Request], groups: list[Group], state_blocks: int = 0) -> None:
        super().__init__(config, requests)
        self.groups = groups
        self.state_blocks = state_blocks
        self.tables: dict[int, list[Table]] = {}
        self.states: dict[int, list[Block]] = {}
        self.done: dict[int, int] = {}
        """Tokens whose full blocks carry a hash."""

    def cached(self, r: Request, kind: list[int], i: int) -> bool:
        return all((g, r.block_hash(i, self.groups[g].bs)) in self.pool.cached for g in kind)

    def lookup(self, r: Request) -> list[Table]:  # type: ignore[override]
        if not self.c.caching:
            return [[] for _ in self.groups]
        full = [g for g, group in enumerate(self.groups) if group.window is None]
        windows = [g for g, group in enumerate(self.groups) if group.window is not None]
        sizes = {group.bs for group in self.groups}
        longest = r.num_tokens - 1
        if full:
            bs = self.groups[full[0]].bs
            longest = (
                next(i for i in range(longest // bs + 1) if i == longest // bs or not self.cached(r, full, i)) * bs
            )
        best = longest
        if windows:
            group = self.groups[windows[0]]
            # The longest prefix, in whole blocks of every group, whose last window is cached.
            for end in range(longest // group.bs, -1, -1):
                tokens = end * group.bs
                if any(tokens % bs for bs in sizes):
                    continue
                if all(self.cached(r, windows, i) for i in range(group.outside(tokens), end)):
                    best = tokens
                    break
        else:
            best -= best % max(sizes)
        found: list[Table] = []
        for g, group in enumerate(self.groups):
            row: Table = [None] * group.outside(best)
            row += [self.pool.cached[g, r.block_hash(i, group.bs)][0] for i in range(len(row), best // group.bs)]
            found.append(row)
        return found

    def hit_tokens(self, found: list[Table]) -> int:  # type: ignore[override]
        return len(found[0]) * self.groups[0].bs

    def asks(self, tokens: int, found: list[Table]) -> int:  # type: ignore[override]
        wanted = self.state_blocks
        for group, row in zip(self.groups, found, strict=True):
            new = ceil_div(tokens, group.bs) - len(row)
            kept = [b for b in row if b is not None]
            if group.window is not None:
                new = min(new, group.cap - len(kept))
            wanted += new + sum(b.refs == 0 for b in kept)
        return wanted

    def take(self, r: Request, found: list[Table]) -> None:  # type: ignore[override]
        for row in found:
            for b in row:
                if b is not None:
                    self.pool.touch(b)
        self.tables[r.index] = [list(row) for row in found]
        self.done[r.index] = self.hit_tokens(found)

    def cache(self, r: Request, tokens: int) -> None:
        if not self.c.caching or tokens <= self.done[r.index]:
            return
        for g, (group, row) in enumerate(zip(self.groups, self.tables[r.index], strict=True)):
            for i in range(self.done[r.index] // group.bs, tokens // group.bs):
                block = row[i]
                if block is not None:
                    block.hash = (g, r.block_hash(i, group.bs))
                    self.pool.cached.setdefault(block.hash, []).append(block)
        self.done[r.index] = tokens // self.c.bs * self.c.bs

    def grow(self, r: Request, tokens: int, ahead: int = 0) -> bool:
        assert ahead == 0, "drafts are not followed here"
        tables = self.tables[r.index]
        for group, row in zip(self.groups, tables, strict=True):
            left = [i for i in range(group.outside(r.comp)) if row[i] is not None]
            self.pool.release([b for i in left if (b := row[i]) is not None])
            for i in left:
                row[i] = None
        state = 0 if r.index in self.states else self.state_blocks
        need = [max(0, ceil_div(tokens, group.bs) - len(row)) for group, row in zip(self.groups, tables, strict=True)]
        if sum(need) + state > len(self.pool.free):
            return False
        if state:
            self.states[r.index] = [self.pool.pop() for _ in range(state)]
        for row, n in zip(tables, need, strict=True):
            row += [self.pool.pop() for _ in range(n)]
        self.cache(r, min(tokens, r.num_tokens))
        return True

    def free(self, r: Request) -> None:
        for row in self.tables.pop(r.index):
            self.pool.release([b for b in row if b is not None])
        self.pool.release(self.states.pop(r.index, []))
