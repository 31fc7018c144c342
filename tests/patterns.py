"""Finds regular expressions whose matching may take more than linear time, by the ambiguity of their automata.

A backtracking matcher tries all paths of an automaton before it fails. Their number grows exponentially with the text
if a state has two different ways back to itself for one word (EDA), and polynomially if there are two loops for one
word, the second behind the first (IDA): Weber and Seidl, On the degree of ambiguity of finite automata, 1991; Weideman
et al., Analyzing matching time behavior of backtracking regular expression matchers, 2016.

Positions are the characters of a pattern; there is a step from one to those that may come next. Bounded repeats count
as two at most. A search adds a loop for its start in front. Where a match has succeeded, nothing is tried again.
"""

import re
from collections import Counter
from collections.abc import Iterable
from re import _constants as sre  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser  # pyright: ignore[reportAttributeAccessIssue]
from typing import Any, Literal

Mode = Literal["fullmatch", "match", "search"]

SAMPLES = "".join(map(chr, range(128))) + "\x85\xa0\xb5\xdfé٣µ\u2028日😀"
MAX_COPIES = 2
END = -1
START = 0


class Automaton:
    """The positions of a pattern. `steps`: by position, the next ones, with the number of ways there (at most 2)."""

    def __init__(self, pattern: str | bytes, flags: int, mode: Mode):
        tree = _parser.parse(pattern, flags)
        self._flags = tree.state.flags
        self._is_bytes = isinstance(pattern, bytes)
        literals = {chr(number) for number in _literals(tree) if number <= 0x10FFFF}
        self._samples = sorted({*SAMPLES, *literals} if not self._is_bytes else {chr(number) for number in range(256)})
        self.masks: list[int] = [0]
        self._next: list[list[tuple[int, bool]]] = []
        """By node without a character: the nodes behind it, and whether a condition lies between."""
        self._position_of: dict[int, int] = {}
        first, last = self._node(), self._node()
        self._entry, self._exit = first, last
        self._dead = self._node()
        self._first_nodes = {first} if mode == "search" else set[int]()
        self._build(tree, first, last)
        is_anchored = mode != "search" or (len(tree) > 0 and tree[0][0] is sre.AT and self._is_fixed(tree[0][1]))
        if not is_anchored:
            start = self._node()
            self._add_characters((1 << len(self._samples)) - 1, start, start)
            self._next[start].append((first, False))
            self._entry = start
        self._accepts_early = mode != "fullmatch"
        self.steps: list[dict[int, int]] = []
        self._connect()

    def _is_fixed(self, where: Any) -> bool:
        return where is sre.AT_BEGINNING_STRING or (where is sre.AT_BEGINNING and not self._flags & re.MULTILINE)

    def _node(self) -> int:
        self._next.append([])
        return len(self._next) - 1

    def _add_characters(self, mask: int, begin: int, end: int) -> None:
        """A position: its node has the step that reads a character, and leads to `end`."""
        node = self._node()
        self.masks.append(mask)
        self._position_of[node] = len(self.masks) - 1
        self._next[begin].append((node, False))
        self._next[node].append((end, False))

    def _build(self, tree: Iterable[Any], begin: int, end: int) -> None:
        for operator, value in tree:
            behind = self._node()
            self._build_one(operator, value, begin, behind)
            begin = behind
        self._next[begin].append((end, False))

    def _build_one(self, operator: Any, value: Any, begin: int, end: int) -> None:
        if operator in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            self._add_characters(self._mask(operator, value), begin, end)
        elif operator is sre.BRANCH:
            for branch in value[1]:
                self._build(branch, begin, end)
        elif operator is sre.SUBPATTERN:
            self._build(value[3], begin, end)
        elif operator is sre.ATOMIC_GROUP:
            self._build(value, begin, end)
        elif operator in (sre.MAX_REPEAT, sre.MIN_REPEAT, sre.POSSESSIVE_REPEAT):
            least, most, repeated = value
            self._repeat((least, most), repeated, begin, end)
        elif operator in (sre.ASSERT, sre.ASSERT_NOT):
            if value[0] < 0 and operator is sre.ASSERT and begin in self._first_nodes:  # a search may as well read it
                self._build(value[1], begin, end)
                return
            if value[0] > 0:  # looks ahead: what it reads is tried, and then the rest
                self._build(value[1], begin, self._dead)
            self._next[begin].append((end, True))
        elif operator is sre.AT:
            self._next[begin].append((end, True))
        elif operator is sre.GROUPREF:
            self._build([(sre.MAX_REPEAT, (0, sre.MAXREPEAT, [(sre.ANY, None)]))], begin, end)
        elif operator is sre.GROUPREF_EXISTS:
            for branch in (value[1], value[2] or []):
                self._build(branch, begin, end)
        else:
            raise NotImplementedError(str(operator))

    def _repeat(self, bounds: tuple[int, Any], tree: Any, begin: int, end: int) -> None:
        least, most = bounds
        for _ in range(min(least, MAX_COPIES)):
            behind = self._node()
            self._build(tree, begin, behind)
            begin = behind
        if most is sre.MAXREPEAT:
            inside, behind = self._node(), self._node()
            self._build(tree, inside, behind)
            for node in (begin, behind):
                self._next[node] += [(inside, False), (end, False)]
            return
        for _ in range(min(most - least, MAX_COPIES)):
            self._next[begin].append((end, False))
            behind = self._node()
            self._build(tree, begin, behind)
            begin = behind
        self._next[begin].append((end, False))

    def _mask(self, operator: Any, value: Any) -> int:
        return sum(1 << index for index, char in enumerate(self._samples) if self._has(operator, value, char))

    def _has(self, operator: Any, value: Any, char: str) -> bool:
        folded = self._flags & re.IGNORECASE
        match operator:
            case sre.LITERAL:
                return ord(char) == value or bool(folded and char.lower() == chr(value).lower())
            case sre.NOT_LITERAL:
                return not self._has(sre.LITERAL, value, char)
            case sre.ANY:
                return char != "\n" or bool(self._flags & re.DOTALL)
            case sre.RANGE:
                cases = {char, char.lower(), char.upper()} if folded else {char}
                return any(len(one) == 1 and value[0] <= ord(one) <= value[1] for one in cases)
            case sre.CATEGORY:
                return self._is_in_category(value, char)
            case _:  # IN
                is_negated = value[0][0] is sre.NEGATE
                return is_negated != any(self._has(kind, item, char) for kind, item in value[is_negated:])

    def _is_in_category(self, category: Any, char: str) -> bool:
        letter = {"DIGIT": "d", "SPACE": "s", "WORD": "w"}[str(category).rsplit("_", 1)[1]]
        kept = self._flags & (re.ASCII | re.UNICODE)
        text = char.encode("latin-1") if self._is_bytes else char
        escape = f"\\{letter.upper() if 'NOT' in str(category) else letter}"
        found = re.match(escape.encode() if self._is_bytes else escape, text, kept)  # type: ignore[type-var]
        return found is not None

    def _connect(self) -> None:
        """Fills `steps` and drops the positions behind which a match is certain."""
        nodes = {position: node for node, position in self._position_of.items()}
        reached = [
            self._follow(self._entry if position == START else nodes[position]) for position in range(len(self.masks))
        ]
        final = [self._accepts_early and accepts for _, accepts in reached]
        self.steps = [
            {} if final[position] else {to: ways for to, ways in found.items() if not final[to]}
            for position, (found, _) in enumerate(reached)
        ]

    def _follow(self, begin: int) -> tuple[dict[int, int], bool]:
        """Returns the positions that come next, and whether the match may end here without a condition."""
        found: Counter[int] = Counter()
        accepts = False
        paths: list[tuple[int, tuple[int, ...], bool]] = [(begin, (), False)]
        for _ in range(20_000):
            if not paths:
                break
            node, passed, is_conditional = paths.pop()
            accepts = accepts or (node == self._exit and not is_conditional)
            for to, has_condition in self._next[node]:
                if to in self._position_of:
                    found[self._position_of[to]] += 1
                elif passed.count(to) < 2:  # twice: the end of one round of a loop and the begin of the next
                    paths.append((to, (*passed, to), is_conditional or has_condition))
        return {position: min(ways, 2) for position, ways in found.items()}, accepts


def find_blowup(pattern: str | bytes, flags: int = 0, mode: Mode = "search") -> str:
    """Returns why matching may take more than linear time: "exponential" or "polynomial"; "" if it does not."""
    automaton = Automaton(pattern, flags, mode)
    steps, masks = automaton.steps, automaton.masks
    reach = _reachability(steps)
    loops = [position for position in range(len(steps)) if position in reach[position] and (position in reach[START])]
    component = {p: frozenset(q for q in loops if q in reach[p] and p in reach[q]) for p in loops}
    for part in set(component.values()):
        if _has_two_ways(steps, masks, part):
            return "exponential"
    for p in loops:
        for q in loops:
            if p != q and q in reach[p] and _has_loop_behind(automaton, p, q, component, reach):
                return "polynomial"
    return ""


def _reachability(steps: list[dict[int, int]]) -> list[set[int]]:
    found: list[set[int]] = []
    for begin in range(len(steps)):
        seen: set[int] = set()
        todo = list(steps[begin])
        while todo:
            position = todo.pop()
            if position not in seen:
                seen.add(position)
                todo += steps[position]
        found.append(seen)
    return found


def _has_two_ways(steps: list[dict[int, int]], masks: list[int], part: frozenset[int]) -> bool:
    """EDA within one component: a pair of paths that part and meet again."""
    if any(ways > 1 for position in part for to, ways in steps[position].items() if to in part):
        return True
    apart = _explore({(p, p) for p in part}, lambda pair: _pairs(steps, masks, pair, part))
    for pair in apart:
        if pair[0] != pair[1]:
            again = _explore({pair}, lambda pair: _pairs(steps, masks, pair, part))
            if any(p == q for p, q in again):
                return True
    return False


def _pairs(
    steps: list[dict[int, int]], masks: list[int], pair: tuple[int, int], part: frozenset[int]
) -> list[tuple[int, int]]:
    p, q = pair
    return [
        (to_p, to_q)
        for to_p in steps[p]
        if to_p in part
        for to_q in steps[q]
        if to_q in part and masks[to_p] & masks[to_q]
    ]


def _has_loop_behind(
    automaton: Automaton, p: int, q: int, component: dict[int, frozenset[int]], reach: list[set[int]]
) -> bool:
    """IDA: some word leads from `p` to `p`, from `p` to `q` and from `q` to `q`."""
    steps, masks, first, last = automaton.steps, automaton.masks, component[p], component[q]
    middle = {position for position in reach[p] if q in reach[position] or position == q}

    def step(triple: tuple[int, int, int]) -> list[tuple[int, int, int]]:
        a, b, c = triple
        return [
            (to_a, to_b, to_c)
            for to_a in steps[a]
            if to_a in first
            for to_c in steps[c]
            if to_c in last and masks[to_a] & masks[to_c]
            for to_b in steps[b]
            if to_b in middle and masks[to_a] & masks[to_b] & masks[to_c]
        ]

    begun = set(step((p, p, q)))
    return (p, q, q) in begun or (p, q, q) in _explore(begun, step)


def _explore(begun: set[Any], step: Any) -> set[Any]:
    """Returns what is reached from `begun` by one step or more, and `begun` itself."""
    seen, todo = set(begun), list(begun)
    while todo:
        for to in step(todo.pop()):
            if to not in seen:
                seen.add(to)
                todo.append(to)
    return seen


def _literals(tree: Any) -> Iterable[int]:
    """Yields the characters that a pattern names."""
    if isinstance(tree, tuple | list | _parser.SubPattern):
        for item in tree:
            yield from _literals(item)
    elif isinstance(tree, int) and not isinstance(tree, bool) and tree > 127:
        yield int(tree)
