"""Loads a model whose steps transformers' code computes."""

from msgspec.structs import replace

from messages.config.server import Config
from messages.errors import BootError
from runtime.transformers_import import import_transformers
from scheduler_proc.computing.backends.backend import ModelParts
from scheduler_proc.computing.loading.roles import Models, no_mtp_head
from scheduler_proc.computing.loading.target import Target
from scheduler_proc.computing.report import Report
from scheduler_proc.computing.step.inputs import Role
from scheduler_proc.computing.torch_import import import_fake_tensors


class TransformersLoader:
    """No step of the model is captured, and its weights are in memory of its own. Raises `BootError`."""

    def __init__(self, role: Role, config: Config, target: Target):
        if config.model.num_lora_slots:
            raise BootError("--lora, --max-loras: adapters need a model family of ours, not transformers' code")
        if config.run.pipeline_parallel > 1:
            raise BootError("--pipeline-parallel: not supported for a model that transformers computes (--model-impl)")
        if config.scheduling.speculative == "mtp":
            raise no_mtp_head(config)
        if role == "main":
            target.backend.check_model(config, None)
        self._role: Role = role
        self._target = target
        self._config = replace(config, model=replace(config.model, enforce_eager=True))

    def load(self, report: Report, *, is_shared_only: bool) -> Models | None:
        """Returns the model, `None` if only shared weights may be used."""
        if is_shared_only:
            return None
        target, config = self._target, self._config
        target.backend.open_weights(config, target.place, b"").free()
        report("importing transformers", None)
        import_fake_tensors()
        import_transformers()
        # Imported here: it takes seconds, and other models do not need it.
        from scheduler_proc.computing.transformers_model.loading import load_decoder

        decoder = load_decoder(config, target.placement, report)
        limits = target.limits.of_model(config, decoder.model, self._role)
        return {self._role: ModelParts(config, decoder, limits, target.placement)}
