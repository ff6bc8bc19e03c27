"""Sixty conversations, twenty in each of three dialects, and what has to become of each."""

import json
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from tests.synth.chats.servers import AUTHORS, BOOKS, TOOLS

Message = dict[str, Any]
SECRET = "ghp_1a2B3c4D5e6F7g8H9i0JkLmNoPqRsT"
REFUSAL = "There is nothing of that name."


class Call(NamedTuple):
    """A call of a log; `result` None if it was not kept."""

    name: str
    arguments: Any
    result: Any = None


Turn = str | dict[str, Any] | list[Call]  # of the user, the assistant (`said`), or calls made at once


class Row(NamedTuple):
    """`fate` is the code for which the row is left out, or what the task is graded by."""

    name: str
    turns: list[Turn]
    fate: str


def said(text: str) -> dict[str, Any]:
    return {"said": text}


def rows(variant: int) -> Iterator[Row]:
    """Twenty conversations about things that no other variant names."""
    author, other = AUTHORS[2 * variant : 2 * variant + 2]
    numbers = [number for number, book in BOOKS.items() if book["author"] == author]
    others = [number for number, book in BOOKS.items() if book["author"] == other]
    book, second, third = (Call("get_book", {"number": n}, BOOKS[n]) for n in numbers)
    last, lost, torn = (Call("get_book", {"number": n}, BOOKS[n]) for n in others)
    found = Call("search_books", {"author": author}, {"numbers": numbers})
    asked = f"How many pages has {numbers[0]}?"
    thanked = [asked, [book], said(f"{book.result['pages']} pages."), "Thanks!"]  # to which nothing was said
    yield Row("one call", thanked, "the calls")
    yield Row("chain", [f"Something of {author}", [found], [second], said("Read that.")], "the calls")
    yield Row("at once", [f"{numbers[0]} or {numbers[2]}?", [book, third], said("Either.")], "the calls")
    two = [f"Has {author} written?", [found], said("Three."), "The last one?", [third], said("Here.")]
    yield Row("two turns", two, "the calls")
    bare = [last._replace(result=None)]
    yield Row("no results", [f"What is {others[0]} called?", bare, said("A book.")], "the calls")
    stale = [lost._replace(result={**lost.result, "pages": 1})]
    yield Row("stale", [f"Pages of {others[1]}?", stale, said("It has 1 page.")], "the calls")
    title = f"return {numbers[1]}"
    added = Call("add_todo", {"title": title}, {"added": title})
    yield Row("a change", [f"Remind me to {title}", [added], said("Done.")], "the state")
    wrong = Call("get_book", {"number": f"{numbers[2]}x"}, f"Error: {REFUSAL}")
    yield Row("refused", [f"Title of {numbers[2]}?", [wrong], [third], said("It is there.")], "the calls")
    unfit = Call("get_book", {"num": others[2]}, "missing argument")
    yield Row("repaired", [f"Who wrote {others[2]}?", [unfit], [torn], said(other)], "the calls")
    told = f"My key is {SECRET}. Which books has {other}?"
    shelf = Call("search_books", {"author": other}, {"numbers": others})
    yield Row("told secret", [told, [shelf], said(f"{SECRET}: three.")], "the calls")
    yield Row(
        "unknown",
        [f"Will {author} see rain?", [Call("get_weather", {}, "rain")], said("Yes.")],
        "unknown_tool",
    )
    yield Row("orphan", [f"Of {other}?", {"orphan": "[]"}, said("None.")], "no_call")
    gone = Call("get_book", {"number": f"Z-{variant}"}, {"title": "Sold"})
    yield Row("fails today", [f"Title of Z-{variant}?", [gone], said("Sold.")], "step_failed")
    keyed = Call("search_books", {"author": SECRET}, {"numbers": []})
    yield Row("needs a secret", ["What have I?", [keyed], said("Nothing.")], "secret")
    mail = Call("send_mail", {"to": author, "text": "hi"}, {"sent": True})
    yield Row("may write", [f"Greet {author}", [mail], said("Sent.")], "may_write")
    if variant:
        yield Row("no call", [f"Do you like {author}?", said("Very much.")], "no_call")
    else:
        yield Row("unanswered", [f"Do you like {author}?"], "schema")
    yield Row("unfit", [f"And {others[2]}?", [unfit], said("No idea.")], "invalid_arguments")
    yield Row("again", [asked, [book], said("As before.")], "duplicate")
    shelf = Call("find_shelf", {"number": numbers[2]}, {"request": 7, "shelf": f"S{numbers[2][2:]}"})
    yield Row(
        "new every time", [f"Where is {numbers[2]}?", [shelf], said(shelf.result["shelf"])], "the calls"
    )
    if variant == 1:
        yield Row("no object", ["Look it up", [Call("get_book", "[1", "{}")], said("No.")], "schema")
    else:
        yield Row("image", [{"image": f"Whose cover is {variant}?"}, [book], said("Hers.")], "not_text")


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def openai(turns: list[Turn]) -> Message:
    """As an API logs it: ids, arguments as JSON text, blocks for images."""
    messages: list[Message] = [{"role": "system", "content": "You help readers."}]
    for turn in turns:
        if isinstance(turn, str):
            messages.append({"role": "user", "content": turn})
        elif isinstance(turn, list):
            ids = [f"call_{len(messages)}_{n}" for n in range(len(turn))]
            calls = [
                {"id": i, "type": "function", "function": {"name": c.name, "arguments": _text(c.arguments)}}
                for i, c in zip(ids, turn, strict=True)
            ]
            messages.append({"role": "assistant", "content": None, "tool_calls": calls})
            # Results come in the order in which they were ready.
            for i, c in reversed(list(zip(ids, turn, strict=True))):
                if c.result is not None:
                    messages.append({"role": "tool", "tool_call_id": i, "content": _text(c.result)})
        elif "said" in turn:
            messages.append({"role": "assistant", "content": turn["said"]})
        elif "image" in turn:
            blocks = [
                {"type": "image_url", "image_url": {"url": "data:"}},
                {"type": "text", "text": turn["image"]},
            ]
            messages.append({"role": "user", "content": blocks})
        else:
            messages.append({"role": "tool", "tool_call_id": "call_of_nobody", "content": turn["orphan"]})
    return {"messages": messages}


def fine_tuning(turns: list[Turn]) -> Message:
    """As trainers read it: no ids, arguments as objects, the tools of the servers in the row."""
    row = openai(turns)
    del row["messages"][0]
    for message in row["messages"]:
        message.pop("tool_call_id", None)
        for call in message.get("tool_calls", ()):
            del call["id"]
            if call["function"]["arguments"][-1] == "}":
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    in_order: list[Message] = []  # without ids, results stand in the order of the calls
    results: list[Message] = []
    for message in row["messages"]:
        if message["role"] == "tool":
            results.insert(0, message)
        else:
            in_order += [*results, message]
            results = []
    tools = [{"type": "function", "function": {"name": t["name"]}} for named in TOOLS.values() for t in named]
    return {"messages": in_order, "tools": tools}


def sharegpt(turns: list[Turn]) -> Message:
    """As ShareGPT and its heirs write it."""
    said: list[Message] = []
    for turn in turns:
        if isinstance(turn, str):
            said.append({"from": "human", "value": turn})
        elif isinstance(turn, list):
            calls = [{"name": c.name, "arguments": c.arguments} for c in turn]
            said.append({"from": "function_call", "value": json.dumps(calls if len(calls) > 1 else calls[0])})
            said += [{"from": "observation", "value": _text(c.result)} for c in turn if c.result is not None]
        elif "said" in turn:
            said.append({"from": "gpt", "value": turn["said"]})
        elif "image" in turn:
            said.append(
                {"from": "human", "value": [{"type": "image"}, {"type": "text", "text": turn["image"]}]}
            )
        else:
            said.append({"from": "observation", "value": turn["orphan"]})
    return {"conversations": said}


DIALECTS: tuple[Callable[[list[Turn]], Message], ...] = (openai, fine_tuning, sharegpt)
ALL = [(dialect(row.turns), row) for n, dialect in enumerate(DIALECTS) for row in rows(n)]
