"""Every published benchmark by its name on the command line."""

from sightline.evals.benchmarks.chartqa import CHARTQA
from sightline.evals.benchmarks.docvqa import DOCVQA
from sightline.evals.benchmarks.mmmu import MMMU
from sightline.evals.benchmarks.ocrbench import OCRBENCH

BENCHMARKS = {benchmark.name: benchmark for benchmark in (MMMU, OCRBENCH, DOCVQA, CHARTQA)}
