"""/v1/messages: Anthropic's API as a translation onto chat."""
