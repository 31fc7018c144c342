"""Positions with three axes (M-RoPE), in steps with tokens of images: elsewhere the axes are equal."""

from collections.abc import Mapping
from operator import attrgetter

import torch
from torch import Tensor

from kernels.arguments.rows import RopeTables
from scheduler_proc.computing.step.inputs import InputColumn, StepFeature, StepInputs


class TokenAxes:
    """The angles of the step's tokens. `tables` has a row for each; row t is token t's (`rows`, int32 [T])."""

    tables: RopeTables

    def __init__(self, step: StepInputs, columns: Mapping[str, Tensor]):
        self._positions_3T = torch.stack((step.positions, columns["line_positions"], columns["column_positions"]))
        self.rows = torch.arange(len(step.positions), dtype=torch.int32, device=step.positions.device)

    def look_up(self, tables: RopeTables, axes_X: Tensor) -> None:
        """Makes `tables` of those of all positions; pair x of a head has the axis `axes_X[x]` (int64)."""
        positions_TX = self._positions_3T.long()[axes_X].T
        self.tables = RopeTables(tables.cosines.gather(0, positions_TX), tables.sines.gather(0, positions_TX))


AXES = StepFeature(
    "axes",
    {name: InputColumn(torch.int32, "token", 0, attrgetter(name)) for name in ("line_positions", "column_positions")},
    is_in=attrgetter("line_positions"),
    limit=lambda _config, model, _role: model.has_axes,
    make_view=TokenAxes,
    captured="never",
    dummy=lambda *_: dict.fromkeys(("rope_positions", "line_positions", "column_positions"), b""),
)
