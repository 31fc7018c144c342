"""`POST /v1/load_lora_adapter` and `/v1/unload_lora_adapter`: LoRA adapters that come and go while the server runs."""

import asyncio
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from frontend.api.parameters.adapter_names import salt_for
from frontend.api.parameters.sampling import Switch
from frontend.errors import UnavailableError, not_found
from frontend.http.body import BodyDecoder
from frontend.http.endpoint import Endpoint
from frontend.http.field_names import NameRules, UnknownFields
from frontend.http.responses import PlainReply
from frontend.requests.generation import Generation, wait_for_ends
from frontend.requests.prompt_request import PromptRequest
from frontend.requests.trace import trace_of
from frontend.service import Service
from messages.errors import ErrorInfo, RequestError, bad_request, errors_as, quoted
from messages.ring.adapters import Adapter
from messages.ring.requests import SamplingParams
from runtime.adapter_files import AdapterError, read_digest
from runtime.adapter_table import Table, change_table, read_table

LOAD_TIMEOUT_S = 300.0

OFF = (
    "LoRA is off: start the server with --max-loras N (the adapters that rows may use at once), or with --lora NAME=DIR"
)

AdapterName = Annotated[str, Meta(min_length=1, max_length=256, description="a string of 1 to 256 characters")]


class LoadBody(msgspec.Struct, frozen=True, kw_only=True):
    lora_name: AdapterName
    lora_path: Annotated[
        str, Meta(description="an absolute path of a directory on the server's machine, with the files that PEFT saves")
    ]
    load_inplace: Switch = None
    """Replace an adapter of this name: running requests continue with the old one."""


class UnloadBody(msgspec.Struct, frozen=True, kw_only=True):
    lora_name: AdapterName


class AdapterApi:
    def __init__(self, service: Service, unknown: UnknownFields):
        self._service = service
        self._names = service.config.facts.served_names
        self._table_file = service.config.facts.adapter_table
        rules = NameRules({"is_3d_lora_weight": (False,), "pinned": (False,), "lora_int_id": ()})
        self._load_decoder = BodyDecoder(LoadBody, rules, unknown)
        self._unload_decoder = BodyDecoder(UnloadBody, rules, unknown)

    async def load(self, request: Request) -> PlainReply:
        """Raises `RequestError`: 400 for an adapter that is loaded, or that cannot be used, with the reason."""
        body = (await self._load_decoder.receive(request)).fields
        self._check_new(body, self._read_table())
        with errors_as(partial(bad_request, param="lora_path"), "lora_path", of=AdapterError):
            digest = await asyncio.to_thread(read_digest, body.lora_path)
        adapter = Adapter(body.lora_name, body.lora_path, digest)
        await self._check_in_scheduler(adapter, trace_of(request.scope).request_id)

        def enter(table: Table) -> None:
            self._check_new(body, table)
            table[adapter.name] = adapter

        change_table(self._table_file, enter)
        return PlainReply(f"Success: LoRA adapter '{body.lora_name}' added successfully.", media_type="text/plain")

    async def unload(self, request: Request) -> PlainReply:
        """Removes the name at once: running requests continue. Raises `RequestError`: 400, or 404 for other names."""
        body = (await self._unload_decoder.receive(request)).fields
        self._read_table()

        def remove(table: Table) -> None:
            if table.pop(body.lora_name, None) is None:
                text = f"The lora adapter '{body.lora_name}' cannot be found."
                raise not_found(text, "adapter_not_found", "lora_name")

        change_table(self._table_file, remove)
        return PlainReply(f"Success: LoRA adapter '{body.lora_name}' removed successfully.", media_type="text/plain")

    def _read_table(self) -> Table:
        if not self._table_file:
            raise bad_request(OFF, code="lora_is_off")
        return read_table(self._table_file)

    def _check_new(self, body: LoadBody, table: Table) -> None:
        if body.lora_name in self._names:
            raise bad_request(f"lora_name: {quoted(body.lora_name)} is the name of the model", "lora_name")
        if body.lora_name in table and not body.load_inplace:
            text = f"The lora adapter '{body.lora_name}' has already been loaded (load_inplace replaces it)."
            raise bad_request(text, "lora_name", "adapter_loaded")

    async def _check_in_scheduler(self, adapter: Adapter, request_id: str) -> None:
        """Makes a scheduler read the adapter: a request for no tokens ends when that is done, or with the error.

        It is a part of a request that does not exist, so it is neither counted nor shown.
        """
        params = SamplingParams(max_tokens=0, adapter=adapter, cache_salt=salt_for(adapter, ""))
        message = next(PromptRequest([0], params).messages(0))
        part = self._service.open_part(message, Generation(message, request_id))
        try:
            async with asyncio.timeout(LOAD_TIMEOUT_S):
                await wait_for_ends([part])
        except RequestError as error:
            param = "lora_path" if error.info.status == 400 else error.info.param
            raise RequestError(msgspec.structs.replace(error.info, param=param)) from None
        except TimeoutError:
            raise UnavailableError(f"no answer came within {LOAD_TIMEOUT_S:g} s", "call_timeout") from None
        finally:
            self._service.leave(part)
        if part.ended.finish_reason != "length":
            raise RequestError(ErrorInfo(409, "the load was aborted", "conflict_error", code="aborted"))


_POST = partial(Endpoint, tag="administration", access="operator")


def adapting(api: AdapterApi) -> list[Endpoint]:
    """Returns the endpoints that load and unload LoRA adapters."""
    return [
        _POST(
            "/v1/load_lora_adapter",
            api.load,
            "Serve a LoRA adapter under a name",
            description="Replies when the adapter has been read and checked. With `load_inplace` other files may "
            "replace those of the same name; requests that run continue with the old ones.",
            body=LoadBody,
            examples={"one": {"lora_name": "poems", "lora_path": "/adapters/poems"}},
        ),
        _POST(
            "/v1/unload_lora_adapter",
            api.unload,
            "Serve a LoRA adapter no longer",
            description="Requests that run continue, new ones get a 404.",
            body=UnloadBody,
            errors=(404,),
            examples={"one": {"lora_name": "poems"}},
        ),
    ]
