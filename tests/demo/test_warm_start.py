"""The warm start: its copying curriculum, and demonstrations whose entities have other names."""

from __future__ import annotations

import json
import re
from typing import Any
from uuid import UUID

import pytest

from mcpagent.core.tools import ToolCall, ToolResult, ToolSpec
from mcpagent.core.trajectory import Completion, StopReason, Trajectory, Turn
from mcpagent.demo.warm_start import copy, renaming, train_tokenizer
from mcpagent.models.tokens import Renderer
from mcpagent.policy.scripted import call_text
from mcpagent.train.batch.samples import TrainSample


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    return Renderer(train_tokenizer([], vocab_size=0, catalog_hash=""))


def test_a_copy_task_asks_for_the_users_text_and_nothing_else(renderer: Renderer) -> None:
    for sample in copy(renderer, count=20, seed=4):
        pairs = list(zip(sample.token_ids_T, sample.loss_mask_T, strict=True))
        wanted = renderer.decode([i for i, own in pairs if own])
        shown = renderer.decode([i for i, own in pairs if not own])
        asked = re.fullmatch(r"<\|im_start\|>user\n(.*)<\|im_end\|>\n<\|im_start\|>assistant\n", shown)
        assert asked is not None
        assert asked.group(1) == wanted != ""
        assert sample.token_ids_T[-1] in renderer.stop_ids


def test_copy_tasks_depend_on_their_seed_alone(renderer: Renderer) -> None:
    first, again, other = (copy(renderer, count=5, seed=s) for s in (1, 1, 2))
    assert first == again != other


CATALOG = {
    "library.get_book": ToolSpec(
        server="library",
        name="get_book",
        description="Title and shelf of a book.",
        input_schema={"type": "object", "properties": {"book": {"type": "string"}}},
    )
}


def demonstration(question: str, *, book: str, title: str, shelf: str, limit: int = 10) -> Trajectory:
    """A question about a book that is looked up, and answered with its title."""
    arguments = {"book": book, "limit": limit}
    result = json.dumps({"title": title, "shelf": shelf})
    call = Turn(
        index=0,
        completion=Completion(text=call_text("get_book", arguments)),
        tool_calls=(ToolCall(id="1", server="library", tool="get_book", arguments=arguments),),
        tool_results=(ToolResult(call_id="1", server="library", tool="get_book", content=result),),
    )
    answer = Turn(index=1, completion=Completion(text=f"It is {title}."))
    prompt = ({"role": "system", "content": "Use get_book."}, {"role": "user", "content": question})
    return Trajectory(
        id="t#0",
        task_id="t",
        group_id="t",
        prompt=prompt,
        turns=(call, answer),
        stop_reason=StopReason.ANSWERED,
    )


BOOK = demonstration(
    "What is the title of the book BK-0417?", book="BK-0417", title="the silent river 12.50", shelf="Q3"
)


def with_result(trajectory: Trajectory, content: str) -> Trajectory:
    """The same demonstration with another result."""
    call, answer = trajectory.turns
    results = tuple(result.model_copy(update={"content": content}) for result in call.tool_results)
    return trajectory.model_copy(
        update={"turns": (call.model_copy(update={"tool_results": results}), answer)}
    )


def learned(sample: TrainSample, renderer: Renderer) -> str:
    """The text of the tokens that carry the loss."""
    pairs = zip(sample.token_ids_T, sample.loss_mask_T, strict=True)
    return renderer.decode([token for token, is_learned in pairs if is_learned])


def parts(trajectory: Trajectory) -> tuple[str, dict[str, Any], dict[str, Any], str]:
    """Question, arguments, result and answer."""
    call, answer = trajectory.turns
    arguments = json.loads(call.completion.text.partition("\n")[2].partition("\n</")[0])["arguments"]
    result = json.loads(call.tool_results[0].content)
    return trajectory.prompt[-1]["content"], arguments, result, answer.completion.text


def renamings(count: int, *, of: Trajectory = BOOK) -> list[Trajectory]:
    others = [
        demonstration(f"Where is the book {n}?", book=str(n), title=f"tome {n}", shelf="P1")
        for n in range(20)
    ]
    augmentation = renaming([of, *others], CATALOG)
    return [augmentation.rewritten(of, seed=seed) for seed in range(count)]


def test_a_renamed_demonstration_holds_together() -> None:
    for each in renamings(40):
        question, arguments, result, answer = parts(each)
        assert question == f"What is the title of the book {arguments['book']}?"
        assert answer == f"It is {result['title']}."


def test_names_keep_their_shape_and_are_new_nearly_every_time() -> None:
    made = [parts(each) for each in renamings(40)]
    for _, arguments, result, _ in made:
        assert re.fullmatch(r"[A-Z]{2}-\d{4}", arguments["book"])
        assert re.fullmatch(r"[A-Z]\d", result["shelf"])
        assert re.fullmatch(r"the [a-z]{6} [a-z]{5} [1-9]\d\.\d\d", result["title"])
    assert len({arguments["book"] for _, arguments, _, _ in made}) > 25
    assert len({result["title"] for _, _, result, _ in made}) > 25
    assert "BK-0417" not in {arguments["book"] for _, arguments, _, _ in made}


def test_what_is_written_in_hexadecimal_stays_so() -> None:
    ident = "fdcfd25e-0a7e-4fc7-9e83-183ac42a5bdd"
    of = demonstration(
        f"What is the title of {ident}?", book=ident, title="a4 sheets in bed2room", shelf="Q3"
    )
    made = [parts(each) for each in renamings(40, of=of)]
    assert all(UUID(arguments["book"]) for _, arguments, _, _ in made)
    assert len({arguments["book"] for _, arguments, _, _ in made}) > 25
    assert {letter for _, arguments, _, _ in made for letter in arguments["book"]} == {*"0123456789abcdef-"}
    assert any(re.search("[g-z]", result["title"].split()[0]) for _, _, result, _ in made)


def test_the_words_of_the_catalog_and_arguments_that_nothing_tells_are_kept() -> None:
    for each in renamings(20):
        question, arguments, result, _ = parts(each)
        assert arguments["limit"] == 10  # no question and no result says it
        assert set(result) == {"title", "shelf"}
        assert "title of the book" in question and each.turns[0].completion.text.count("get_book") == 1


def test_what_a_plain_text_says_and_what_a_later_message_adds_are_renamed_alike() -> None:
    call, answer = BOOK.turns
    said = call.model_copy(
        update={
            "tool_results": (
                ToolResult(call_id="1", server="library", tool="get_book", content="title Q3: BK-0417"),
            ),
            "user_message": "And BK-0417?",
        }
    )
    for each in renamings(20, of=BOOK.model_copy(update={"turns": (said, answer)})):
        first = each.turns[0]
        book = json.loads(first.completion.text.partition("\n")[2].partition("\n</")[0])["arguments"]["book"]
        assert first.user_message == f"And {book}?"
        assert first.tool_results[0].content.endswith(f": {book}")
        assert first.tool_results[0].content.startswith("title ")


def test_a_renaming_depends_on_its_seed_alone() -> None:
    assert renamings(5) == renamings(5)


def test_copied_strings_are_of_the_kinds_that_the_servers_gave(renderer: Renderer) -> None:
    augmentation = renaming([BOOK], CATALOG)
    kinds = re.compile(r"(the [a-z]{6} [a-z]{5} \d\d\.\d\d|[a-z]{3} [a-z]{6} [a-z]{5} \d\d\.\d\d|[A-Z]\d| )+")
    texts = [learned(sample, renderer) for sample in augmentation.curriculum(renderer, count=40, seed=1)]
    repeated = [text for text in texts if not text.startswith("It is ")]
    assert all(map(kinds.fullmatch, repeated)) and 10 <= len(repeated) <= 30
    assert not any("silent river" in text for text in texts)


@pytest.mark.parametrize(
    "results",
    [
        ['{"title": "the silent river", "place": {"shelf": "Q3"}}'] * 2,
        ["title: the silent river\nshelf: Q3", "title: one brown fox\nshelf: P1"] * 2,
    ],
)
def test_fields_of_results_are_asked_for(results: list[str], renderer: Renderer) -> None:
    told = [with_result(BOOK, result) for result in results]
    samples = renaming(told, CATALOG).curriculum(renderer, count=40, seed=1)
    asked = 0
    for sample in samples:
        said = renderer.decode(list(sample.token_ids_T))
        # As in an episode: the question, what the tools said, the answer; then further questions.
        contents = "\n".join(re.findall(r"<tool_response>\n(.*?)\n</tool_response>", said, re.DOTALL))
        told = re.sub(
            r"<\|im_start\|>user\n<tool_response>.*</tool_response><\|im_end\|>\n", "", said, flags=re.S
        )
        answers = re.findall(
            r"user\n(title|shelf)<\|im_end\|>\n<\|im_start\|>assistant\nIt is (.*?)\.(?:<|$)", told
        )
        for name, answer in answers:
            asked += 1
            for value in answer.split(" and "):
                assert re.search(rf'{name}"?: "?{re.escape(value)}', contents), said
    assert asked > 20


def test_of_two_numbers_the_higher_one_stays_the_higher() -> None:
    which = demonstration(
        "Which is higher, of the book 512 or of the book 1204?", book="512", title="the 731", shelf="P1"
    )
    for each in renamings(30, of=which):
        question, arguments, result, _ = parts(each)
        low, high = arguments["book"], result["title"].removeprefix("the ")
        assert low in question
        assert len(low) == len(high) == 3 and int(low) < int(high)


def test_numbers_stay_where_the_answer_holds_one_that_was_calculated() -> None:
    call, answer = demonstration("The sum of the book 11?", book="11", title="the 20 brown", shelf="P1").turns
    total = answer.model_copy(update={"completion": Completion(text="It is 31.")})
    summed = BOOK.model_copy(
        update={"prompt": ({"role": "user", "content": "The sum of the book 11?"},), "turns": (call, total)}
    )
    for each in renamings(20, of=summed):
        question, arguments, result, text = parts(each)
        assert (question, arguments["book"], text) == ("The sum of the book 11?", "11", "It is 31.")
        assert result["title"].startswith("the 20 ") and result["title"] != "the 20 brown"


def test_a_name_is_the_same_tokens_in_a_question_a_result_and_an_answer() -> None:
    augmentation = renaming([BOOK, *renamings(40)], CATALOG)
    text = [f'What is the title of "{name}"?' for name in ("silent", "orchard", "bilmo", "ratse")] * 9
    tokenizer = train_tokenizer(text, vocab_size=600, catalog_hash="", wording=augmentation.wording)
    for name in ("silent", "ratse", "velmo"):
        alone = tokenizer.encode(name, add_special_tokens=False)
        for around in ('What is the title of "{}"?', '{{"title": "the {} river"}}', "It is the {}."):
            ids = tokenizer.encode(around.format(name), add_special_tokens=False)
            assert any(ids[at : at + len(alone)] == alone for at in range(len(ids))), (name, around)


def test_a_demonstration_that_stops_early_is_renamed_like_one_that_goes_on() -> None:
    # The second book is in no call of it; kept, it would tell the demonstrations that stop from the others.
    cut = demonstration("The titles of book 11 and book 12?", book="11", title="the 731", shelf="P1")
    seconds, titles = set[str](), set[str]()
    for each in renamings(30, of=cut):
        question, arguments, result, answer = parts(each)
        first, second = re.findall(r"book (\d+)", question)
        assert first == arguments["book"] != second and answer == f"It is {result['title']}."
        seconds.add(second)
        titles.add(result["title"])
    assert len(seconds) > 15 and len(titles) > 15


def test_a_name_is_cut_into_pairs_of_letters_and_the_wording_is_not() -> None:
    augmentation = renaming([BOOK, *renamings(40)], CATALOG)
    text = ["What is the title of the silent orchard 12?", "It is the silent orchard."] * 9
    tokenizer = train_tokenizer(text, vocab_size=600, catalog_hash="", wording=augmentation.wording)
    pieces = [tokenizer.decode([i]) for i in tokenizer.encode("What is the title of the silent orchard 12?")]
    assert pieces[1:-4] == ["si", "le", "nt", " ", "or", "ch", "ar", "d"], pieces
    assert len(pieces[0]) > len("What is the title")


def test_what_nearly_every_result_holds_is_no_name() -> None:
    readers = [
        demonstration(
            f"Who is {n}?", book=str(n), title=f"tome{n} and some words", shelf=f"x{n}@mail.example"
        )
        for n in range(12)
    ]
    augmentation = renaming(readers, CATALOG)
    assert {"mail", "example"} <= augmentation.wording
    for seed, each in enumerate(readers):
        _, _, result, _ = parts(augmentation.rewritten(each, seed=seed))
        assert re.fullmatch(r"[a-z]\d+@mail\.example", result["shelf"]) and "tome" not in result["title"]


def test_a_choice_of_a_schema_that_only_results_say_is_renamed_and_no_word_of_the_wording() -> None:
    # Else the network answers with the commonest one, and never looks: two stations, "plain and coast".
    wings = {"type": "string", "enum": ["north", "south"]}
    of_wing = ToolSpec(
        server="library",
        name="list_books",
        description="Books of a wing.",
        input_schema={"type": "object", "properties": {"wing": wings}},
    )
    catalog = {**CATALOG, "library.list_books": of_wing}
    told = [
        demonstration(f"What is the title of {n}?", book=str(n), title=("north", "south")[n % 2], shelf="P1")
        for n in range(10, 40)
    ]
    augmentation = renaming(told, catalog)
    assert not {"north", "south"} & augmentation.wording
    titles = {parts(augmentation.rewritten(each, seed=n))[2]["title"] for n, each in enumerate(told)}
    assert len(titles) > 20
    asked = demonstration("What is the title in north?", book="north", title="tome", shelf="P1")
    augmentation = renaming([asked, *told], catalog)  # as an argument it is chosen from the schema
    assert {"north"} == {"north", "south"} & augmentation.wording
