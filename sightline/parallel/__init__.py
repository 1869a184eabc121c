"""Several ranks, a process and a GPU each, that hold one model together: who has what, and what they say to each other."""
