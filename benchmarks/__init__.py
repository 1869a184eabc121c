"""Benchmarks for those who work on Sightline, run from a clone: `python -m benchmarks`. What users run is `sightline bench`."""
