"""What a weight table is made of: expressions over stored tensors, their evaluation, and helpers for the usual layers."""
