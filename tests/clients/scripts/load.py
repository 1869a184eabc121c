"""What locust's users do."""

from locust import HttpUser, task

MESSAGES = [{"role": "user", "content": "Hello"}]


class User(HttpUser):
    @task
    def chat(self) -> None:
        self.client.post("/v1/chat/completions", json={"messages": MESSAGES, "max_tokens": 4})

    @task
    def responses(self) -> None:
        self.client.post("/v1/responses", json={"input": "Hello", "max_output_tokens": 4})

    @task
    def messages(self) -> None:
        self.client.post("/v1/messages", json={"messages": MESSAGES, "max_tokens": 4})
