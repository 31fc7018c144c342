"""The flags of engines on other machines, and of their number if it follows the load."""

from typing import Annotated, ClassVar

import msgspec
from msgspec import Meta

from extras.remote.join_keys import check_address
from extras.remote.scaling_rule import ScalingLimits
from messages.config.flag import Flag
from messages.config.server import Config, ExtraConfig
from messages.engine_names import SCHEDULER
from messages.errors import UsageError

ANY_PORT = "tcp://0.0.0.0:*"

SCALING_DEFAULTS = {"min": 1.0, "up_tokens": 4096.0, "up_s": 5.0, "down_s": 60.0}


class RemoteConfig(ExtraConfig, frozen=True, kw_only=True):
    """Remote engines and autoscaling"""

    EXTRA: ClassVar[str] = "remote"

    remote_engines: Annotated[
        tuple[str, ...],
        Flag(
            "addresses on which engines of other machines join (`launch.py join`), one engine each, in addition to "
            "--data-parallel",
            metavar="tcp://HOST:PORT",
        ),
    ] = ()
    remote_stages: Annotated[
        tuple[str, ...],
        Flag(
            "addresses on which the first stages of --pipeline-parallel join from other machines (`launch.py join`), "
            "one stage each; with several engines, those of the first engine come first",
            metavar="tcp://HOST:PORT",
        ),
    ] = ()
    ray: Annotated[
        str,
        Flag(
            "place the --data-parallel engines on the nodes of the Ray cluster at ADDRESS (without ADDRESS: the "
            "cluster on this machine), with --pipeline-parallel all stages except the last; requires .venv/bin/pip "
            "install -e '.[ray]'",
            metavar="ADDRESS",
            const="auto",
        ),
    ] = ""
    max_engines: Annotated[
        int,
        Meta(ge=0, le=32),
        Flag(
            "autoscaling: maximum number of engines; starts and stops engines with the load (also with --ray); 0: "
            "fixed number"
        ),
    ] = 0
    scaling: Annotated[
        tuple[str, ...],
        Flag(
            "with --max-engines: min, the minimum number of engines; add an engine when more than up_tokens prompt "
            "tokens per engine wait for up_s seconds; remove one after down_s seconds without a waiting prompt, if "
            "the others have room",
            metavar="NAME=NUMBER",
        ),
    ] = ()

    @property
    def limits(self) -> ScalingLimits:
        """Raises `UsageError` for a rule of `--scaling` that is not valid."""
        values = dict(SCALING_DEFAULTS)
        for rule in self.scaling:
            name, _, number = rule.partition("=")
            try:
                value = float(number)
            except ValueError:
                value = 0.0
            if name not in values or not 1 <= value < float("inf"):
                requested = f"NAME=NUMBER with one of {', '.join(values)}, at least 1"
                raise UsageError(f"--scaling: {rule!r} is not valid: expected {requested}")
            values[name] = value
        return ScalingLimits(
            int(values["min"]), self.max_engines, int(values["up_tokens"]), values["up_s"], values["down_s"]
        )

    def check(self, config: Config) -> Config:
        """Returns `config` with the numbers of engines on this machine and on others."""
        limits, run, addresses = self.limits, config.run, self.remote_engines
        if self.max_engines:
            num_engines = max(limits.min_engines, run.data_parallel)
            if addresses or SCHEDULER in run.external:
                raise UsageError("--max-engines: engines at --remote-engines, or started by hand, come and go with you")
            if num_engines > self.max_engines:
                raise UsageError("--max-engines: there can be no fewer than min of --scaling and --data-parallel")
            run = msgspec.structs.replace(run, data_parallel=num_engines)
        for address in addresses:
            check_address("--remote-engines", address)
        if self.ray:
            if addresses:
                raise UsageError(
                    "--ray places all engines: give their number as --data-parallel, and no --remote-engines"
                )
            if run.pipeline_parallel == 1:
                addresses = (ANY_PORT,) * run.data_parallel
                run = msgspec.structs.replace(run, data_parallel=0)
                config = msgspec.structs.replace(self, remote_engines=addresses).put_into(config)
        config = self._check_stages(config)
        if addresses and run.num_ranks > 1:
            raise UsageError(
                "--tensor-parallel, --pipeline-parallel: an engine on another machine has one rank; leave them at 1"
            )
        return msgspec.structs.replace(config, run=run, num_remote_engines=len(addresses), max_engines=self.max_engines)

    def _check_stages(self, config: Config) -> Config:
        """Returns `config` with the number of stages on other machines. Raises `UsageError`."""
        run, addresses = config.run, self.remote_stages
        for address in addresses:
            check_address("--remote-stages", address)
        if addresses and (self.remote_engines or self.ray):
            raise UsageError("--remote-stages: leave out --remote-engines and --ray")
        if self.ray and run.pipeline_parallel > 1:
            addresses = (ANY_PORT,) * run.data_parallel * (run.pipeline_parallel - 1)
            config = msgspec.structs.replace(self, remote_stages=addresses).put_into(config)
        if not addresses:
            return config
        num_stages, rest = divmod(len(addresses), max(1, run.data_parallel))
        if rest or not num_stages < run.pipeline_parallel:
            raise UsageError(
                f"--remote-stages: {len(addresses)} addresses for {run.data_parallel} engines of "
                f"{run.pipeline_parallel} stages (--pipeline-parallel): give each engine the same number, at least one "
                "less than its stages, because the last one is on the head"
            )
        if run.tensor_parallel > 1:
            raise UsageError("--remote-stages: a stage on another machine has one rank; leave --tensor-parallel at 1")
        if self.max_engines:
            raise UsageError("--max-engines: the number of engines with stages on other machines is fixed")
        return msgspec.structs.replace(config, num_remote_stages=num_stages)
