"""OpenVINO GenAI behind /v1/completions, so that `bench_cpu` can measure it: it comes without a server of its own.

    pip install openvino-genai "optimum-intel[openvino]"
    optimum-cli export openvino --model DIR --task text-generation-with-past --weight-format fp16 EXPORTED
    python benchmarks/peers/openvino_server.py EXPORTED --port 9103

Runs in an environment of its own, with nothing of ours. Prompts are token ids; answers hold the number of tokens only.
"""

import argparse
import json
import threading
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import openvino
import openvino_genai


class Engine:
    """The pipeline with continuous batching, stepped by one thread as long as there are requests."""

    def __init__(self, model: str, cache_gb: int, precision: str):
        scheduling = openvino_genai.SchedulerConfig()
        scheduling.cache_size = cache_gb
        scheduling.enable_prefix_caching = True
        scheduling.max_num_seqs = 64
        number = getattr(openvino.Type, precision)
        formats = {"INFERENCE_PRECISION_HINT": number, "KV_CACHE_PRECISION": number}
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduling, "CPU", formats)
        self._new: list[tuple[list[int], int, Future[int]]] = []
        self._has_new = threading.Condition()
        threading.Thread(target=self._serve, daemon=True).start()

    def complete(self, prompt: list[int], num_tokens: int) -> int:
        done: Future[int] = Future()
        with self._has_new:
            self._new.append((prompt, num_tokens, done))
            self._has_new.notify()
        return done.result()

    def _serve(self) -> None:
        running: dict[int, tuple[object, Future[int]]] = {}
        next_id = 0
        while True:
            with self._has_new:
                while not self._new and not running:
                    self._has_new.wait()
                new, self._new = self._new, []
            for prompt, num_tokens, done in new:
                config = openvino_genai.GenerationConfig()
                config.max_new_tokens, config.ignore_eos = num_tokens, True
                ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
                running[next_id] = self._pipeline.add_request(next_id, ids, config), done
                next_id += 1
            self._pipeline.step()
            for uid, (handle, done) in list(running.items()):
                if handle.get_status() == openvino_genai.GenerationStatus.FINISHED:
                    done.set_result(len(handle.read_all()[0].generated_ids))
                    del running[uid]


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # all clients come at once


class Connection(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    engine: Engine

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        num_tokens = self.engine.complete(body["prompt"], body["max_tokens"])
        reply = json.dumps({"usage": {"completion_tokens": num_tokens}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing, because the server is measured."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="the exported directory")
    parser.add_argument("--port", type=int, default=9103)
    parser.add_argument("--cache-gb", type=int, default=2)
    parser.add_argument("--precision", choices=("bf16", "f32"), default="bf16", help="f32: a processor with AVX2 alone")
    options = parser.parse_args()
    Connection.engine = Engine(options.model, options.cache_gb, options.precision)
    Server(("127.0.0.1", options.port), Connection).serve_forever()


if __name__ == "__main__":
    main()
