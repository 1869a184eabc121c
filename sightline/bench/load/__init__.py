"""Measuring any OpenAI-compatible server from outside: load, multi-turn conversations, image limits. No torch."""
