"""Twins that call kernel libraries. `sightline.ops.twins` imports those that are installed."""
