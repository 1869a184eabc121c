"""Implementations of ops that call kernel libraries. `sightline.ops.kernels` imports those that are installed."""
