"""Measuring which of the ways to run a kernel is fastest here, and keeping what was found on disk."""
