"""What the benchmarks do: timing, floors, and the shapes of the ops. The commands are one folder up."""
