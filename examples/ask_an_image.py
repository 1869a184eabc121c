"""One question about one image.

python examples/ask_an_image.py [IMAGE [QUESTION [MODEL]]]
"""

import sys

from sightline import LLM, SamplingParams

defaults = ["sightline/data/demo/sign.png", "What does the sign say?", ""]  # "" is the small model that comes with the package
image, question, model = sys.argv[1:] + defaults[len(sys.argv) - 1 :]

with LLM(model) as llm:
    parts = [{"type": "image", "image": image}, {"type": "text", "text": question}]
    answer = llm.chat([{"role": "user", "content": parts}], SamplingParams(max_tokens=64, temperature=0))
    print(answer.text)
