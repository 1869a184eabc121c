"""/v1/responses: OpenAI's newer API as a translation onto chat."""
