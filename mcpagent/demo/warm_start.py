"""The embedded model, a Qwen3-architecture network and a byte-level BPE tokenizer built from scratch, and how
it begins.

About half a million parameters, so that warm start and GRPO together take minutes on a CPU. What makes that
possible (measured, see docs/design/0002-embedded-model.md):

- the BPE may merge across words and punctuation ("superwords") and keeps only digits and stand-alone capitals
  apart, so a tool schema costs a few tokens and a ticker is always the same tokens, which can be copied;
- as many key-value heads as query heads: copying is learnt by induction heads. A network of random weights
  must first form that circuit; it appears as a sharp transition, and much sooner on short strings that are
  nothing but copies.

The tokenizer depends on the tool catalog it was trained on; `catalog_hash` travels with it.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpagent.config.environment import resource_path
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec, catalog_hash
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.core.values import scalars
from mcpagent.models.tokens import Renderer
from mcpagent.train.batch.samples import TrainSample, sample_from_segments
from mcpagent.train.sft import MakeSamples, texts

SPECIAL_TOKENS = (
    *("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"),
    *("<tool_response>", "</tool_response>", "<think>", "</think>"),
)
# Digits and stand-alone capitals are tokens of their own; everything else may merge freely.
PRE_TOKENIZER_PATTERN = r"\p{N}|[A-Z](?![a-z])|(?:[A-Z](?=[a-z])|[^\p{N}A-Z])+"


@dataclass(frozen=True, kw_only=True)
class EmbeddedShape:
    """Size of the embedded model. The default is 0.4 to 0.6 M parameters, depending on the vocabulary."""

    vocab_size: int = 2048
    hidden_size: int = 96
    layers: int = 3
    heads: int = 3
    intermediate_size: int = 288
    max_positions: int = 2048


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int, catalog_hash: str, wording: Collection[str] | None = None
) -> Any:
    """Return a byte-level BPE tokenizer over `texts` as a plain `PreTrainedTokenizerFast` with the chat
    template. If `wording` is given, words that are not among it are cut into pairs of letters and merge
    with nothing around them: so a name is the same tokens in a question, a result and an answer, and every
    one of them is frequent enough for copying it to be learned.

    The plain class matters: saved as a Qwen tokenizer, AutoTokenizer would rebuild it with another
    pre-tokenizer and give other ids.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    patterns = [] if wording is None else _other_words(wording)
    apart = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            *apart,
            pre_tokenizers.Split(Regex(PRE_TOKENIZER_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[AddedToken(t, special=True, normalized=False) for t in SPECIAL_TOKENS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        max_token_length=400,
    )
    # Control tokens are never merged with text, so the trainer must not see them inside it.
    split = re.compile("|".join(re.escape(t) for t in SPECIAL_TOKENS))
    tokenizer.train_from_iterator((p for t in texts for p in split.split(t) if p), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        clean_up_tokenization_spaces=False,
        catalog_hash=catalog_hash,
    )
    fast.chat_template = resource_path("templates/chat/embedded.jinja").read_text(encoding="utf-8")
    return fast


def _other_words(wording: Collection[str]) -> list[str]:
    """Patterns that cut out the words that are none of `wording`, then each of them into pairs of letters."""
    kept = "|".join(sorted(re.escape(word) for word in wording))
    word = rf"(?<![A-Za-z0-9])(?!(?:{kept})(?![A-Za-z0-9]))[A-Za-z0-9]+"
    first = rf"\A(?!(?:{kept})\z)(?=[A-Za-z0-9]+\z)[A-Za-z]{{1,2}}"
    return [word, rf"{first}|(?!\A)\G[A-Za-z]{{1,2}}(?=[A-Za-z0-9]*\z)"]


def embedded_config(shape: EmbeddedShape, **options: Any) -> Any:
    """Return the transformers configuration of an embedded model; `options` join it or replace parts of
    it."""
    from transformers import Qwen3Config

    architecture: dict[str, Any] = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.heads,
        "head_dim": shape.hidden_size // shape.heads,
        "intermediate_size": shape.intermediate_size,
        "max_position_embeddings": shape.max_positions,
        "tie_word_embeddings": True,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        "initializer_range": 0.05,
    }
    return Qwen3Config(**(architecture | options))


def build_model(tokenizer: Any, *, shape: EmbeddedShape, seed: int) -> Any:
    """Return a randomly initialised `Qwen3ForCausalLM` (float32, tied embeddings) for `tokenizer`."""
    import torch
    from transformers import Qwen3ForCausalLM

    config = embedded_config(
        shape,
        vocab_size=len(tokenizer),
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Qwen3ForCausalLM(config)


_TOKENIZER_TEXTS = 1000  # more change neither the merges nor the token counts
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class EmbeddedBuilder:
    """The builder of the embedded model (`config.named_parts.ModelBuilder`)."""

    advice = (
        "warm it up first: mcpagent train --algo sft --config configs/warm_start.yaml --data DATA "
        "--out outputs/warm; then --model outputs/warm; or run `mcpagent quickstart`, on servers of your own "
        "`mcpagent quickstart --servers mcp.json`, which does both"
    )

    def architecture(self) -> Any:
        """Return the model's transformers configuration, with the vocabulary of the default size."""
        return embedded_config(EmbeddedShape())

    def build(
        self,
        demonstrations: Sequence[Trajectory],
        tasks: Mapping[str, Task],
        *,
        catalog: Mapping[str, ToolSpec],
        seed: int,
        wording: Collection[str] | None = None,
    ) -> tuple[Any, Any]:
        """Model (random weights) and tokenizer (trained on demonstrations, schemas included; `wording` as in
        `train_tokenizer`).

        The tokenizer remembers the catalog's hash: other tools would fall back to bytes, so it is trained
        anew for them.
        """
        shape = EmbeddedShape()
        # Rendering needs a tokenizer with the template; for text alone, one without merges will do.
        plain = Renderer(train_tokenizer([], vocab_size=0, catalog_hash=""), name="embedded")
        corpus = texts(demonstrations[:_TOKENIZER_TEXTS], tasks, catalog=catalog, renderer=plain)
        tokenizer = train_tokenizer(
            corpus,
            vocab_size=shape.vocab_size,
            catalog_hash=catalog_hash(catalog.values()),
            wording=wording,
        )
        return build_model(tokenizer, shape=shape, seed=derive_seed(seed, "weights")), tokenizer

    def build_small(self) -> tuple[Any, Any]:
        """Return a model whose tokens are bytes, and its tokenizer."""
        tokenizer = train_tokenizer([], vocab_size=0, catalog_hash="smoke")
        shape = EmbeddedShape(vocab_size=len(tokenizer), max_positions=1024)
        return build_model(tokenizer, shape=shape, seed=0), tokenizer


BUILDER = EmbeddedBuilder()

_WORD = re.compile(r"[A-Za-z0-9]+")
_HEX = re.compile(r"(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{4,}")  # a part of a UUID, a hash
# As often as in English, roughly: rare pairs of letters would cost more tokens than real names do.
_VOWELS, _CONSONANTS = "eeeeeaaaaooooiiiuu", "ttttnnnnssssrrrrhhlllldddccmmppggbbffwwvkyjxqz"
_COMMON = 0.25  # share of the questions above which a word belongs to the wording
_FREQUENT = 10  # demonstrations that hold a word after renaming: then it is no entity's
_LINE = re.compile(r"^[\s*-]*([A-Za-z][\w ]{0,30}):\s+(.{1,59})$", re.MULTILINE)
_LOOKED_UP = 0.5  # share of the curriculum's samples that ask for fields of a result
_ASKED_OF_RESULT = 4  # fields, at most
_RESULTS = 4  # different ones of a tool that tell its wording from what it says


class Renaming:
    """Gives the entities of a demonstration new names of the same shape, the same ones in its question, its
    calls, its results and its answers (`train.sft.Augmentation`): so the model learns to copy what stands
    there; a few hundred demonstrations would have it remember.

    An entity is a word, or a number, that a result or the arguments of a call hold, or that the question
    holds and the arguments of another demonstration's call. Words of the catalog (but for choices of a schema
    that only results say), names of fields and what stands in many questions or texts keep their names, and
    so do arguments that nothing told. Of two numbers the higher one stays the higher, and if an answer or a
    question holds a number of its own, a sum or a limit, all of them stay.
    """

    def __init__(self, demonstrations: Sequence[Trajectory], catalog: Mapping[str, ToolSpec]) -> None:
        catalog_text = json.dumps([[s.name, s.description, s.input_schema] for s in catalog.values()])
        counts = Counter(word for each in demonstrations for word in _words(_question(each)))
        calls = [call.arguments for each in demonstrations for turn in each.turns for call in turn.tool_calls]
        self._arguments = set(_words_of(_written(calls)))
        # A choice of a schema that only results say is what is asked for: a guess of it must not pay.
        choices = set(_words_of(c for spec in catalog.values() for c in _choices(spec.input_schema)))
        self._kept = _words(f"{catalog_text} {catalog_text.lower()}")
        self._kept -= choices - self._arguments - counts.keys()
        self._kept |= {word for word, n in counts.items() if n > _COMMON * len(demonstrations)}
        results = _results(demonstrations)
        self._kept |= _result_wording(results)
        rest = (
            word
            for place, each in enumerate(demonstrations)
            for word in _words(self._text(self._renamed(each, random.Random(place))))
        )
        frequent = {word for word, n in Counter(rest).items() if n >= _FREQUENT and word.isalpha()}
        self.wording = frozenset(self._kept | {word for word in frequent if not word.isupper()})
        self._results = [sorted(contents) for contents in results.values() if any(map(_fields, contents))]
        told = [_parsed(content) for contents in results.values() for content in contents]
        self._values = sorted(set(_written(told)) - self._kept)

    @property
    def curriculum(self) -> MakeSamples:
        """Strings to repeat that are of the kinds that the servers gave, but none of them, and results of
        which fields are asked for."""
        return self.copy

    def copy(self, renderer: Renderer, /, *, count: int, seed: int) -> list[TrainSample]:
        """`count` samples that repeat the user's strings, or what a field of a result says."""
        rng = random.Random(seed)
        return [self._copied(renderer, rng) for _ in range(count)]

    def _copied(self, renderer: Renderer, rng: random.Random) -> TrainSample:
        if not self._results or rng.random() > _LOOKED_UP:
            return _copy_sample(renderer, self._random_text(rng))
        of_tool = rng.choice(self._results)
        contents = [self._said_anew(rng.choice(of_tool), rng) for _ in range(rng.choice((1, 2)))]
        tables = [_fields(content) for content in contents]
        names = [name for name in tables[0] if all(name in table for table in tables)]
        if not names:
            return _copy_sample(renderer, self._random_text(rng))
        segments: list[tuple[tuple[int, ...], bool]] = []
        for name in rng.sample(names, min(len(names), _ASKED_OF_RESULT)):
            answer = renderer.action_ids(f"It is {' and '.join(table[name] for table in tables)}.")
            if segments:
                asked = renderer.suffix_ids([{"role": "user", "content": name}])
            else:
                told = [{"role": "tool", "content": content} for content in contents]
                asked = renderer.prompt_ids([{"role": "user", "content": name}, *told], ())
            segments += [(asked, False), (answer, True)]
        return sample_from_segments(segments)

    def _said_anew(self, content: str, rng: random.Random) -> str:
        """A result with other entities."""
        kept = self._kept | _words(" ".join(_keys(_parsed(content))))
        names: dict[str, str] = {}
        return _WORD.sub(
            lambda m: m[0] if m[0] in kept else names.setdefault(m[0], _renamed(m[0], rng)), content
        )

    def _random_text(self, rng: random.Random) -> str:
        if not self._values:
            return _random_text(rng)
        words = [
            _WORD.sub(lambda match: _renamed(match[0], rng), rng.choice(self._values))
            for _ in range(rng.randint(1, 4))
        ]
        return " ".join(words)

    def rewritten(self, trajectory: Trajectory, /, *, seed: int) -> Trajectory:
        """Return the demonstration with other entities."""
        return self._renamed(trajectory, random.Random(seed))

    def _text(self, trajectory: Trajectory) -> str:
        return " ".join(
            [
                _question(trajectory),
                *(turn.completion.text for turn in trajectory.turns),
                *(result.content for result in trajectory.tool_results),
            ]
        )

    def _renamed(self, trajectory: Trajectory, rng: random.Random) -> Trajectory:
        names = self._new_names(trajectory, rng)

        def said(text: str) -> str:
            return _WORD.sub(lambda match: names.get(match[0], match[0]), text)

        def turn(turn: Turn) -> Turn:
            text = turn.completion.text
            return turn.model_copy(
                update={
                    "completion": turn.completion.model_copy(update={"text": said(text)}),
                    "tool_results": tuple(
                        r.model_copy(update={"content": said(r.content)}) for r in turn.tool_results
                    ),
                    "user_message": None if turn.user_message is None else said(turn.user_message),
                }
            )

        prompt = tuple(
            {**message, "content": said(message["content"])} if message["role"] == "user" else message
            for message in trajectory.prompt
        )
        return trajectory.model_copy(
            update={"prompt": prompt, "turns": tuple(turn(each) for each in trajectory.turns)}
        )

    def _new_names(self, trajectory: Trajectory, rng: random.Random) -> dict[str, str]:
        question = _words(_question(trajectory))
        told = set(question)
        # One that stops early never calls with the second thing it was asked about: others do.
        entities = dict.fromkeys(word for word in sorted(question) if word in self._arguments)
        untold: set[str] = set()
        for turn in trajectory.turns:
            for call in turn.tool_calls:
                of_call = _words_of(_written(call.arguments))
                untold |= {word for word in of_call if word not in told}
                entities |= dict.fromkeys(of_call)
            for result in turn.tool_results:
                values = _parsed(result.content)
                untold |= _words(json.dumps(list(_keys(values))))
                of_result = _words_of(_written(values))
                told |= set(of_result)
                entities |= dict.fromkeys(of_result)
            told |= _words(turn.user_message or "")
        answer = _words(trajectory.turns[-1].completion.text)
        loose = {word for word in question - entities.keys() | answer - told if word.isdigit()}
        renamed = [
            word
            for word in entities
            if word not in self._kept and word not in untold and not (loose and word.isdigit())
        ]
        names: dict[str, str] = {}
        taken = {*entities, *told}
        for word in renamed:
            for _ in range(20):
                name = _renamed(word, rng)
                if name not in taken:
                    names[word] = name
                    taken.add(name)
                    break
        return _in_order(names)


def _in_order(names: Mapping[str, str]) -> dict[str, str]:
    """The same names, dealt out so that of two numbers the higher one stays the higher: they keep their
    length, so it is enough among those of one length."""
    numbers: dict[int, list[str]] = {}
    for word in names:
        if word.isdigit():
            numbers.setdefault(len(word), []).append(word)
    in_order = dict(names)
    for words in numbers.values():
        in_order |= zip(sorted(words), sorted(names[word] for word in words), strict=True)
    return in_order


def renaming(demonstrations: Sequence[Trajectory], catalog: Mapping[str, ToolSpec]) -> Renaming:
    """Return what `sft.augmentation` names: demonstrations whose entities have other names each time."""
    return Renaming(demonstrations, catalog)


def _choices(schema: Any) -> Iterator[str]:
    """The texts that a schema lists for its values."""
    if isinstance(schema, dict):
        yield from (choice for choice in schema.get("enum", ()) if isinstance(choice, str))
    for item in schema.values() if isinstance(schema, dict) else schema if isinstance(schema, list) else ():
        yield from _choices(item)


def _results(demonstrations: Sequence[Trajectory]) -> dict[str, set[str]]:
    """Return what each tool answered."""
    contents: dict[str, set[str]] = {}
    for result in (result for each in demonstrations for result in each.tool_results):
        if not result.is_error:
            contents.setdefault(f"{result.server}.{result.tool}", set()).add(result.content)
    return contents


def _result_wording(results: Mapping[str, Collection[str]]) -> set[str]:
    """Words that the results of a tool hold whatever it was asked: those of most texts, if they say what
    keys say in JSON, and of nearly all JSON, such as the domain of every address."""
    wording: set[str] = set()
    for contents in results.values():
        is_text = all(isinstance(_parsed(content), str) for content in contents)
        if len(contents) >= _RESULTS:
            counts = Counter(word for content in contents for word in _words(content))
            least = (0.5 if is_text else 0.9) * len(contents)
            wording |= {word for word, n in counts.items() if n > least}
    return wording


def _question(trajectory: Trajectory) -> str:
    return " ".join(message["content"] for message in trajectory.prompt if message["role"] == "user")


def _words(text: str) -> set[str]:
    return set(_WORD.findall(text))


def _words_of(values: Iterable[str]) -> list[str]:
    return [word for value in values for word in _WORD.findall(value)]


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _keys(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        yield from value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _keys(item)


def _fields(content: str) -> dict[str, str]:
    """Return the values of the fields of a result, by name as a person writes it: of the objects of JSON that
    are in no list, or of lines."""
    values = _parsed(content)
    if isinstance(values, str):
        return {name: value for name, value in _LINE.findall(values) if value}
    fields: dict[str, str] = {}
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, dict):
            fields |= _fields(json.dumps(value))
        elif isinstance(value, str | int | float) and not isinstance(value, bool):
            fields[name.replace("_", " ")] = value if isinstance(value, str) else json.dumps(value)
    return fields


def _written(value: Any) -> Iterator[str]:
    """The texts and numbers of a JSON value, as they are written."""
    for item in scalars(value):
        if isinstance(item, str | int | float) and not isinstance(item, bool):
            yield item if isinstance(item, str) else json.dumps(item)


def _renamed(word: str, rng: random.Random) -> str:
    """Return a word of the same shape: digits for digits, vowels for vowels. A number keeps its length."""
    is_hex = _HEX.fullmatch(word) is not None
    letters = [rng.choice("abcdef") if is_hex and c.isalpha() else _like(c, rng) for c in word]
    if word[0] != "0" and letters[0] == "0":
        letters[0] = rng.choice("123456789")
    return "".join(letters)


def _like(letter: str, rng: random.Random) -> str:
    if letter.isdigit():
        return rng.choice("0123456789")
    if letter.isupper():
        return rng.choice(_LETTERS)
    return rng.choice(_VOWELS if letter in _VOWELS else _CONSONANTS)


def copy(renderer: Renderer, *, count: int, seed: int) -> list[TrainSample]:
    """`count` samples that repeat the user's string of random symbols and numbers, the same for the same
    seed. A curriculum for `sft.curriculum`."""
    rng = random.Random(seed)
    return [_copy_sample(renderer, _random_text(rng)) for _ in range(count)]


def _copy_sample(renderer: Renderer, text: str) -> TrainSample:
    prompt = renderer.prompt_ids([{"role": "user", "content": text}], ())
    return sample_from_segments([(prompt, False), (renderer.action_ids(text), True)])


def _random_text(rng: random.Random) -> str:
    return " ".join(_random_item(rng) for _ in range(rng.randint(1, 4)))


def _random_item(rng: random.Random) -> str:
    """A symbol of three or four capitals, a whole number, a price, or a letter with three digits."""
    kind = rng.randrange(5)
    if kind < 2:
        return "".join(rng.choice(_LETTERS) for _ in range(rng.choice((3, 4, 4))))
    if kind == 2:
        return str(rng.randint(2, 99_999))
    if kind == 3:
        return f"{rng.uniform(10, 999):.2f}"
    return f"{rng.choice(_LETTERS)}{rng.randint(100, 999)}"
