"""Tasks with right answers that a model is measured on."""
