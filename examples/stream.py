"""An answer that is printed while it is made, and what it took.

python examples/stream.py
"""

import asyncio

from sightline import LLM, SamplingParams


async def main() -> None:
    parts = [
        {"type": "video", "video": "sightline/data/demo/video.mkv"},
        {"type": "text", "text": "Which way does the circle move?"},
    ]
    with LLM() as llm:
        async for update in llm.stream([{"role": "user", "content": parts}], SamplingParams(max_tokens=32, temperature=0)):
            print(update.text, end="", flush=True)
        print()


asyncio.run(main())
