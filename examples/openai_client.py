"""OpenAI's client against a server: an image from a file, the answer as a stream.

sightline serve &
python examples/openai_client.py [URL]
"""

import base64
import os
import sys
from pathlib import Path

import openai

url = sys.argv[1] if len(sys.argv) > 1 else "http://127.0.0.1:8000"
client = openai.OpenAI(base_url=f"{url}/v1", api_key=os.environ.get("SIGHTLINE_API_KEY", "unused"))
image = base64.b64encode(Path("sightline/data/demo/sign.png").read_bytes()).decode()
parts = [
    {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
    {"type": "text", "text": "What does the sign say?"},
]
stream = client.chat.completions.create(
    model="auto", messages=[{"role": "user", "content": parts}], max_tokens=32, temperature=0, stream=True
)
for chunk in stream:
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
