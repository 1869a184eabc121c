"""Answers that must have a form: which tokens may come next. Over llguidance; no torch."""
