"""Matches the names of modules with regular expressions of a model's files.

Python's regular expressions can take exponential time, and hold the interpreter meanwhile. So a child matches them,
which the system ends when its CPU time or memory is used up.
"""

import json
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence

MAX_PATTERNS, MAX_PATTERN_CHARS = 4096, 1024
MAX_CPU_S, MAX_MEMORY_BYTES = 5, 512 << 20
MAX_WAIT_S = 60.0
"""For a child that gets only a part of a core."""

CHILD = """
import json, re, resource, sys
for kind, wanted in zip((resource.RLIMIT_CPU, resource.RLIMIT_AS), map(int, sys.argv[1:])):
    hard = resource.getrlimit(kind)[1]
    least = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    resource.setrlimit(kind, (least, least))
patterns, names = json.load(sys.stdin)
try:
    compiled = [re.compile(pattern) for pattern in patterns]
except (re.error, OverflowError, RecursionError) as error:
    sys.exit(f"it is not a regular expression ({error})")
found = [next((index for index, each in enumerate(compiled) if each.match(name)), -1) for name in names]
json.dump(found, sys.stdout)
"""


class PatternError(Exception):
    """Regular expressions that are invalid or too expensive. The text begins with their beginning."""


def first_matches(patterns: Sequence[str], names: Collection[str]) -> Mapping[str, int]:
    """Returns, by name, the index of the first pattern that matches its beginning (`re.match`), if there is one.

    It costs at most `MAX_CPU_S` and `MAX_MEMORY_BYTES`, in another process. Raises `PatternError`.
    """
    if not patterns or not names:
        return {}
    if len(patterns) > MAX_PATTERNS:
        raise PatternError(f"{_shown(patterns)}: supported are {MAX_PATTERNS} patterns, not {len(patterns)}")
    if long := [pattern for pattern in patterns if len(pattern) > MAX_PATTERN_CHARS]:
        raise PatternError(f"{_shown(long)}: supported are patterns of {MAX_PATTERN_CHARS} characters")
    limits = (str(MAX_CPU_S), str(MAX_MEMORY_BYTES))
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", CHILD, *limits],
            input=json.dumps((list(patterns), list(names))).encode(),
            capture_output=True,
            timeout=MAX_WAIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PatternError(f"{_shown(patterns)}: no process could match it: {error}") from None
    if done.returncode == 1 and done.stderr.startswith(b"it is not"):
        raise PatternError(f"{_shown(patterns)}: {done.stderr.decode(errors='replace').strip():.200}")
    if done.returncode:
        raise PatternError(
            f"{_shown(patterns)}: to match {len(names)} names of modules needs more than {MAX_CPU_S} s of CPU time or "
            f"{MAX_MEMORY_BYTES >> 20} MiB; write the names of the modules instead"
        )
    return {name: index for name, index in zip(names, json.loads(done.stdout), strict=True) if index >= 0}


def _shown(patterns: Sequence[str]) -> str:
    more = f" and {len(patterns) - 1} more" if len(patterns) > 1 else ""
    return f"{patterns[0]!r:.60}{more}"
