"""The default layer, path, treatment of special tokens and correction: the one place that decides what suits a model.

The path is ``"secant"`` for encoders of the kind of BERT, with LayerNorms and without gates: there it is about as
true as a relay, which goes block by block, and several times cheaper. Elsewhere, and where an operation has no secant,
it is ``"relay"``.

``fine`` is for a pair that somebody looks at closely, ``fast`` for passages and for many texts. They differ in how many
blocks they go through, and that depends on the model. A block is *rough* if its hidden states move in steep steps along
its own line. Explanations that begin below such a block, though exact, predict the model less well. So ``fine`` begins
after the last rough block, and ``fast`` one block before the end, or three by secants, if they are not rough. Plain
passes over a few sentences tell which blocks are rough.

Special tokens hold the *base*, the part of an embedding that does not go when words do, if it is more than half of it.

``fine`` corrects what words add by what the model makes of parts of the text; ``fast`` saves the runs that this takes.

The measurements behind this are in docs/method.md, "Which map, and where", "Special tokens" and "Divisions".
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from whymatch.encoders.identity import identity
from whymatch.method import Method, decompose
from whymatch.paths.integrate import to_numpy
from whymatch.paths.jacobian import LOCK
from whymatch.paths.secant import GATE, NoSecantError
from whymatch.progress import stages
from whymatch.reading.inputs import EncodeOptions, Request, TokenSource
from whymatch.reading.sides import TEMPLATE
from whymatch.settings import DETAILS, MAXSIM
from whymatch.words import word_spans

# A norm whose secant is true; and operations of encoders whose secants are less true, have not been measured, or are
# exact for some texts only: gates, norms that are written out, and memory that is read in windows.
NORM, DOUBTFUL = "native_layer_norm", {GATE, "rsqrt", "_fused_rms_norm", "as_strided"}

# A path that needs more nodes than this for this tolerance is rough.
ROUGH, TOLERANCE = 50, 1e-3

# The blocks that ``fast`` goes through. A secant goes through each for a fraction of a pass.
FAST_BLOCKS = {"secant": 3}

# How many times ``fine`` divides the words of a text into parts. Beside a relay, twice as many cost next to nothing
# (docs/method.md).
DIVISIONS = {"secant": 4, "relay": 8}

# Read to find out which blocks are rough: a short sentence and a longer one, of different kinds.
SENTENCES = (
    "A man is playing a large flute.",
    "Shares of the company fell by 3 percent on Monday, although its sales had grown again.",
)

# Read to find out how much of an embedding stays when half of the words go.
HALVED = (
    *SENTENCES,
    "How do I get a refund for a ticket that I booked online?",
    "The coffee is not good.",
    "Two dogs run across a snowy field.",
    "The study found no link between sleep and memory in older adults.",
    "Install the package first, then restart the server.",
    "She thanked everybody who had helped her move to the new flat in the city.",
)

# If more than this stays, special tokens hold it.
MUCH = 0.5

# How much of an embedding stays when words go, for each model; and what a token hands over, for its settings, too.
_stays: dict[Hashable, float] = {}
_bases: dict[Hashable, float] = {}

# Whether a model embeds single words.
_words: dict[Hashable, bool] = {}

# The layer at which a level of detail begins, for each model and its settings.
_first_smooth: dict[Hashable, int] = {}

# Whether the secant is the path to take, for each model and its settings.
_suits_secant: dict[Hashable, bool] = {}


def check_detail(detail: str) -> str:
    """Return the level of detail if it is known; otherwise raise an error that lists the known ones."""
    if detail not in DETAILS:
        raise ValueError(f"detail={detail!r} is not known; choose {' or '.join(map(repr, DETAILS))}")
    return detail


def choose_path(method: Method, wants_paper: bool) -> str:
    """Return the default path: the paper's own where its sum is asked for, or where no other is possible."""
    if wants_paper or method.encoder.uses_all_layers:
        return "straight"
    encoder = method.encoder
    key = (identity(encoder.model), encoder.name, method.settings.blocks)
    if key not in _suits_secant:
        try:
            _suits_secant[key] = suits_secant(method)
        except RuntimeError:  # no memory, or the model's own code fails: what it says comes up again with the texts
            return "relay"
    return "secant" if _suits_secant[key] else "relay"


@torch.inference_mode(False)
def suits_secant(method: Method) -> bool:
    """Whether the encoder has a secant that is exact, of operations for which it is as true as other paths."""
    encoder = method.encoder
    if set(encoder.model.modalities) != {"text"}:
        return False  # towers for pictures have not been measured
    if not any(isinstance(module, torch.nn.LayerNorm) for module in encoder.model.modules()):
        return False
    # Which operations run does not depend on the reference, and a function is for the user's own texts.
    reference = method.reference if isinstance(method.reference, str) else "pad"
    settings = replace(method.settings, path="secant", layer=0)
    whole = replace(method, layer=0, settings=settings, reference=reference)
    operations: set[str] = set()
    try:
        for task in _tasks(method):
            for source in _read_those_that_fit(whole, _ask(task)):
                integral = whole.follow([source], whole.cut(source.input))
                integral.pull_along(torch.ones_like(integral.end))
                operations |= integral.secant_operations()
                if operations & DOUBTFUL:
                    return False
    except (ArithmeticError, NoSecantError, ValueError):
        return False
    return NORM in operations


def choose_divisions(path: str, detail: str) -> int:
    """Return how many times the words of a text are divided: the more, the dearer the path is that they correct."""
    return DIVISIONS[path.split("-")[0]] if detail == "fine" else 0


def choose_layer(method: Method, detail: str) -> int:
    """Return the layer, counted from the input, at which this level of detail cuts the encoder."""
    encoder, path = method.encoder, method.settings.path
    if encoder.uses_all_layers:
        return 0
    last = max(encoder.num_layers - 1, 0)
    if "text" not in encoder.model.modalities:
        return last
    blocks = encoder.num_layers if detail == "fine" else FAST_BLOCKS.get(path, 1)
    lowest = max(encoder.num_layers - min(blocks, _fewest_blocks(method)), 0)
    if lowest == last:
        return last
    key = (identity(encoder.model), encoder.name, method.settings.blocks, method.reference, path, lowest)
    if key not in _first_smooth:
        requests = _ask("query" if encoder.asymmetric else None)
        _first_smooth[key] = shallowest_smooth(method, requests, lowest)
    return _first_smooth[key]


def choose_special(method: Method, wants_paper: bool) -> str:
    """Return what is done with special tokens: ``"base"`` if much of an embedding stays whatever the words are."""
    encoder = method.encoder
    # A function is for the user's own texts, and one embedding of many vectors has its shares already.
    measurable = isinstance(method.reference, str) and method.settings.similarity not in MAXSIM
    if wants_paper or not measurable or encoder.shifted_by is not None or set(encoder.model.modalities) != {"text"}:
        return "keep"
    try:
        return "base" if has_template(method) and how_much_stays(method) > MUCH else "keep"
    except (ArithmeticError, RuntimeError):  # it fails with these sentences, and may not with the user's
        return "keep"


def may_correct(method: Method, wants_paper: bool) -> bool:
    """Whether contributions are corrected by what the model makes of parts of a text, where nobody says."""
    encoder, settings = method.encoder, method.settings
    texts_alone = set(encoder.model.modalities) == {"text"} and settings.similarity not in MAXSIM
    usual = texts_alone and encoder.shifted_by is None and isinstance(method.reference, str)
    return not wants_paper and usual and _embeds_words(method)


def _embeds_words(method: Method) -> bool:
    """Whether the model can embed a single word or mark: one that halves its texts on the way may not."""
    key = (identity(method.encoder.model), method.encoder.name)
    if key not in _words:
        try:
            with LOCK:
                for task in _tasks(method):
                    method.encoder.embed(method.encoder.read(["coffee", "?"], EncodeOptions(task)))
            _words[key] = True
        except (ArithmeticError, RuntimeError):
            _words[key] = False
    return _words[key]


def has_template(method: Method) -> bool:
    """Whether the model adds tokens of its own to a text."""
    with LOCK:
        (given,) = method.encoder.read(["coffee"], EncodeOptions(_tasks(method)[-1]))
    return any(kind in TEMPLATE for kind in given.kinds)


def measure_base(method: Method) -> float:
    """Measure how much of its share of an embedding a token hands over to the template, with ``special="base"``.

    It is as much as lets the template hold what stays: the tokens of half of the words, and the template, then add up,
    along the embedding, to what the model itself gives half of the words.
    """
    encoder, settings = method.encoder, replace(method.settings, special="keep", base=0.0)
    settings = replace(settings, rule="gauss", steps=None, tolerance=TOLERANCE)
    # A function is for the user's own texts.
    reference = method.reference if isinstance(method.reference, str) else "pad"
    key = (identity(encoder.model), encoder.name, settings.blocks, reference, settings.path, method.layer)
    if key not in _bases:
        how, stays = replace(method, settings=settings, reference=reference), how_much_stays(method)
        requests = [replace(each, groups="sentences") for task in _tasks(method) for each in _ask(task)]
        wanted = []
        for source in _read_those_that_fit(how, requests):
            template = [i for i, kind in enumerate(source.side.kinds) if kind in TEMPLATE]
            others = 1 - float(source.shares[template].sum())
            if others > 0:
                wanted.append((stays - _held(how, source, template)) / others)
        base = float(np.mean(wanted)) if wanted else 0.0
        _bases[key] = round(min(max(base, 0.0), 1.0), 2) if np.isfinite(base) else 0.0
    return _bases[key]


def _held(method: Method, source: TokenSource, template: Sequence[int]) -> float:
    """Return the part of an input's embedding that its template holds, of the reference and of what was added to it."""
    embedding = np.asarray(source.embedding, np.float64)
    held = np.zeros_like(embedding)
    # Where these sentences cannot be derived, the user's may: what the template holds is then left out.
    with suppress(ArithmeticError, RuntimeError, TypeError):
        integral = method.follow([source], method.cut(source.input))
        held = source.shares[list(template)].sum() * np.asarray(to_numpy(integral.start[0]), np.float64)
        if not set(integral.paths.moving[0].tolist()).isdisjoint(template):
            held = decompose(integral, [source], method.settings)[0].contributions[list(template)].sum(0)
    return float(held @ embedding / max(float(embedding @ embedding), 1e-30))


def how_much_stays(method: Method) -> float:
    """Return the part of an embedding that does not go when words do.

    If it is h, and the rest is the words', half of the words have a cosine of h + (1 − h) / 2 with all of them.
    """
    encoder = method.encoder
    key = (identity(encoder.model), encoder.name)
    if key not in _stays:
        cosines, failure = [], None
        for task in _tasks(method):
            for sentence in HALVED:
                try:
                    with LOCK:
                        vectors = encoder.vectors([sentence, *_halves(sentence)], EncodeOptions(task))
                except RuntimeError as error:  # it may have more tokens than a small model has positions
                    failure = error
                    continue
                whole, *halves = (np.asarray(each, np.float64) for each in vectors)
                cosines += [float(whole @ half / max(_length(whole) * _length(half), 1e-30)) for half in halves]
        if not cosines:
            raise failure or RuntimeError("there is no sentence to embed")
        _stays[key] = 2 * float(np.mean(cosines)) - 1
    return _stays[key]


def _length(vector: NDArray[np.float64]) -> float:
    return float(np.linalg.norm(vector))


def _halves(text: str) -> list[str]:
    """Return every other word of a text, from the first and from the second on."""
    words = [text[low:high] for low, high in word_spans(text)]
    return [" ".join(words[start::2]) for start in (0, 1)]


def _tasks(method: Method) -> tuple[str | None, ...]:
    return ("query", "document") if method.encoder.asymmetric else (None,)


def _fewest_blocks(method: Method) -> int:
    """Return how many blocks the shallowest of the model's towers for texts has."""
    encoder = method.encoder
    tasks = ("query", "document") if encoder.routed and encoder.asymmetric else ()
    towers = [encoder.tower(source.input) for task in tasks for source in method.read(_ask(task)[:1])]
    return min((tower.layers for tower in towers), default=encoder.num_layers)


def _ask(task: str | None) -> list[Request]:
    return [Request(text, EncodeOptions(task)) for text in SENTENCES]


def shallowest_smooth(method: Method, requests: Sequence[Request], lowest: int = 0) -> int:
    """Return the shallowest layer, not below ``lowest``, whose path is smooth for all these inputs.

    That is the last block's, if none is. A secant, which needs no nodes, begins where a relay would.
    """
    layers = method.encoder.num_layers
    path = "relay" if method.settings.path == "secant" else method.settings.path
    settings = replace(method.settings, path=path, rule="gauss", steps=None, tolerance=TOLERANCE)
    sources = _read_those_that_fit(method, requests)
    looks = [(layer, source) for layer in reversed(range(lowest, layers)) for source in sources]
    for (layer, source), part in stages(looks, doing="looking at the model's blocks"):
        at_layer = replace(method, layer=layer, settings=replace(settings, layer=layer))
        with part:
            try:
                nodes = at_layer.follow([source], at_layer.cut(source.input)).nodes_needed(0)
            except ArithmeticError:  # it jumps where it begins, or is not finite there
                nodes = None
        if nodes is None or nodes > ROUGH:
            return min(layer + 1, layers - 1)
    return lowest


def _read_those_that_fit(method: Method, requests: Sequence[Request]) -> list[TokenSource]:
    """Read those of the inputs that the model can embed; raise its error if it can embed none.

    The longer sentence may have more tokens than a small model has positions, even if the user's texts do not.
    """
    sources: list[TokenSource] = []
    failure: RuntimeError | None = None
    for request in requests:
        try:
            sources += method.read([request])
        except RuntimeError as error:  # noqa: PERF203 there are two of them
            failure = error
    if failure is not None and not sources:
        raise failure
    return sources
