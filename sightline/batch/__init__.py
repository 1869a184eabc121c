"""Files of requests to files of answers, in OpenAI's batch format, with the server's own endpoints and no server."""
