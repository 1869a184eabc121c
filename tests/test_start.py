"""What a start may not cost. Red when loading a model or answering drags in a package that takes a second to import."""

import subprocess
import sys

CODE = """
import sys
from sightline import LLM, SamplingParams
with LLM(device="cpu", kv_cache_gb=0.05, embedding_cache_gb=0.02) as llm:
    llm.chat([{"role": "user", "content": "Hello"}], SamplingParams(max_tokens=2))
print([name for name in ("torch._dynamo", "torch._inductor", "transformers", "torchvision", "sympy") if name in sys.modules])
"""


def test_loading_and_answering_import_no_compiler() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"
