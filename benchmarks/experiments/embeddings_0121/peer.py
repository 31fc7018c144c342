"""A minimal server of a peer's vectors: `POST /v1/embeddings`, replies in base64. Run with the peer's interpreter.

Requests that arrive while a batch is computed are the next batch, so that many clients of one text each also get
batches. infinity has batches of its own.
"""

import argparse
import asyncio
import json
from base64 import b64encode

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MAX_BATCH = 64


def sentence_transformers(model_dir: str, onnx_dir: str):
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(model_dir, device="cpu")
    return lambda texts: model.encode(texts, batch_size=32, normalize_embeddings=True)


def fastembed(model_dir: str, onnx_dir: str):
    from fastembed import TextEmbedding

    name = "sentence-transformers/all-MiniLM-L6-v2"
    model = TextEmbedding(name, specific_model_path=onnx_dir)
    return lambda texts: np.stack(list(model.embed(texts, batch_size=32)))


def openvino(model_dir: str, onnx_dir: str, precision: str = "f32"):
    from openvino import Core
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{model_dir}/tokenizer.json")
    tokenizer.enable_truncation(256)
    tokenizer.enable_padding()
    compiled = Core().compile_model(f"{onnx_dir}/model.onnx", "CPU", {"INFERENCE_PRECISION_HINT": precision})

    def encode_some(texts):
        encoded = tokenizer.encode_batch(texts)
        mask = np.array([each.attention_mask for each in encoded])
        ids = np.array([each.ids for each in encoded])
        feed = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        hidden = compiled(feed)[0]
        pooled = (hidden * mask[..., None]).sum(1) / mask.sum(1, keepdims=True)
        return pooled / np.linalg.norm(pooled, axis=1, keepdims=True)

    return lambda texts: np.concatenate([encode_some(texts[i : i + 32]) for i in range(0, len(texts), 32)])


def openvino_bf16(model_dir: str, onnx_dir: str):
    return openvino(model_dir, onnx_dir, "bf16")


class Batcher:
    """Computes in a thread what has arrived; `encode` gets at most `MAX_BATCH` texts of several requests."""

    def __init__(self, encode):
        self._encode = encode
        self._waiting = []
        self._changed = asyncio.Event()
        self._task = None

    async def __call__(self, texts):
        future = asyncio.get_running_loop().create_future()
        self._waiting.append((texts, future))
        self._changed.set()
        self._task = self._task or asyncio.create_task(self._run())
        return await future

    async def _run(self):
        while True:
            await self._changed.wait()
            taken = [self._waiting.pop(0)]
            while self._waiting and sum(len(texts) for texts, _ in taken) + len(self._waiting[0][0]) <= MAX_BATCH:
                taken.append(self._waiting.pop(0))
            if not self._waiting:
                self._changed.clear()
            vectors = await asyncio.to_thread(self._encode, [text for texts, _ in taken for text in texts])
            start = 0
            for texts, future in taken:
                future.set_result(vectors[start : start + len(texts)])
                start += len(texts)


def infinity(model_dir: str, onnx_dir: str):
    from infinity_emb import AsyncEmbeddingEngine, EngineArgs
    from transformers import PreTrainedTokenizerBase

    # infinity 0.0.78 calls a method that transformers 5 no longer has.
    PreTrainedTokenizerBase.batch_encode_plus = PreTrainedTokenizerBase.__call__
    engine = AsyncEmbeddingEngine.from_args(
        EngineArgs(model_name_or_path=model_dir, engine="torch", device="cpu", compile=False, bettertransformer=False)
    )
    started = []

    async def encode(texts):
        if not started:
            started.append(True)
            await engine.astart()
        return (await engine.embed(sentences=texts))[0]

    return encode


PEERS = {each.__name__: each for each in (sentence_transformers, fastembed, openvino, openvino_bf16)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("peer", choices=(*PEERS, "infinity"))
    parser.add_argument("model_dir")
    parser.add_argument("onnx_dir")
    parser.add_argument("port", type=int)
    options = parser.parse_args()
    paths = options.model_dir, options.onnx_dir
    encode = infinity(*paths) if options.peer == "infinity" else Batcher(PEERS[options.peer](*paths))

    async def embed(request: Request) -> Response:
        texts = json.loads(await request.body())["input"]
        vectors = await encode([texts] if isinstance(texts, str) else texts)
        data = [
            {"object": "embedding", "index": index, "embedding": b64encode(np.float32(vector).tobytes()).decode()}
            for index, vector in enumerate(vectors)
        ]
        return Response(json.dumps({"object": "list", "data": data}), media_type="application/json")

    app = Starlette(routes=[Route("/v1/embeddings", embed, methods=["POST"])])
    uvicorn.run(app, port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
