"""The division of cores, with the /sys/devices/system/node of several kinds of machines."""

from pathlib import Path

import pytest

from runtime import numa
from runtime.numa import Share, divide, file_of_group, read_nodes

ONE = {"node0": "0-7"}
TWO = {"node0": "0-3,8-11", "node1": "4-7,12-15"}
"""Two threads per core, numbered as in Linux."""

FOUR = {"node0": "0-1,8-9", "node1": "2-3,10-11", "node2": "4-5,12-13", "node3": "6-7,14-15"}
WITH_MEMORY_ONLY = {"node0": "0-3", "node1": "4-7", "node2": "", "node10": "8-11"}


def cores(text: str) -> frozenset[int]:
    spans = [part.split("-") for part in text.split(",") if part]
    return frozenset(core for span in spans for core in range(int(span[0]), int(span[-1]) + 1))


def nodes_of(folder: Path, machine: dict[str, str], allowed: str = "0-63") -> list[frozenset[int]]:
    for name, text in machine.items():
        (folder / name).mkdir()
        (folder / name / "cpulist").write_text(f"{text}\n")
    (folder / "possible").write_text("0-1")
    return read_nodes(cores(allowed), folder)


@pytest.mark.parametrize(
    ("machine", "allowed", "expected"),
    [
        (ONE, "0-7", ["0-7"]),
        (ONE, "2-3", ["2-3"]),
        ({}, "0-3", ["0-3"]),
        (TWO, "0-15", ["0-3,8-11", "4-7,12-15"]),
        (TWO, "0-5", ["0-3", "4-5"]),
        (TWO, "4-6,12", ["4-6,12"]),
        (WITH_MEMORY_ONLY, "0-11", ["0-3", "4-7", "8-11"]),
    ],
)
def test_the_nodes_that_have_cores_for_this_process(
    tmp_path: Path, machine: dict[str, str], allowed: str, expected: list[str]
):
    assert nodes_of(tmp_path, machine, allowed) == [cores(text) for text in expected]


@pytest.mark.parametrize(
    ("machine", "num_processes", "expected"),
    [
        (ONE, 1, ["0-7"]),
        (ONE, 2, ["0-7", "0-7"]),
        (TWO, 1, ["0-15"]),
        (TWO, 2, ["0-3,8-11", "4-7,12-15"]),
        (TWO, 3, ["0-3,8-11", "4-7,12-15", "0-3,8-11"]),
        (FOUR, 2, ["0-3,8-11", "4-7,12-15"]),
        (FOUR, 3, ["0-1,8-9", "2-3,10-11", "4-7,12-15"]),
        (FOUR, 4, list(FOUR.values())),
        (FOUR, 6, [*FOUR.values(), "0-1,8-9", "2-3,10-11"]),
    ],
)
def test_processes_go_to_the_nodes_in_turn(
    tmp_path: Path, machine: dict[str, str], num_processes: int, expected: list[str]
):
    nodes = nodes_of(tmp_path, machine)
    nodes = [cores("0-7")] if machine is ONE else nodes
    shares = [divide(nodes, num_processes, number) for number in range(1, num_processes + 1)]
    assert [share.cpus for share in shares] == [cores(text) for text in expected]
    assert sum(share.count(num_processes) for share in shares[: shares[0].num_groups]) == num_processes
    assert frozenset[int]().union(*(share.cpus for share in shares)) == frozenset[int]().union(*nodes)


def test_one_more_than_planned_goes_to_the_next_node_and_is_counted_there(tmp_path: Path):
    nodes = nodes_of(tmp_path, TWO)
    fifth = divide(nodes, 4, 5)
    assert (fifth.group, fifth.count(4), fifth.count(5)) == (0, 2, 3)


def test_only_who_has_a_part_of_the_nodes_is_pinned(monkeypatch: pytest.MonkeyPatch):
    pinned: dict[int, frozenset[int]] = {}
    monkeypatch.setattr(numa.os, "sched_setaffinity", lambda thread, cpus: pinned.update({thread: cpus}))
    numa.pin(Share(0, 1, cores("0-7")))
    assert not pinned
    numa.pin(Share(1, 2, cores("4-7")))
    assert set(pinned.values()) == {cores("4-7")}
    assert numa.os.getpid() in pinned, "the main thread, whatever thread asks"


def test_each_part_has_a_file_of_its_own():
    assert [file_of_group(Path("/run/weights"), group).name for group in range(2)] == ["weights", "weights-1"]
