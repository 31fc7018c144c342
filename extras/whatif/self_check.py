"""The error of simulating a recording's own settings, which is the least error to expect of a prediction."""

import msgspec
import numpy as np

from extras.whatif.cost_model import CostModel
from extras.whatif.outcome import quantiles, simulate
from extras.whatif.recording import Recording
from extras.whatif.settings import Setting


def find_errors(recording: Recording, model: CostModel, num_requests: int) -> dict[str, float]:
    """Returns simulated / recorded - 1 by the name of each figure, for the first requests.

    Figures of which nothing was recorded are left out.
    """
    calibration = recording.calibration
    setting = msgspec.convert(calibration, Setting, from_attributes=True)
    outcome = simulate(recording.arrivals[:num_requests], calibration, model, setting)
    seen = [times_s for times_s in recording.token_times_s[:num_requests] if len(times_s)]
    gaps_s = np.concatenate([np.diff(times_s) for times_s in seen] or [np.zeros(0)])
    recorded = {
        "TTFT": (outcome.ttft, quantiles(np.array([times_s[0] for times_s in seen]))),
        "inter-token": (outcome.inter_token, quantiles(gaps_s)),
        "end to end": (outcome.e2e, quantiles(np.array([times_s[-1] for times_s in seen]))),
    }
    return {
        f"{name} {quantile}": getattr(simulated, f"{quantile}_ms") / getattr(measured, f"{quantile}_ms") - 1
        for name, (simulated, measured) in recorded.items()
        for quantile in ("p50", "p90")
        if getattr(measured, f"{quantile}_ms")
    }
