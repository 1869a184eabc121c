"""Published benchmarks: their files, their prompts, their scoring rules. No data comes with the package."""
