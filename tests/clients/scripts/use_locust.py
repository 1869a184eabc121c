import json
import subprocess
import sys
from pathlib import Path

URL = sys.argv[1]
line = f"-m locust -f {Path(__file__).parent / 'load.py'} --headless -u 2 -r 2 -t 5s --host {URL} --json --only-summary"
done = subprocess.run([sys.executable, *line.split()], capture_output=True, text=True, check=True)
figures = json.loads(done.stdout[done.stdout.index("[") :])
assert {figure["name"] for figure in figures} == {"/v1/chat/completions", "/v1/responses", "/v1/messages"}, figures
for figure in figures:
    assert figure["num_requests"] > 0 and figure["num_failures"] == 0 and figure["total_response_time"] > 0, figure
print("passed")
