"""How long does a plan take, from parsed layers to its views, references and fingerprint?

100 layers in 8 groups, whose pages and geometries are known. `ours` has heads before layers; other
shapes, which take about as long, stand beside it. There is no rival.
"""

import contextlib
from collections.abc import Iterator

from kvbraid.layout import fingerprint, plan_memory

from bench.harness.measure import Row, Sample, Side, Target, repeated_cpu_us
from bench.layout.inputs import NUM_BLOCKS, SHAPES, Shape


def planned(shape: Shape) -> Side:
    """Plan the shape's groups, and ask for the fingerprint, which is made when it is asked for."""

    @contextlib.contextmanager
    def side() -> Iterator[Sample]:
        groups, options = shape.groups(), shape.options()

        def plan() -> str:
            return fingerprint(plan_memory(groups, num_blocks=NUM_BLOCKS, options=options))

        sample = repeated_cpu_us(plan)
        yield lambda: sample() / 1_000

    return side


OURS = "ordered"

ROWS = (
    Row(
        name="plan",
        question="100 layers in 8 groups, heads before layers; other shapes beside",
        unit="ms CPU",
        ours=planned(SHAPES[OURS]),
        target=Target(ours=10),
        beside={name: planned(shape) for name, shape in SHAPES.items() if name != OURS},
    ),
)
