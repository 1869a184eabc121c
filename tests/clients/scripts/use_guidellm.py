import json
import subprocess
import sys
import urllib.request
from pathlib import Path

from seen import FOLDER, MODEL, URL

question = urllib.request.Request(f"{URL}/tokenize", b'{"prompt": "<|im_end|><|endoftext|>"}')
ends = json.load(urllib.request.urlopen(question))["tokens"]  # without them answers are texts, which the client counts
backend = {"kind": "openai_http", "target": URL, "model": MODEL, "extras": {"body": {"logit_bias": dict.fromkeys(ends, -100)}}}
options = {
    "backend": json.dumps(backend),
    "profile": "kind=concurrent,streams=2",
    "constraint": "kind=max_requests,count=6",
    "tokenizer": f"kind=hf_auto,model={FOLDER}",
    "data": "kind=synthetic_text,prompt_tokens=32,output_tokens=8",
    "output": "kind=json,path=report.json",
}
command = [str(Path(sys.executable).parent / "guidellm"), "run", "--disable-console"]
subprocess.run([*command, *(part for name, value in options.items() for part in (f"--{name}", value))], check=True)
metrics = json.loads(Path("report.json").read_text())["benchmarks"][0]["metrics"]
assert metrics["request_totals"]["successful"] >= 6 and metrics["request_totals"]["errored"] == 0, metrics["request_totals"]
for name in ("request_latency", "time_to_first_token_ms", "inter_token_latency_ms", "output_tokens_per_second"):
    assert metrics[name]["successful"]["mean"] > 0, name
assert metrics["output_token_count"]["successful"]["mean"] == 8
print("passed")
