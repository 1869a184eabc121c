import litellm
from seen import MODEL, SIGN, URL, Seen, check

picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SIGN}"}}
asked = [{"role": "user", "content": [picture, {"type": "text", "text": "What does the sign say?"}]}]
for name, base in (("openai", f"{URL}/v1"), ("hosted_vllm", f"{URL}/v1"), ("anthropic", URL)):
    own = {
        "model": f"{name}/{MODEL}",
        "api_base": base,
        "api_key": "unused",
        "max_tokens": 20,
        "temperature": 0,
        "messages": asked,
    }
    answer = litellm.completion(**own).choices[0].message.content
    assert "PIANO" in answer, (name, answer)
    chunks = list(litellm.completion(**own, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == answer, name
where = {"model": f"openai/{MODEL}", "api_base": f"{URL}/v1", "api_key": "unused"}
formed = litellm.completion(**where, messages=[{"role": "user", "content": "Hello"}], response_format=Seen, max_tokens=100)
check(Seen.model_validate_json(formed.choices[0].message.content))
assert litellm.responses(**where, input="Hello", max_output_tokens=10).output
print("passed")
