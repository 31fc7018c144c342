"""The families that there are: found by architecture, without torch, and what none can run is refused."""

import subprocess
import sys

import pytest

from messages.errors import BootError
from scheduler_proc.computing.hf_config import HfConfig
from scheduler_proc.computing.model.families.registry import FAMILIES, find_family
from tests.scheduler_proc.computing.model.families.configs import QWEN3


def test_no_torch_is_needed() -> None:
    code = "import sys, scheduler_proc.computing.model.families.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_an_unknown_architecture_is_refused_with_the_known_ones() -> None:
    supported = ", ".join(name for family in FAMILIES for name in family.architectures)
    with pytest.raises(BootError, match=f"AlbertModel, which is not supported; supported are {supported}"):
        find_family(HfConfig({"architectures": ["AlbertModel"]}))
    with pytest.raises(BootError, match="no architecture"):
        find_family(HfConfig({}))


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        ("Qwen2AudioForConditionalGeneration", "a model of sound and text"),
        ("DeepseekVLForConditionalGeneration", "a model of images and text"),
    ],
)
def test_a_refusal_reports_what_kind_of_model_it_is(architecture: str, kind: str) -> None:
    with pytest.raises(BootError, match=rf"{architecture} \({kind}\), which is not supported"):
        find_family(HfConfig(QWEN3 | {"architectures": [architecture]}))
