"""The process that represents an engine on another machine, as the scheduler of its name (decision 0067).

It represents a stage of a pipeline there as the rank of its name (0158).

It has the scheduler's place, socket and pid here. A lost connection ends this process, and the run reacts as to the
death of any scheduler.
"""

import contextlib
import logging
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from extras.remote import messages as wire
from extras.remote.config import RemoteConfig
from extras.remote.file_server import FileServer
from extras.remote.fitting import MisfitError, check_fit, open_frame
from extras.remote.join_keys import HeadKeys, read_keys
from extras.remote.profiles import ProfileFetch
from extras.remote.secure_channels import HeadChannel
from messages import VERSION
from messages.channels import Receiver, Sender
from messages.config.scheduling import CPU_STEP_TOKENS
from messages.config.server import Config
from messages.control.admin import Acknowledged, Failed, Instruction, InstructionDone, StopProfile
from messages.control.processes import WAITING, BootFailed, Drain, Ready, Stop, kind_of, worker_number
from messages.engine_names import RANK, hops_of, rank_of
from messages.errors import ChannelFullError
from messages.ring.replies import ToDetokenizer
from messages.ring.requests import ToScheduler
from messages.ring.steps import ToRank
from messages.ring.uids import frontend_blocks
from runtime.process import ProcessLink, run_process
from supervisor.manifest import digests_of, without_keys

PROBE_INTERVAL_S = 1.0

FLOAT32_BYTES, FRAME_BYTES = 4, 4096
"""FRAME_BYTES: room for what stands around hidden states, and for the numbers that stages compare as they start."""

log = logging.getLogger("sluice.proxy")


class Proxy:
    """Forwards messages of the launcher and the ring to the engine, and the engine's messages to them."""

    def __init__(self, link: ProcessLink, address: str):
        self._link = link
        self._address = address
        keys = read_keys(link.run_dir.head_keys, HeadKeys)
        self._channel: HeadChannel[wire.ToProxy] = HeadChannel(address, keys, wire.ToProxy)
        link.waiter.add_channel(self._channel)
        link.waiter.add_channel(self._channel.connections)
        link.on_instruction = self._hand_on_instruction
        self._joiner: bytes | None = None
        self._placement = self._make_placement() if RemoteConfig.of(link.config).ray else None
        self._host = ""
        self._is_stage = kind_of(link.name) == RANK
        self._inbox: Receiver[Any] | None = None
        """While the engine serves, and while a stage starts: it loads the model together with the others."""
        self._hops: Receiver[Any] | None = None
        """What the stage before sends to this one."""
        self._outbox: Sender[Any] | None = None
        self._refusal: wire.TurnedAway | None = None
        """The latest one."""
        self._due_s = 0.0
        self._newest_block = 0
        """The largest uid block of any frontend so far (`messages/ring/uids.py`)."""
        self._profile_id = 0
        """The instruction that ended the latest profile."""
        self._fetch: ProfileFetch | None = None
        self._files = FileServer(link.config, link.wake, rank_of(link.name))

    def run(self) -> None:
        """Serves until the launcher stops it. If an engine that has served ends, the process ends with code 1."""
        link = self._link
        key = link.run_dir.join_keys
        if self._placement is None:
            log.info(
                "with a copy of %s, run on another machine: python launch.py join %s --key-file %s",
                key,
                self._address.replace("0.0.0.0", "THIS-HOST"),
                key.name,
            )
        while not link.is_stopping:
            for message in link.receive_control():
                if isinstance(message, Drain):
                    self._send(wire.Order(message))
            for peer, message in self._channel.receive():
                self._receive(peer, message)
            self._send_files()
            if self._inbox is not None:
                for frame in self._inbox.receive_frames():
                    self._send(wire.EngineFrame(frame))
            if self._hops is not None:
                for frame in self._hops.receive_frames():
                    self._send(wire.Hop(frame))
            if time.monotonic() >= self._due_s:
                self._due_s = time.monotonic() + PROBE_INTERVAL_S
                self._look()
            link.wait()
        self._send(wire.Order(Stop()))
        self._close()
        if self._placement is not None:
            self._placement.close(self._joiner is not None)

    def _make_placement(self) -> Any:
        # Imported here and not above: it is for those who use Ray.
        from extras.remote.ray_placement import RayPlacement

        placement = RayPlacement(self._link.config, self._channel.port, self._link.run_dir.join_keys)
        self._link.stop_on_signal()  # Ray has its own way with a SIGTERM
        return placement

    def _look(self) -> None:
        """Checks the connection to the joiner. Without one, the start still reports progress."""
        if self._joiner is not None:
            self._send(wire.Probe())
            if self._fetch is not None:
                self._fetch.look()
        else:
            self._link.phase(f"{WAITING} {'for Ray' if self._placement else f'at {self._address}'}")
        end = "" if self._placement is None else self._placement.look(self._joiner is not None)
        if end:
            log.error("%s", end)

    def _receive(self, peer: bytes, message: wire.ToProxy) -> None:
        if isinstance(message, wire.Join):
            self._answer_join(peer, message)
        elif peer == self._joiner:
            match message:
                case wire.ClockQuestion(asked_ns):
                    self._send(wire.ClockAnswer(asked_ns, time.monotonic_ns()))
                case wire.EngineSays(report):
                    self._hand_on_report(report)
                case wire.EngineFrame(frame) if self._outbox is not None and not self._is_stage:
                    self._hand_on_frame(self._outbox, frame)
                case wire.Hop(frame) if self._outbox is not None and self._is_stage:
                    self._hand_on_hop(self._outbox, frame)
                case wire.EngineOutput(lines):
                    sys.stderr.write("".join(f"{line}\n" for line in lines))
                case wire.EngineEnded(why):
                    self._lose(why)
                case wire.FilePart() if self._fetch is not None:
                    self._receive_profile(self._fetch, message)
                case wire.ListFiles() | wire.SendPart():
                    self._files.ask(peer, message)
                case _:
                    pass

    def _send_files(self) -> None:
        for peer, answer in self._files.answers():
            self._channel.send(peer, answer)
            if peer == self._joiner and isinstance(answer, wire.ModelPart):
                self._link.phase(f"{self._host} fetches {answer.name}", self._files.fraction)

    def _hand_on_frame(self, outbox: Sender[ToDetokenizer], frame: bytes) -> None:
        """Passes on a frame. An inconsistent one would crash the detokenizer, so it disconnects the engine instead."""
        try:
            block = check_fit(open_frame(frame), worker_number(self._link.name))
            if block > self._newest_block:
                self._newest_block = max(frontend_blocks(self._link.run_dir.sockets()), default=0)
            if block > self._newest_block:
                raise MisfitError(f"a request of frontend {block}, which never existed")
        except MisfitError as error:
            self._lose(f"it is refused: {error}")
            return
        with contextlib.suppress(ChannelFullError):  # the next frame's number shows the loss to the detokenizer
            outbox.hand_on(frame)

    def _hand_on_hop(self, outbox: Sender[Any], frame: bytes) -> None:
        """Passes hidden states on to the next stage; more bytes than any step has disconnect the stage."""
        if len(frame) > (limit := max_hop_bytes(self._link.config)):
            self._lose(f"it is refused: {len(frame)} bytes of hidden states, and a step has {limit} at most")
            return
        outbox.hand_on(frame)

    def _answer_join(self, peer: bytes, join: wire.Join) -> None:
        self._send(wire.Probe())  # the one that has joined may just have lost its connection
        refusal = find_refusal(join, self._host)
        if refusal is not None:
            if refusal != self._refusal:  # it may try again and again
                log.warning("turned away an engine on %s: %s", join.host, refusal.reason)
            self._refusal = refusal
            self._channel.send(peer, refusal)
            return
        self._joiner, self._host = peer, join.host
        config = self._link.config
        files, shown = digests_of(Path(config.facts.model_dir)), msgspec.json.encode(without_keys(config))
        self._send(wire.Admitted(self._link.name, self._link.incarnation, shown, files))
        self._link.phase(f"{join.host} has joined")

    def _hand_on_report(self, report: wire.EngineReport) -> None:
        if isinstance(report, BootFailed):
            return  # the first start of a server would be over; the joiner gives the reason when it leaves
        if self._inbox is None and (self._is_stage or isinstance(report, Ready)):
            self._open_channels()
        if isinstance(report, InstructionDone) and report.instruction_id == self._profile_id:
            report = self._begin_fetch(report)
        self._link.report(report)

    def _open_channels(self) -> None:
        link = self._link
        self._inbox = Receiver(link.run_dir.socket(link.name), ToRank if self._is_stage else ToScheduler)
        link.add_receiver(self._inbox)
        if not self._is_stage:
            self._outbox = link.open_sender("detokenizer")
            return
        rank, engine = rank_of(link.name), worker_number(link.name)
        self._hops = Receiver(link.run_dir.socket(hops_of(rank, engine)), Any)  # hidden states are not recorded
        link.waiter.add_channel(self._hops)
        self._outbox = link.make_sender(hops_of((rank + 1) % link.config.run.num_ranks, engine))

    def _begin_fetch(self, done: InstructionDone) -> InstructionDone:
        """Announces the file of the engine's profile on this machine to the launcher, in place of the remote one."""
        if not isinstance(done.result, Acknowledged):
            return done
        try:
            self._fetch = ProfileFetch(Path(done.result.text).name, self._link.run_dir.profiles, self._send)
        except OSError as error:
            return InstructionDone(done.instruction_id, Failed("failed", str(error)))
        return InstructionDone(done.instruction_id, Acknowledged(str(self._fetch.path)))

    def _receive_profile(self, fetch: ProfileFetch, part: wire.FilePart) -> None:
        try:
            trouble = fetch.receive(part)
        except (OSError, msgspec.DecodeError) as error:  # a failed profile must not disconnect the engine
            self._fetch, trouble = None, f"the engine's profile was not saved: {error}"
        if trouble:
            log.warning("%s", trouble)

    def _hand_on_instruction(self, instruction: Instruction) -> None:
        if self._inbox is None:
            result = Failed("impossible", "no engine serves here")
            self._link.report(InstructionDone(instruction.instruction_id, result))
            return
        if isinstance(instruction.command, StopProfile):
            self._profile_id = instruction.instruction_id
        self._send(wire.Order(instruction))

    def _send(self, message: Any) -> None:
        if self._joiner is not None and not self._channel.send(self._joiner, message):
            self._lose("the connection is lost")

    def _lose(self, why: str) -> None:
        """Handles the end of the engine. If it had served, it has died; otherwise another one may join."""
        log.error("the engine on %s is gone: %s", self._host, why)
        self._joiner, self._host = None, ""
        if self._inbox is not None:
            self._close()
            sys.exit(1)

    def _close(self) -> None:
        for channel in (self._inbox, self._hops, self._outbox, self._channel):
            if channel is not None:
                channel.close()


def max_hop_bytes(config: Config) -> int:
    """Returns the size of the largest frame from one stage to the next; flags may allow more than a default step."""
    scheduling = config.scheduling
    num_tokens = max(CPU_STEP_TOKENS, scheduling.max_num_batched_tokens or 0, scheduling.max_num_seqs)
    return FRAME_BYTES + FLOAT32_BYTES * config.facts.hop_size * num_tokens


def find_refusal(join: wire.Join, present_host: str) -> wire.TurnedAway | None:
    """Returns why an engine may not join, `None` if it may. `present_host`: that of the present engine."""
    if (join.schema_version, join.release) != (wire.JOIN_VERSION, VERSION):
        return wire.TurnedAway(
            f"it has release {join.release} with version {join.schema_version:x} of the messages, and the head has "
            f"release {VERSION} with version {wire.JOIN_VERSION:x}; install the same on both machines"
        )
    if present_host:
        reason = f"an engine on {present_host} has joined here; each address takes one"
        return wire.TurnedAway(reason, may_try_again=True)
    return None


def serve(link: ProcessLink) -> None:
    """Represents the engine until the launcher stops it. Raises `BootError` if its address cannot be bound."""
    if link.stand_by():
        remote = RemoteConfig.of(link.config)
        # Ray's are all the same, and may be more.
        engine, rank = worker_number(link.name), rank_of(link.name)
        if rank:
            address = remote.remote_stages[(engine - 1) * link.config.num_remote_stages + rank - 1]
        else:
            address = remote.remote_engines[0 if remote.ray else engine - link.config.run.data_parallel - 1]
        Proxy(link, address).run()


if __name__ == "__main__":
    raise SystemExit(run_process("scheduler", serve))
