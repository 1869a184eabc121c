"""What a start may not cost. Red when loading a model or answering drags in a package that takes a second to import."""

import subprocess
import sys

import pytest

CODE = """
import sys
from sightline import LLM, SamplingParams
with LLM(device=sys.argv[1], kv_cache_gb=0.05, embedding_cache_gb=0.02) as llm:
    llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=2))
print([name for name in ("torch._dynamo", "torch._inductor", "transformers", "torchvision", "sympy") if name in sys.modules])
"""


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_loading_and_answering_import_no_compiler(device: str) -> None:
    done = subprocess.run([sys.executable, "-c", CODE, device], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


MARKED = """
import sys
import torch
from sightline.ops.external.compiler import without_the_compiler
before = (torch.compiler.disable, torch.compile)
with without_the_compiler():
    @torch.compiler.disable
    def plain(x):
        return x + 1
    @torch.compiler.disable(recursive=False)
    def with_arguments(x):
        return x + 2
    compiled = torch.compile(lambda x: x + 3, dynamic=False)
assert (plain(1), with_arguments(1), compiled(1), (torch.compiler.disable, torch.compile) == before) == (2, 3, 4, True)
print("torch._dynamo" in sys.modules)
"""


def test_functions_that_are_not_for_the_compiler_do_not_import_it() -> None:
    """Red when such a mark imports torch's compiler, changes the function, or stays without effect afterwards."""
    done = subprocess.run([sys.executable, "-c", MARKED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "False"
