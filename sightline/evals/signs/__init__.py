"""Signs, shapes, charts and clips drawn from a seed, with questions whose answers are known. Drawing needs no torch.

make_example(seed, split)   generate.py   one picture (or two, or a clip) with questions and answers
evaluate(llm, …)            evaluate.py   held-out examples asked through the library, exact matches counted
"""

from sightline.evals.signs.example import Example, Split, Turn
from sightline.evals.signs.generate import SKILL_NAMES, SKILLS, make_example

__all__ = ["SKILLS", "SKILL_NAMES", "Example", "Split", "Turn", "make_example"]
