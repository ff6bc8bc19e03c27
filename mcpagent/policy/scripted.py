"""Policies without a model: fixed scripts, the gold plan, and the two extremes that an environment must tell
from it. They read and write text, so their completions hold no tokens."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from mcpagent.core.answer_line import right_message
from mcpagent.core.placeholders import PlaceholderError, format_value, reference_texts, resolve_references
from mcpagent.core.records import JsonObject
from mcpagent.core.shown_values import text_value
from mcpagent.core.tasks import PlanStep, Task
from mcpagent.core.tools import search_name
from mcpagent.core.trajectory import Completion
from mcpagent.core.values import encode_model_json, scalars
from mcpagent.errors import RunError
from mcpagent.policy.contract import CompletionRequest
from mcpagent.storage.datasets import DiskList

# By what the parser of scripted turns (`env.parsing`, auto) knows a call or a thought.
_TAG = re.compile(r"<(?=/?(?:tool_call|tool|think)>)")
_FENCE = re.compile(r"```(?=json|tool_call)")
_IDENTIFIER = re.compile(r"(?<=[a-z])(?:_id|Id|ID)$")
_CALL = re.compile(r"\s*[\[{](?=.*\"(?:tool|name|arguments|parameters)\")", re.DOTALL)
_WRITTEN = re.compile(r"<tool_call>\n(.*)\n</tool_call>")
_MAX_QUERY_CHARS = 200


def call_text(name: str, arguments: JsonObject) -> str:
    """Return a call in Hermes form, as scripted policies and demonstrations write it."""
    return f"<tool_call>\n{encode_model_json({'name': name, 'arguments': arguments})}\n</tool_call>"


class ScriptedPolicy:
    """Plays a function of the request, or the same list of texts in every episode.

    Raises RunError if an episode asks for more steps than the list has.
    """

    def __init__(self, script: Callable[[CompletionRequest], str] | Sequence[str]) -> None:
        self._script = script
        self._played: dict[str, int] = {}

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Return what the script says to each request, in order."""
        return [Completion(text=self._text(request)) for request in requests]

    async def release(self, episode_id: str) -> None:
        """Forget how many texts the episode has had."""
        self._played.pop(episode_id, None)

    def _text(self, request: CompletionRequest) -> str:
        if callable(self._script):
            return self._script(request)
        index = self._played.get(request.episode_id, 0)
        if index >= len(self._script):
            raise RunError(f"the script has {len(self._script)} steps; {request.episode_id} asks for more")
        self._played[request.episode_id] = index + 1
        return self._script[index]


@dataclass(frozen=True, kw_only=True)
class _Flaw:
    """The way in which an imperfect demonstration departs from the plan: it stops after `steps` calls, or it
    calls `tool` in place of its only one. Neither is the perfect one."""

    steps: int | None = None
    tool: str | None = None


class GoldPolicy:
    """Plays the gold plan of each task, from nothing but the messages that it sees.

    Episode ids must be `{task_id}#{attempt}`: that is how it knows the task. `stop_early` is the probability
    that a plan of several steps is cut after a random proper prefix and answered with the value that the next
    step would have used; `wrong_tool` that a plan of one step calls another tool of the same server that
    takes the same arguments. Both are drawn from the seed of the episode's first request, and give the
    demonstrations of mixed quality that a warm start learns from.

    If tools are to be searched for, it searches before it calls: with the user's words, then with those of
    the tool's name.
    """

    def __init__(
        self,
        tasks: Iterable[Task],
        *,
        stop_early: float = 0.0,
        wrong_tool: float = 0.0,
    ) -> None:
        self._tasks = tasks if isinstance(tasks, Sequence) else DiskList(tasks)
        self._places = {task.id: place for place, task in enumerate(self._tasks)}
        self._plans: dict[str, _GoldPlan] = {}  # of open episodes: the tasks may lie in a file
        self._stop_early = stop_early
        self._wrong_tool = wrong_tool

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Raise RunError for an episode of an unknown task."""
        return [Completion(text=self._text(request)) for request in requests]

    async def release(self, episode_id: str) -> None:
        """Forget the plan of the episode, with the flaw that it was given."""
        self._plans.pop(episode_id, None)

    def _text(self, request: CompletionRequest) -> str:
        plan = self._plans.get(request.episode_id) or self._begun(request.episode_id)
        if plan.flaw is None and plan.may_begin(request):
            plan.flaw = self._draw(plan, request)
        return plan.next_text(request)

    def _begun(self, episode_id: str) -> _GoldPlan:
        place = self._places.get(episode_id.rpartition("#")[0])
        if place is None:
            raise RunError(f"no task for episode {episode_id!r}; ids are {{task_id}}#{{attempt}}")
        plan = _GoldPlan(self._tasks[place])
        self._plans[episode_id] = plan
        return plan

    def _draw(self, plan: _GoldPlan, request: CompletionRequest) -> _Flaw:
        rng = random.Random(request.seed)
        chance = rng.random()
        if len(plan.steps) > 1 and chance < self._stop_early:
            return _Flaw(steps=rng.randint(1, len(plan.steps) - 1))
        if len(plan.steps) == 1 and chance < self._wrong_tool:
            sisters = plan.sister_tools(request)
            return _Flaw(tool=rng.choice(sisters)) if sisters else _Flaw()
        return _Flaw()


class _GoldPlan:
    """The plan of one task, in the order in which it is played. `flaw` is drawn when it may begin."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self.flaw: _Flaw | None = None
        self.steps = sorted(task.truth.tool_sequence, key=lambda step: (step.user_turn, step.step))

    def next_text(self, request: CompletionRequest) -> str:
        """Return the next calls (one, or a parallel group), or the text that ends the user turn."""
        flaw = self.flaw or _Flaw()
        search = search_name(request.tools)
        queries, answers = _queries_and_answers(request.messages, search)
        user_turn = sum(message["role"] == "user" for message in request.messages) - 1
        results = {
            f"step{step.step}": text_value(content)
            for step, content in zip(self.steps, answers, strict=False)
        }
        planned = self.steps if flaw.steps is None else self.steps[: flaw.steps]
        due = _first_group([step for step in planned[len(answers) :] if step.user_turn == user_turn])
        if search is not None and (text := self._search_text(search, due, queries, user_turn, request)):
            return text
        try:
            calls = [
                call_text(flaw.tool or _name_of(step, request), resolve_references(step.params, results))
                for step in due
            ]
            return "\n".join(calls) if calls else _as_text(self._closing_text(user_turn, results, flaw))
        except PlaceholderError:
            return "I could not find the answer."  # the servers did not answer what the plan expects

    def may_begin(self, request: CompletionRequest) -> bool:
        """Return whether its first tool is offered, rather than to be searched for."""
        return (
            search_name(request.tools) is None
            or not self.steps
            or _shown_name(self.steps[0], request) is not None
        )

    def _search_text(
        self,
        search: str,
        due: Sequence[PlanStep],
        queries: Sequence[str],
        user_turn: int,
        request: CompletionRequest,
    ) -> str | None:
        """Return the search for what is due and not loaded, or for what a refusal says there is not;
        None if nothing needs one."""
        truth = self._task.truth
        said = [m.content for m in self._task.prompt if m.role == "user"][-1]
        if user_turn:
            said = truth.user_turns[user_turn - 1]
        whole = " ".join(said.split())[:_MAX_QUERY_CHARS] or "anything"
        if not due:
            seeks = truth.is_refusal and "withheld" in self._task.extra_info and not queries
            return call_text(search, {"query": whole}) if seeks else None
        missing = next((step for step in due if _shown_name(step, request) is None), None)
        if missing is None:
            return None
        # Two of them find any tool, so that the perfect policy makes no search too many.
        spoken = f"{missing.server} {missing.tool}".replace("_", " ")
        chain = (whole, spoken, f"{missing.server}.{missing.tool}")
        query = next((query for query in chain if query not in queries), None)
        return None if query is None else call_text(search, {"query": query})

    def sister_tools(self, request: CompletionRequest) -> list[str]:
        """Other offered tools of the first step's server that take its very arguments."""
        gold = self.steps[0]
        schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in request.tools}
        mine = schemas.get(_name_of(gold, request), {}).get("properties", {})
        sisters: list[str] = []
        for dotted in self._task.offered_tools or ():
            server, _, name = dotted.partition(".")
            schema = schemas.get(name, {})
            properties = schema.get("properties", {})
            takes_them = all(
                param in properties and properties[param].get("type") == mine.get(param, {}).get("type")
                for param in gold.params
            )
            if (
                server == gold.server
                and name != gold.tool
                and name in schemas
                and takes_them
                and set(schema.get("required", ())) <= gold.params.keys()
            ):
                sisters.append(name)
        return sisters

    def _closing_text(self, user_turn: int, results: Mapping[str, Any], flaw: _Flaw) -> str:
        truth = self._task.truth
        if flaw.steps is not None:
            return self._guess(self._partial_answer(self.steps[flaw.steps], results))
        if user_turn < len(truth.user_turns):
            return self._question(user_turn) or "Done."
        if flaw.tool is not None:
            return self._guess(_first_value(results))
        return right_message(self._task, results) or "Done."

    def _guess(self, value: str) -> str:
        return f"Answer: {value}" if self._task.truth.answer_line else f"The answer is {value}."

    def _partial_answer(self, step: PlanStep, results: Mapping[str, Any]) -> str:
        """Return what `step` would have used; if that is nothing of the results, the part of the answer
        that they tell."""
        check = self._task.truth.final_answer
        facts = check.value if check is not None and isinstance(check.value, list) else []
        leaves = [format_value(leaf) for leaf in scalars(list(results.values()))]
        told = [fact for fact in map(format_value, facts) if any(fact in leaf for leaf in leaves)]
        return told[0] if told and not reference_texts(step.params) else _value_for(step, results)

    def _question(self, user_turn: int) -> str | None:
        """Return what is to be asked if the user has not yet said what the calls to come take; None
        elsewhere."""
        due = [step for step in self.steps if step.user_turn > user_turn]
        if not due or any(step.user_turn <= user_turn for step in self.steps):
            return None
        said = [message.content for message in self._task.prompt if message.role == "user"]
        text = "\n".join([*said, *self._task.truth.user_turns[:user_turn]]).casefold()
        for step in due:
            for name, value in step.params.items():
                if not reference_texts(value) and format_value(value).casefold() not in text:
                    return f"Which {_IDENTIFIER.sub('', name).replace('_', ' ')} do you mean?"
        return "What would you like to know?"


def over_eager(request: CompletionRequest) -> str:
    """Call the first offered tool, with the least arguments that its schema takes, and never answer. If there
    is nothing but a search, search for the user's words. Raises RunError if no tool is offered."""
    if not request.tools:
        raise RunError(f"{request.episode_id} offers no tool to call")
    search = search_name(request.tools)
    tools = [tool["function"] for tool in request.tools if tool["function"]["name"] != search]
    if not tools and search is not None:
        said = [m["content"] for m in request.messages if m["role"] == "user"][-1]
        return call_text(search, {"query": said[:_MAX_QUERY_CHARS] or "anything"})
    function = tools[0]
    schema = function["parameters"]
    properties = schema.get("properties", {})
    arguments = {name: _any_value(properties.get(name, {})) for name in schema.get("required", ())}
    return call_text(function["name"], arguments)


def _queries_and_answers(messages: Sequence[JsonObject], search: str | None) -> tuple[list[str], list[str]]:
    """Return what was searched for so far, and the results of all other calls. Only calls that `call_text`
    wrote are told apart."""
    queries: list[str] = []
    answers: list[str] = []
    written: list[JsonObject] = []
    for message in messages:
        if message["role"] == "assistant":
            written = [json.loads(body) for body in _WRITTEN.findall(message["content"])]
        elif message["role"] == "tool":
            call = written.pop(0) if written else {}
            if search is not None and call.get("name") == search:
                queries.append(call["arguments"]["query"])
            else:
                answers.append(message["content"])
    return queries, answers


def _shown_name(step: PlanStep, request: CompletionRequest) -> str | None:
    """Return the tool's own name, or `server__tool` if the offer shows only that (two tools share a name);
    None if it shows neither."""
    shown = {tool["function"]["name"] for tool in request.tools}
    names = (step.tool, f"{step.server}__{step.tool}")
    return next((name for name in names if name in shown), None)


def _name_of(step: PlanStep, request: CompletionRequest) -> str:
    """Return the name that the offer shows, else `server.tool`, which names any loaded tool."""
    return _shown_name(step, request) or f"{step.server}.{step.tool}"


def _first_group(steps: Sequence[PlanStep]) -> list[PlanStep]:
    group = steps[0].parallel_group if steps else None
    if group is None:
        return list(steps[:1])
    return list(takewhile(lambda step: step.parallel_group == group, steps))


def _as_text(answer: str) -> str:
    """Return an answer that a dataset or a server made, as a message that no parser reads as a call or a
    thought."""
    text = _FENCE.sub("``` ", _TAG.sub("&lt;", answer))
    return f"The answer is {text}" if _CALL.match(text) else text


def _value_for(step: PlanStep, results: Mapping[str, Any]) -> str:
    """Return what `step` would have used of the results so far."""
    used = reference_texts(step.params)
    return format_value(resolve_references(used[0], results)) if used else _first_value(results)


def _first_value(results: Mapping[str, Any]) -> str:
    """Return the first number of the last result, else its first value."""
    leaves = list(scalars(list(results.values())[-1])) if results else []
    numbers = [leaf for leaf in leaves if isinstance(leaf, int | float) and not isinstance(leaf, bool)]
    return format_value((numbers or leaves or ["unknown"])[0])


def _any_value(schema: JsonObject) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    kinds: dict[str, Any] = {"integer": 1, "number": 1, "boolean": True, "array": [], "object": {}}
    kind = schema.get("type")
    return kinds.get(kind, "x") if isinstance(kind, str) else "x"
