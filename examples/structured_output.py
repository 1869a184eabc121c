"""An answer that follows a JSON schema. The small model has never seen JSON: only the form is certain.

python examples/structured_output.py
"""

import json

from sightline import LLM, SamplingParams, StructuredOutput

schema = {
    "type": "object",
    "properties": {"text": {"type": "string", "maxLength": 20}, "legible": {"type": "boolean"}},
    "required": ["text", "legible"],
}
parts = [{"type": "image", "image": "sightline/data/demo/sign.png"}, {"type": "text", "text": "What does it say?"}]

with LLM() as llm:
    form = StructuredOutput("json_schema", json.dumps(schema))
    answer = llm.chat([{"role": "user", "content": parts}], SamplingParams(max_tokens=64, temperature=0, structured=form))
    print(json.loads(answer.text))
