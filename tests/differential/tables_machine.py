"""Requests that go back in place, and questions about their own tables, as a state machine."""

from collections.abc import Callable

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import rule
from kvbraid.cache import Refusal, Why
from kvbraid.errors import NotHeldError
from kvbraid.ids import BlockId
from kvbraid.spec import SpecKind, Topology

from tests.differential.machines import CacheMachine, Twin
from tests.reference import own_tables, resume
from tests.reference.cache_configs import BOTH_DIALECTS, cache_configs


class TablesMachine(CacheMachine):
    """Most caches have no states: only such requests go back."""

    configs = st.one_of(
        BOTH_DIALECTS,
        *[
            cache_configs().filter(
                lambda config: all(g.kind is not SpecKind.MAMBA for g in config.topology.groups)
            )
        ]
        * 2,
    )

    def rewind(self, data: st.DataObject) -> None:
        """Some boundary, mostly after blocks that were found bad."""
        twin = self.one_of(self.of(running=True), data)
        computed = self.request(twin).num_computed_tokens
        num_tokens = data.draw(st.integers(0, min(computed, len(self.request(twin).tokens))))
        if data.draw(st.booleans()):
            bad = self.some_blocks(data)
            self.native.pool.forget(bad)
            self.model.pool.forget(bad)
            num_tokens = self.native.tables.resume_points([twin.native], bad)[0].num_tokens
        self.go_back(twin, num_tokens)

    def go_back(self, twin: Twin, num_tokens: int) -> None:
        if self.model.can_rewind(twin.model, num_tokens):
            self.native.tables.rewind(twin.native, num_tokens)
            self.model.rewind(twin.model, num_tokens)
        else:
            with pytest.raises(NotHeldError):
                self.native.tables.rewind(twin.native, num_tokens)

    def ask(self, data: st.DataObject) -> None:
        requests, blocks = [twin.native for twin in self.twins], self.some_blocks(data)
        places = self.native.tables.requests_of(blocks)
        expected = [own_tables.places(self.native, requests, block) for block in blocks]
        assert [places.of(block) for block in blocks] == expected
        assert list(places.block_ids) == sorted({*blocks})
        assert len(places.requests) == sum(len(places.of(block)) for block in {*blocks})
        drops = data.draw(st.booleans())
        limits = [data.draw(st.sampled_from((64, 64, 12, 5))) for _ in requests]
        points = self.native.tables.resume_points(
            requests, blocks, limits=limits, drops_unit=drops, max_refusals=9
        )
        short = self.native.tables.resume_points(requests, blocks, limits=limits, drops_unit=drops)
        assert short == [(num_tokens, []) for num_tokens, _ in points]
        for request, limit, point in zip(requests, limits, points, strict=True):
            self.check_point(request, blocks, limit, point, drops=drops)

    def check_point(
        self,
        request: int,
        bad: list[BlockId],
        limit: int,
        point: tuple[int, list[Refusal]],
        *,
        drops: bool,
    ) -> None:
        topology = self.config.topology
        topology = topology if drops else own_tables.without_draft_heads(topology)
        num_tokens = self.num_tokens(request)
        end = min(self.native.num_computed_tokens(request), limit, num_tokens)
        known = min(end + 1, num_tokens)
        held = own_tables.entries(self.native, request, bad, end)
        num_resumed, refused = point
        assert num_resumed == resume.resume(topology, known, held)
        assert [r.boundary for r in refused] == sorted((r.boundary for r in refused), reverse=True)
        for refusal in refused:
            assert num_resumed < refusal.boundary < known
            self.check_refusal(topology, request, refusal, held[refusal.group], known)
            is_state = topology.groups[refusal.group].kind is SpecKind.MAMBA
            is_bad = refusal.block_id in bad
            assert (refusal.why is Why.BAD) == is_bad or (is_state and is_bad)

    def num_tokens(self, request: int) -> int:
        (twin,) = [twin for twin in self.twins if twin.native == request]
        return len(self.request(twin).tokens)

    def check_refusal(
        self, topology: Topology, request: int, refusal: Refusal, held: set[int], known: int
    ) -> None:
        """The group says no, there and wherever it needs a block that is missing or bad."""
        table, spec = self.native.blocks(request)[refusal.group], topology.groups[refusal.group]
        assert refusal.block_id == (*table, *[0] * MANY)[refusal.position]
        for boundary in range(1, refusal.boundary + 1):
            needed = resume.needed_blocks(spec, boundary)
            is_hole = spec.kind is not SpecKind.MAMBA and refusal.why is not Why.NOT_COMPUTED
            if boundary == refusal.boundary or (is_hole and refusal.position in needed):
                assert not resume.accepts(
                    topology, refusal.group, held, boundary, known, strict=True
                )

    @rule(data=st.data(), which=st.sampled_from((rewind, ask)))
    def recover(self, data: st.DataObject, which: Callable[..., None]) -> None:
        """A load failed."""
        which(self, data)


MANY = 99
