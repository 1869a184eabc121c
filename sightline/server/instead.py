"""What to use instead of fields that are refused: their users come from other servers."""

_INSTEAD = {
    "prompt_logprobs": "Log-probabilities are told of answers: use logprobs and top_logprobs.",
    "best_of": "Use n, and choose among the answers.",
    "functions": "Use tools.",
    "function_call": "Use tool_choice in a request, and tool_calls in a message.",
    "suffix": "Put what is to stand around the answer into the prompt.",
    "prediction": "Leave it out: it would only make an answer faster.",
    "audio": "Only text is answered.",
    "web_search_options": "Use tools of type 'function', and call them yourself.",
    "chat_template": "Use --chat-template of the server, and chat_template_kwargs in a request.",
    "guided_decoding_backend": "Leave it out: llguidance is used for all forms.",
    "guided_whitespace_pattern": "Use disable_any_whitespace of structured_outputs.",
    "whitespace_pattern": "Use disable_any_whitespace.",
    "disable_additional_properties": "Use additionalProperties in the schema; objects that name their properties are closed.",
    "structural_tag": "Use tools and tool_choice, or a grammar.",
    "truncate_prompt_tokens": "Shorten the prompt: what is too long is refused.",
    "truncation": "Leave it out and shorten the input: what is too long is refused.",
    "bad_words": "Use logit_bias with -100 for the tokens.",
    "allowed_token_ids": "Use regex, structured_outputs or logit_bias.",
    "include_stop_str_in_output": "Use matched_stop of a choice, which says what ended it.",
    "no_stop_trim": "Use matched_stop of a choice, which says what ended it.",
    "length_penalty": "There is no beam search; use n.",
    "early_stopping": "There is no beam search; use n.",
    "do_sample_frames": "Use fps, num_frames or max_frames; a list of frames is seen whole.",
    "size": "Use min_pixels and max_pixels.",
    "documents": "Put them into a message.",
    "lora_path": "Serve the merged model.",
    "logits_processors": "Use logit_bias.",
    "custom_logit_processor": "Use logit_bias.",
    "add_special_tokens": "Prompts are encoded as they stand; send token ids to be sure.",
    "include_reasoning": "Leave it out: reasoning_content is apart from content.",
    "separate_reasoning": "Leave it out: reasoning_content is apart from content.",
    "stream_reasoning": "Leave it out: reasoning is streamed.",
    "return_tokens_as_token_ids": "Use return_token_ids.",
    "rid": "Use request_id.",
    "previous_response_id": "Responses are not stored: send the whole conversation in input.",
    "conversation": "Conversations are not stored: send the whole of it in input.",
    "background": "Responses are not stored: use stream, or wait for the answer.",
    "file_id": "Files are not stored: send image_url, or of a PDF file_data or file_url, a data: or http(s) URL.",
    "encrypted_content": "Send the text of the reasoning in content.",
    "context_management": "Shorten the conversation yourself.",
    "mcp_servers": "Use tools, and call them yourself.",
    "container": "Use tools, and run them yourself.",
    "output_format": "Use output_config.format.",
}

_INSTEAD_OF_VALUES = {  # by the names of the field and what it is in
    "tools.type": "Use tools of type 'function', and run them yourself.",
    "tool_choice.type": "Use 'auto', 'required', 'none' or one function.",
    "input.type": "Send messages, function_call, function_call_output and reasoning as they came.",
    "truncation": "Shorten the input: what is too long is refused.",
    "include": "Leave it out.",
    "citations.enabled": "Ask for quotations in the prompt.",
    "content.detail": "Use max_pixels of mm_processor_kwargs.",
    "source.type": "Send 'base64' or 'url', and plain text of a document as 'text'.",
    "summary": "Thoughts are told as they are, in items of type 'reasoning'.",
}


def unsupported(path: str) -> str:
    """The sentence for a field that is not offered."""
    name = path.rsplit(".", 1)[-1].partition("[")[0]
    return " ".join(filter(None, (f"Field '{path}' is not supported.", _INSTEAD.get(name))))


def unsupported_value(path: str, value: str) -> str:
    names = [name.partition("[")[0] for name in path.split(".")]
    instead = _INSTEAD_OF_VALUES.get(".".join(names[-2:])) or _INSTEAD_OF_VALUES.get(names[-1])
    return " ".join(filter(None, (f"Field '{path}' is {value}, which is not supported.", instead)))
