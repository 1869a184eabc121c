import anthropic
import instructor
import openai
from instructor import Mode
from seen import MODEL, URL, Seen, check

asked = [{"role": "user", "content": "What is there?"}]
for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS):
    client = instructor.from_openai(openai.OpenAI(base_url=f"{URL}/v1", api_key="unused", max_retries=0), mode=mode)
    limit = {"max_output_tokens": 200} if mode is Mode.RESPONSES_TOOLS else {"max_tokens": 200}
    check(client.create(model=MODEL, response_model=Seen, messages=asked, max_retries=0, **limit))
own = anthropic.Anthropic(base_url=URL, api_key="unused", max_retries=0)
client = instructor.from_anthropic(own, mode=Mode.ANTHROPIC_TOOLS)
check(client.create(model=MODEL, response_model=Seen, messages=asked, max_retries=0, max_tokens=200))
print("passed")
