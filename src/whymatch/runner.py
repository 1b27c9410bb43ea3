"""Run requests through a method: each distinct one once, in batches, with progress, and a warning where one misses."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from whymatch import method, policy, schedule
from whymatch.correction import DIRECTIONS
from whymatch.encoders.cut import Cut
from whymatch.encoders.kinds import Direct
from whymatch.method import Method
from whymatch.paths.integrate import Integral, RoughPathError
from whymatch.paths.jacobian import LOCK, REVERSE_COST
from whymatch.progress import bar, stage, stages
from whymatch.reading.inputs import Request, TokenSource
from whymatch.results.decomposition import Decomposition, Derived, Projection
from whymatch.results.explanation import Explanation
from whymatch.settings import MAXSIM, PATHLESS, Settings, warn_missed, warn_uncertain
from whymatch.words import check_text

# Pairs that are planned together, so that inputs they share run once: enough to fill the machine, few enough to bound
# memory.
PAIRS_TOGETHER = 64

Derive: TypeAlias = Callable[[list[Hashable], Integral, list[TokenSource]], None]  # takes the keys of a batch first


@dataclass(frozen=True)
class Runner:
    """Runs requests through one method; inputs that are asked for more than once run once."""

    method: Method | Direct

    @property
    def settings(self) -> Settings:
        return self.method.settings

    def differentiable(self, what: str) -> Method:
        """Return the method of an encoder that is differentiated; others have none of ``what``."""
        if isinstance(self.method, Direct):
            encoder = self.method.encoder
            raise ValueError(
                f"{encoder.name!r} has no {what}: it is not differentiated, but explained by {PATHLESS[encoder.path]}"
            )
        return self.method

    def embed(self, requests: Sequence[Request]) -> NDArray[np.floating]:
        """Return the model's own embeddings (inputs, dimensions) of inputs that are read in the same way."""
        with LOCK:
            return self.method.encoder.vectors([request.value for request in requests], requests[0].options)

    def read(self, request: Request) -> tuple[str, NDArray[np.floating]]:
        """Return an input's text, or the name of a picture, and its embedding."""
        if isinstance(self.method, Direct):
            (vector,) = self.embed([request])
            return check_text(request.value), vector
        (source,) = self.method.read([request])
        return source.side.text, source.embedding

    def explain(
        self, pairs: Iterable[tuple[Request, Request]], known: dict[Hashable, Decomposition] | None = None
    ) -> Iterator[Explanation]:
        """Explain pairs in order, some at a time; decompositions that are ``known`` already are used."""
        known, warned, remaining = known or {}, False, iter(pairs)
        while window := list(islice(remaining, PAIRS_TOGETHER)):
            # What this window shares with the last one is kept; a query's decomposition so lasts while it is used.
            keys = {side.key for pair in window for side in pair}
            known = {key: decomposition for key, decomposition in known.items() if key in keys}
            explanations = self._explain_window(window, known)
            for number, (a, b) in enumerate(window):
                if a.groups is not None or b.groups is not None:
                    finer = partial(self._explain_finer, a, b)
                    explanations[number] = replace(explanations[number], finer=finer)
            if not warned:
                errors = [(why.relative_error, max(why.nodes)) for why in explanations]
                warned = self.warn_missed(errors, self.settings.tolerance, "pairs")
                uncertain = max(explanations, key=lambda why: float(why.uncertainty.max()) / why.norms)
                largest = float(uncertain.uncertainty.max()) / uncertain.norms
                if largest > self.settings.tolerance and self.settings.steps is None:
                    warned = True
                    warn_uncertain(largest, self.settings, max(uncertain.nodes))
            yield from explanations

    def _explain_finer(self, a: Request, b: Request, side: str) -> Explanation:
        """Explain a pair of groups with the tokens of one side."""
        finer = [replace(each, groups=None, divided=each.groups) for each in (a, b)]
        pair = (finer[0], b) if side == "a" else (a, finer[1])
        return self._explain_window([pair], {})[0]

    def _explain_window(
        self, window: Sequence[tuple[Request, Request]], known: dict[Hashable, Decomposition]
    ) -> list[Explanation]:
        """Explain some pairs; decompositions that are ``known`` are used, and new ones added to them."""
        pairs = [(a.key, b.key) for a, b in window]
        if isinstance(self.method, Direct):
            new = {side.key: side for pair in window for side in pair if side.key not in known}
            known.update(zip(new, self.method.decompose(list(new.values())), strict=True))
            return [method.combine(known[a], known[b]) for a, b in pairs]
        sources = self._read([side for pair in window for side in pair if side.key not in known])
        plan = schedule.plan(
            sources,
            () if self.settings.similarity in MAXSIM else pairs,  # whose vectors meet only when all are known
            {key: len(decomposition.tokens) for key, decomposition in known.items()},
            template_is_still=self.settings.layer == 0 and isinstance(self.method.reference, str),
            reverse_cost=1.0 if self.settings.path == "secant" else REVERSE_COST,
            extra=DIRECTIONS if self.settings.divisions else 0,
        )
        explanations: dict[int, Explanation] = {}
        pair_of = {long: number for number, long in plan.projected.items()}

        def derive(keys: list[Hashable], integral: Integral, members: list[TokenSource]) -> None:
            known.update(zip(keys, method.decompose(integral, members, self.settings), strict=True))

        def project(keys: list[Hashable], integral: Integral, members: list[TokenSource]) -> None:
            (long,) = keys
            a, b = pairs[pair_of[long]]
            (side,) = method.project(integral, members, known[b if long == a else a])
            pair = (side, known[b]) if long == a else (known[a], side)
            explanations[pair_of[long]] = method.combine(*pair)

        cuts: dict[Hashable, Cut] = {}
        # Of the progress: a projection costs about what its query does.
        share = 1.0 if not pair_of else 0.5 if plan.batches else 0.0
        with stage(0, share):
            self._run(plan.batches, sources, derive, cuts)
        with stage(share, 1):
            self._run([[long] for long in pair_of], sources, project, cuts)
        return [
            explanations[number] if number in explanations else method.combine(known[a], known[b])
            for number, (a, b) in enumerate(pairs)
        ]

    def decompose(self, requests: Sequence[Request], progress: bool = False) -> list[Decomposition]:
        """Write each input's embedding as a sum over its parts."""
        decompositions: dict[Hashable, Decomposition] = {}

        def derive(keys: list[Hashable], integral: Integral, members: list[TokenSource]) -> None:
            decompositions.update(zip(keys, method.decompose(integral, members, self.settings), strict=True))

        if isinstance(self.method, Direct):
            distinct = {request.key: request for request in requests}
            with bar("texts", len(distinct), enabled=progress) as counter:
                for number, ((key, request), part) in enumerate(stages(list(distinct.items())), 1):
                    with part:
                        (decompositions[key],) = self.method.decompose([request])
                    counter.update(number)
        else:
            self.derive(requests, derive, progress)
        errors = [(each.error, each.nodes) for each in decompositions.values()]
        self.warn_missed(errors, self.settings.text_tolerance, "texts")
        return [decompositions[request.key] for request in requests]

    def project(self, whole: Decomposition, requests: Iterable[Request]) -> Iterator[Derived]:
        """Find the products of inputs' contributions with a query that is a single part: one pull-back for each input.

        Where nothing is differentiated, inputs are decomposed.
        """
        remaining = iter(requests)
        if isinstance(self.method, Direct):
            for request in remaining:
                yield from self.method.decompose([request])
            return
        while window := list(islice(remaining, PAIRS_TOGETHER)):
            yield from self._project_window(whole, window)

    def _project_window(self, whole: Decomposition, window: Sequence[Request]) -> list[Projection]:
        projections: dict[Hashable, Projection] = {}

        def derive(keys: list[Hashable], integral: Integral, members: list[TokenSource]) -> None:
            projections.update(zip(keys, method.project(integral, members, whole), strict=True))

        self.derive(window, derive)
        return [projections[request.key] for request in window]

    def derive(self, requests: Sequence[Request], derive: Derive, progress: bool = False) -> None:
        """Derive every distinct input, a bounded number of them at a time."""
        distinct = list({request.key: request for request in requests}.values())
        size = 4 * schedule.TEXTS_TOGETHER
        chunks = [distinct[i : i + size] for i in range(0, len(distinct), size)]
        with bar("texts", len(distinct), enabled=progress) as counter:
            done = 0
            for chunk, part in stages(chunks, list(map(len, chunks))):
                with part:
                    sources = self._read(chunk)
                    self._run(schedule.plan(sources).batches, sources, derive, {})
                done += len(chunk)
                counter.update(done)

    def _read(self, requests: Sequence[Request]) -> dict[Hashable, TokenSource]:
        distinct = {request.key: request for request in requests}
        return dict(zip(distinct, self.differentiable("paths").read(list(distinct.values())), strict=True))

    def _run(
        self,
        batches: Sequence[list[Hashable]],
        sources: dict[Hashable, TokenSource],
        derive: Derive,
        cuts: dict[Hashable, Cut],
    ) -> None:
        """Run each batch up to the cut, and derive it.

        Args:
            cuts: one for each route, made where it is missing: where it holds weights of its own, in another precision,
                they are as large as the model.
        """
        how = self.differentiable("paths")
        weights = [float(sum(len(sources[key].input) * len(sources[key].side) for key in keys)) for keys in batches]
        for keys, part in stages(batches, weights):
            members = [sources[key] for key in keys]
            given = members[0].input
            with part:
                if given.route not in cuts:
                    cuts[given.route] = how.cut(given)
                try:
                    members = how.ask(how.hand_on(members, cuts[given.route]))
                    derive(keys, how.follow(members, cuts[given.route]), members)
                except RoughPathError as error:
                    raise error.advise(self._advise(how, error.text)) from None

    def _advise(self, how: Method, text: str) -> str:
        """Say what to do about a rough path: name the shallowest layer that works for its text, and other paths."""
        smooth = policy.shallowest_smooth(how, [Request(text)])
        others = "path='secant' needs no nodes"
        if self.settings.segment is None:
            others = f"path='relay' goes block by block, and {others}"
        return f"layer={smooth} is the shallowest whose path is smooth; {others}; "

    def warn_missed(self, errors: Sequence[tuple[float, int]], tolerance: float, what: str) -> bool:
        """Warn once if any result misses the tolerance; see :func:`whymatch.settings.warn_missed`."""
        # The model's own rounding is no fault of the result's, and no number of nodes would mend it.
        dtype = self.method.encoder.dtype if isinstance(self.method, Method) else torch.float32
        return warn_missed(errors, tolerance + 4 * torch.finfo(dtype).eps, self.settings, what)
