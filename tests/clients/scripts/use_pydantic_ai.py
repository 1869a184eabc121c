import asyncio
import base64

from pydantic_ai import Agent, BinaryImage, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.openai import OpenAIProvider
from seen import MODEL, SIGN, URL, Seen, check

provider = OpenAIProvider(base_url=f"{URL}/v1", api_key="unused")
picture = BinaryImage(base64.b64decode(SIGN), media_type="image/png")


async def streamed(agent: Agent) -> object:
    async with agent.run_stream("What is there?") as result:
        return await result.get_output()


for model in (OpenAIChatModel(MODEL, provider=provider), OpenAIResponsesModel(MODEL, provider=provider)):
    limits = {"max_tokens": 200}
    said = Agent(model, model_settings=limits).run_sync(["What does the sign say?", picture]).output
    assert isinstance(said, str) and said, model
    check(Agent(model, output_type=Seen, model_settings=limits).run_sync("What is there?").output)
    check(asyncio.run(streamed(Agent(model, output_type=Seen, model_settings=limits))))
    check(Agent(model, output_type=NativeOutput(Seen), model_settings=limits).run_sync("What is there?").output)
print("passed")
