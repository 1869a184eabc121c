"""One folder per model family: all that no other family has."""
