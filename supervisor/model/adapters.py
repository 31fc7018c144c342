"""The LoRA adapters that `--lora` names, as the table with which a server begins."""

from pathlib import Path

import msgspec

from messages.config.server import ModelConfig, ModelFacts
from messages.errors import UsageError, errors_as
from messages.ring.adapters import Adapter
from runtime.adapter_files import AdapterError, read_digest
from runtime.adapter_table import Table, write_table


def add_adapters(facts: ModelFacts, model: ModelConfig, run_dir: Path) -> ModelFacts:
    """Returns the facts with the table of adapters, which is written to the run directory; unchanged if LoRA is off.

    Raises `UsageError` for an adapter that cannot be read. A scheduler checks the tensors.
    """
    if not model.num_lora_slots:
        return facts
    table: Table = {}
    for flag in model.lora:
        name, separator, directory = flag.partition("=")
        if not (name and separator and directory):
            raise UsageError(f"--lora: {flag!r} is not NAME=DIR")
        if name in table or name in facts.served_names:
            raise UsageError(f"--lora: two models would have the name {name!r}")
        path = str(Path(directory).expanduser().absolute())
        with errors_as(UsageError, f"--lora {name}", of=AdapterError):
            table[name] = Adapter(name, path, read_digest(path))
    file = str(run_dir / "adapters")
    write_table(file, table)
    return msgspec.structs.replace(facts, adapter_table=file)
