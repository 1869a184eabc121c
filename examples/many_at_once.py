"""Several conversations as one batch. One that cannot be answered stops none of the others.

python examples/many_at_once.py
"""

from sightline import LLM, SamplingParams

questions = {
    "sightline/data/demo/sign.png": "What does it say?",
    "sightline/data/demo/phone.png": "Read the phone number.",
    "sightline/data/demo/missing.png": "What is missing?",
}
conversations = [
    [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": text}]}]
    for image, text in questions.items()
]

with LLM() as llm:
    for image, answer in zip(questions, llm.chat(conversations, SamplingParams(max_tokens=32, temperature=0)), strict=True):
        print(f"{image}: {answer.error or answer.text}")
