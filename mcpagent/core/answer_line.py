"""The answer line, `Answer: ...`: the sentence of a question that states its form, and a value in that form.

| type     | form                                                                               |
|----------|------------------------------------------------------------------------------------|
| number   | a number[ in UNIT][ with N decimals]                                               |
| date     | a date as YYYY-MM-DD, a time as HH:MM, both, or a year as YYYY[ (UTC+02:00)]       |
| name     | the name as the tools write it                                                     |
| set      | the names, separated by "; " (numbers, dates; `list` says: in this order)          |
| pairs    | thing: value, separated by "; "                                                    |
| choice   | one of: A; B; C                                                                    |
| yes_no   | yes or no                                                                          |

Items with ";" and things with ": " are asked for as JSON. `mcpagent.reward.answer` reads the line.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_EVEN, ROUND_HALF_UP, Decimal, InvalidOperation, localcontext
from typing import Any

from mcpagent.core.moments import Moment
from mcpagent.core.placeholders import format_value, reference_texts, resolve_references
from mcpagent.core.tasks import AnswerCheck, AnswerType, Task
from mcpagent.core.values import as_number, is_json_array, is_json_object

ASKS_FOR_LINE = (
    'End your last message with one line "Answer: ...", or "Answer: none" if the tools cannot tell.'
)
# How the system messages of datasets asked for it whose questions did not state a form yet.
_ASKED_BEFORE = 'End your last message with a line that gives nothing but the answer: "Answer: ..."'
ASKED_BEFORE = (f"{_ASKED_BEFORE}.", f'{_ASKED_BEFORE}, or "Answer: none" if the tools cannot give one.')
NO_ANSWER = "none"
STATED_TYPES = frozenset({"number", "date", "name", "set", "list", "pairs", "choice", "yes_no"})
_SENTENCE = 'End with "Answer: " and '
_LONGEST_NAME = 80  # characters
_OF_NUMBERS = "0123456789+-−.,eE "
_MOST_DECIMALS = 6  # of a number that is asked for as it is
_ITEMS = {"number": "numbers", "name": "names", "yes_no": "answers yes or no"}
_DONE = "done"  # what is said if nothing was asked for but a change


def folded(text: str) -> str:
    """Return a text as names are compared: NFKC, without letter case, one space for many."""
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


# The sentence


def with_form(text: str, check: AnswerCheck | None) -> str:
    """Return a question with the sentence that states the form of its answer, as its last line; as it is if
    there is no form to state."""
    form = None if check is None else form_of(check)
    return text if form is None else f"{text}\n{_SENTENCE}{form}."


def without_form(text: str) -> str:
    """Return a question without the sentence that states the form of its answer."""
    question, _, last = text.rpartition("\n")
    return question if last.startswith(_SENTENCE) else text


def states_form(task: Task) -> bool:
    """Return whether the last user message of a task ends with the sentence."""
    asked = task.truth.user_turns[-1] if task.truth.user_turns else task.prompt[-1].content
    return without_form(asked) != asked


def asked_before(task: Task) -> bool:
    """Return whether a task asks for its answer line as tasks did before questions stated forms."""
    return any(line in ASKED_BEFORE for line in task.prompt[0].content.splitlines())


def stated(task: Task) -> Task:
    """Return a task whose last user message states the form of its answer, if it has an answer line."""
    truth = task.truth
    check = truth.final_answer if truth.answer_line else None
    if check is not None and check.type in ("none", "abstention") and states_form(task):
        return task  # what it would have been is known no more
    prompt, later = task.prompt, list(truth.user_turns)
    if later:
        later[-1] = with_form(without_form(later[-1]), check)
    else:
        asked = with_form(without_form(prompt[-1].content), check)
        prompt = (*prompt[:-1], prompt[-1].model_copy(update={"content": asked}))
    truth = truth.model_copy(update={"user_turns": tuple(later)} if later else {})
    spec = task.reward_spec.model_copy(update={"ground_truth": truth})
    return task.model_copy(update={"prompt": prompt, "reward_spec": spec})


def form_of(check: AnswerCheck) -> str | None:
    """Return the form of the answer line, as the sentence states it; None if the type has none."""
    kind, value = check.form or check.type, check.value
    match kind:
        case "number":
            return f"a {_number_form(check)}"
        case "date":
            return _date_form(check, value)
        case "name":
            return "the name as the tools write it"
        case "set" | "list":
            items = _items_form(check, list(value) if is_json_array(value) else [])
            return f"the {items}, {_notation(value)}" + (", in this order" if kind == "list" else "")
        case "pairs":
            held = [*value.values()] if is_json_object(value) else []
            return f"thing: {_item_form(check, held)}, {_notation(value)}"
        case "choice":
            return f"one of: {'; '.join(map(format_value, check.options))}"
        case "yes_no":
            return "yes or no"
        case _:
            return None


def _number_form(check: AnswerCheck) -> str:
    unit = f" in {check.unit.strip()}" if check.unit else ""
    plural = "" if check.decimals == 1 else "s"
    return f"number{unit}" + ("" if check.decimals is None else f" with {check.decimals} decimal{plural}")


def _date_form(check: AnswerCheck, value: Any) -> str:
    moment = Moment.read(str(value)) or Moment(date="x")  # a reference that no one has followed yet
    if check.precision in ("minute", "second") and not moment.time:
        moment = Moment(date="x", time="x")
    moment = moment.cut(check.precision)
    forms = {
        (True, False, False): "a year as YYYY",
        (False, True, False): "a date as YYYY-MM-DD",
        (False, False, True): "a time as HH:MM",
        (False, True, True): "a date and time as YYYY-MM-DD HH:MM",
    }
    return forms[moment.shape] + (f" (UTC{moment.offset})" if moment.offset else "")


def _items_form(check: AnswerCheck, values: Sequence[Any]) -> str:
    kind = item_type(values)
    if kind == "date":
        return _date_form(check, values[0]).removeprefix("a ").replace(" as ", "s as ", 1)
    return f"numbers{_number_form(check)[6:]}" if kind == "number" else _ITEMS[kind or "name"]


def _item_form(check: AnswerCheck, values: Sequence[Any]) -> str:
    kind = item_type(values)
    if kind == "date":
        return _date_form(check, values[0]).removeprefix("a ")
    return _number_form(check) if kind == "number" else "yes or no" if kind == "yes_no" else "value"


def _notation(value: Any) -> str:
    return "as JSON" if _needs_json(value) else 'separated by "; "'


def _needs_json(value: Any) -> bool:
    if is_json_object(value):
        texts = [*map(format_value, value.values()), *value]
        return any(";" in text or text[:1] in "[{" for text in texts) or any(": " in thing for thing in value)
    return is_json_array(value) and any(";" in text or text[:1] in "[{" for text in map(format_value, value))


def item_type(values: Sequence[Any]) -> AnswerType | None:
    """Return the one type of the items of a list, or of the values of pairs; None if they have several, or
    one that has no form."""
    if all(isinstance(value, bool) for value in values):
        return "yes_no" if values else "name"
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return "number"
    moments = [Moment.read(value) if isinstance(value, str) else None for value in values]
    if len({moment and (moment.shape, moment.offset) for moment in moments}) == 1 and moments[0]:
        return None if moments[0].year else "date"
    return "name" if all(isinstance(value, str) for value in values) else None


# What has no form


def form_problem(check: AnswerCheck) -> str | None:
    """Return why the sentence cannot state the form of the answer of `check`, and what to write instead; None
    if it can. References that are not followed yet are taken for fit."""
    if check.type not in STATED_TYPES or reference_texts(check.value):
        return None
    if check.unit and not set(check.unit) - set(_OF_NUMBERS):
        return f"the unit {check.unit!r} cannot be told from a number; word it otherwise"
    for value in (check.value, *check.accept):
        if problem := _value_problem(check, value):
            return problem
    return None


def _value_problem(check: AnswerCheck, value: Any) -> str | None:
    if value is None:
        return "there is no value; that the tools cannot tell is the type none"
    match check.type:
        case "number":
            return _number_problem(check, value)
        case "date" if Moment.read(str(value)) is None:
            return f"{value!r} is not a date or a time in ISO form, such as 2026-05-05T09:34; ask for a name"
        case "name":
            return _name_problem(value)
        case "choice":
            options = list(map(format_value, check.options))
            if odd := next((text for text in options if ";" in text or "\n" in text or not text), None):
                return f"the option {odd!r} has a ; or a line break, or is empty; word it without"
            same = value not in check.options or len(set(map(folded, options))) < max(2, len(options))
            return f"{value!r} is not one of two or more options, {options}, that differ" if same else None
        case "yes_no" if not isinstance(value, bool) and folded(str(value)) not in ("yes", "no"):
            return f"{value!r} is not true or false"
        case "set" | "list":
            if not is_json_array(value) or not value:
                return f"{value!r} is not a list with items; ask how many there are"
            return _items_problem(check, value)
        case "pairs":
            if not is_json_object(value) or not value:
                return f"{value!r} is not an object of things and their values"
            if len(set(map(folded, value))) < len(value):
                return "two of its things have one name"
            things = (_name_problem(thing) for thing in value)
            return next((problem for problem in things if problem), _items_problem(check, [*value.values()]))
        case _:
            return None


def _items_problem(check: AnswerCheck, values: Sequence[Any]) -> str | None:
    kind = item_type(values)
    if kind is None:
        return f"{format_value(values)[:80]} has values of several types, or nested ones; ask for one of them"
    one = check.model_copy(update={"type": kind})
    return next((problem for value in values if (problem := _value_problem(one, value))), None)


def _number_problem(check: AnswerCheck, value: Any) -> str | None:
    number = as_number(value)
    if number is None:
        return f"{value!r} is not a number"
    if isinstance(value, float) and check.decimals is None and not check.tolerance:
        exponent = as_decimal(value).normalize().as_tuple().exponent
        if isinstance(exponent, int) and -exponent > _MOST_DECIMALS:
            return f"{value!r} has many decimals; state how many count (`decimals`)"
    return None


def _name_problem(value: Any) -> str | None:
    text = format_value(value)
    if not text.strip("*_` ") or folded(text) == NO_ANSWER:
        return f"{text!r} cannot be told from no answer; ask something else"
    if len(text) > _LONGEST_NAME or len(text.splitlines()) > 1:
        return f"{text[:_LONGEST_NAME]!r} has a line break or over {_LONGEST_NAME} characters; ask for less"
    return None


# A value in its form


def as_decimal(value: Any) -> Decimal:
    """Return a number as it is written, without binary noise. Raises ValueError if it is none."""
    try:
        number = Decimal(format_value(value).strip())
    except InvalidOperation:
        raise ValueError(f"{value!r} is not a number") from None
    if not number.is_finite():
        raise ValueError(f"{value!r} is not finite")
    return number


def roundings(number: Decimal, decimals: int) -> set[Decimal]:
    """Return a number rounded to that many decimals, halves up and halves to even."""
    if abs(number.adjusted()) > 350:  # past the range of floats
        return {number}
    unit = Decimal(1).scaleb(-decimals)
    with localcontext(prec=400):  # the largest float has 309 digits
        return {number.quantize(unit, ROUND_HALF_UP), number.quantize(unit, ROUND_HALF_EVEN)}


def right_message(task: Task, results: Mapping[str, Any]) -> str | None:
    """Return a last message that is right: the answer line alone, or for a task without one its reference
    answer, else the value; None if the task asks for nothing in particular, or by a pattern only. `results`
    resolve step references. Raises PlaceholderError."""
    truth, check = task.truth, task.truth.final_answer
    reference = truth.reference_answer
    told = None if reference is None else format_value(resolve_references(reference, results))
    if check is None or check.type in ("regex", "must_include") or not truth.answer_line:
        if told is None and check is not None and check.type != "regex":
            told = written_answer(check, resolve_references(check.value, results))
        nothing = NO_ANSWER if truth.is_refusal else _DONE
        return told if not truth.answer_line else f"Answer: {told or nothing}"
    return f"Answer: {written_answer(check, resolve_references(check.value, results))}"


def written_answer(check: AnswerCheck, value: Any) -> str:
    """Return a value in the form that the question of `check` states; `none` if it is None."""
    if value is None or check.type in ("none", "abstention"):
        return NO_ANSWER
    if is_json_object(value):
        if _needs_json(value):
            return json.dumps(dict(value), ensure_ascii=False)
        kind = item_type([*value.values()])
        return "; ".join(f"{thing}: {_written_item(kind, check, item)}" for thing, item in value.items())
    if is_json_array(value):
        if _needs_json(value):
            return json.dumps(list(value), ensure_ascii=False)
        kind = item_type(value)
        return "; ".join(_written_item(kind, check, item) for item in value) or NO_ANSWER
    return _written_item(check.type, check, value)


def _written_item(kind: AnswerType | None, check: AnswerCheck, value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if kind == "number" and check.decimals is not None and as_number(value) is not None:
        return f"{min(roundings(as_decimal(value), check.decimals)):f}"
    if kind == "date" and (moment := Moment.read(str(value))):
        kept = moment.cut(check.precision)
        return kept.year or " ".join(filter(None, (kept.date, kept.time)))
    return " ".join(format_value(value).split())
