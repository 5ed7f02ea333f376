"""Naive twin of SGLang with its radix cache: a tree whose runs are tuples of tokens, searched and evicted in full."""

from __future__ import annotations

from dataclasses import dataclass, field

from naive.batches import Entry, Request
from naive.sglang import Sglang

Text = tuple[object, ...]


@dataclass(eq=False)
class Node:
    run: Text
    parent: Node | None
    children: list[Node] = field(default_factory=list)
    locks: int = 0
    used: int = 0
    """When it was last used."""

    @property
    def path(self) -> list[Node]:
        """From here up to below the root."""
        return [] if self.parent is None else [self, *self.parent.path]

    @property
    def depth(self) -> int:
        return sum(len(node.run) for node in self.path)


@dataclass
class RadixSglang(Sglang):
    texts: dict[int, Text] = field(default_factory=dict)
    lpm: bool = False
    root: Node = field(default_factory=lambda: Node((), None))
    tips: dict[int, Node] = field(default_factory=dict)
    clock: int = 0
    done: set[int] = field(default_factory=set)
    """Requests whose prompt has been computed since they were admitted."""

    # ``free`` counts pages that are available or evictable.
    def nodes(self) -> list[Node]:
        found, todo = [], list(self.root.children)
        while todo:
            node = todo.pop()
            found.append(node)
            todo += node.children
        return found

    def evictable(self) -> int:
        return sum(len(node.run) for node in self.nodes() if node.locks == 0) // self.bs

    def walk(self, text: Text) -> Node:
        """The node at the end of the longest cached prefix in whole pages, made by a cut where need be; used now."""
        text = text[: len(text) // self.bs * self.bs]
        tip = self.root
        while text:
            best, child = 0, None
            for node in tip.children:
                same = 0
                while same < min(len(node.run), len(text)) and node.run[same] == text[same]:
                    same += 1
                if same // self.bs * self.bs > best:
                    best, child = same // self.bs * self.bs, node
            if child is None:
                break
            if best < len(child.run):
                head = Node(child.run[:best], tip, [child], child.locks, child.used)
                tip.children[tip.children.index(child)] = head
                child.run, child.parent = child.run[best:], head
                tip = head
                break
            tip, text = child, text[best:]
        self.touch(tip)
        return tip

    def touch(self, tip: Node) -> None:
        self.clock += 1
        for node in tip.path:
            node.used = self.clock

    def lock_path(self, tip: Node) -> int:
        pages = sum(len(node.run) for node in tip.path if node.locks == 0) // self.bs
        for node in tip.path:
            node.locks += 1
        self.free -= pages
        return pages

    def unlock_path(self, tip: Node) -> None:
        for node in tip.path:
            node.locks -= 1
        self.free += sum(len(node.run) for node in tip.path if node.locks == 0) // self.bs

    # --- the scheduler's hooks ---
    def sort_queue(self) -> None:
        if not self.lpm or not 2 <= len(self.waiting) <= 128:
            return
        length, starts = dict[int, int](), list[Text]()
        for r in self.waiting:
            text = self.texts[r.index][: r.P + r.gen]
            hit = self.walk(text).depth
            length[r.index] = min(hit, len(text) - 1)
            if hit <= 32 <= len(text):
                if text[:32] in starts:
                    length[r.index] = -1
                else:
                    starts.append(text[:32])
        self.waiting.sort(key=lambda r: -length[r.index])

    def match(self, r: Request) -> int:
        self.tips[r.index] = self.walk(self.texts[r.index][: r.P + r.gen - 1])
        return self.tips[r.index].depth

    def lock(self, r: Request) -> int:
        pages = self.lock_path(self.tips[r.index])
        r.blocks = self.tips[r.index].depth // self.bs
        return pages * self.bs

    def unlock(self, r: Request) -> None:
        self.unlock_path(self.tips[r.index])
        r.blocks = 0

    def insert(self, r: Request, tokens: int) -> Node:
        """Returns the request's own pages within ``tokens``, and grows the tree to hold what it lacks of them."""
        old = self.tips.pop(r.index)
        tokens = tokens // self.bs * self.bs
        own = (tokens - old.depth) // self.bs
        r.blocks -= old.depth // self.bs + own
        self.free += own
        self.unlock_path(old)
        text = self.texts[r.index][:tokens]
        tip = self.walk(text)
        if tip.depth < tokens:
            leaf = Node(text[tip.depth :], tip)
            tip.children.append(leaf)
            self.touch(leaf)
            tip = leaf
        return tip

    def keep(self, r: Request, tokens: int) -> None:
        tip = self.insert(r, tokens)
        self.lock_path(tip)
        self.tips[r.index] = tip
        r.blocks += tip.depth // self.bs

    def before_output(self, e: Entry) -> None:
        r = e.r
        known = r.P + r.gen
        if r.gen + 1 == r.N:
            self.insert(r, known)
        elif r.index not in self.done:
            self.done.add(r.index)
            self.keep(r, known)

    def retract(self, r: Request) -> None:
        tip = self.tips.pop(r.index)
        r.blocks -= tip.depth // self.bs
        self.unlock_path(tip)
        self.done.discard(r.index)
        super().retract(r)

    def make_room(self, pages: int) -> None:
        missing = pages - (self.free - self.evictable())
        while missing > 0:
            leaves = [node for node in self.nodes() if not node.children and node.locks == 0]
            if not leaves:
                return
            oldest = min(leaves, key=lambda node: node.used)
            assert oldest.parent is not None
            oldest.parent.children.remove(oldest)
            missing -= len(oldest.run) // self.bs
