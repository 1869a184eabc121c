from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from seen import MODEL, SIGN, URL, Seen, check

settings = {"base_url": f"{URL}/v1", "api_key": "unused", "model": MODEL, "max_retries": 0, "temperature": 0, "max_tokens": 200}
picture = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{SIGN}"}}
asked = [HumanMessage([picture, {"type": "text", "text": "What does the sign say?"}])]
for model in (ChatOpenAI(**settings), ChatOpenAI(**settings, use_responses_api=True)):
    answer = model.invoke(asked)
    assert "PIANO" in answer.text and answer.usage_metadata["output_tokens"] > 1, answer
    assert "".join(chunk.text for chunk in model.stream(asked)) == answer.text
    for method in ("json_schema", "function_calling"):
        check(model.with_structured_output(Seen, method=method).invoke("What is there?"))
print("passed")
