"""Asks any server that speaks OpenAI's chat completions: OpenAI, DeepSeek, vLLM, llama.cpp, Ollama and many others."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from app.llm.openai_body import REASONING_FIELDS, body
from app.llm.types import LlmRequest
from app.llm.vendor import Reading, VendorAdapter, an_object, invalid
from app.llm.wire import JsonObject
from app.messages import Failure, Finish, FinishReason, ReasoningDelta, StreamChunk, TextDelta, ToolCallDelta, Usage

if TYPE_CHECKING:
    import httpx2

_REASONS: Mapping[str, FinishReason] = {
    "stop": "stop",
    "eos": "stop",
    "tool_calls": "tool_calls",
    "function_call": "tool_calls",
    "length": "max_tokens",
    "abort": "aborted",
}
_FAILURES: Mapping[str, Failure] = {
    "content_filter": Failure("the vendor's content filter stopped the answer"),
    "insufficient_system_resource": Failure("the vendor ran out of resources for the answer", "SERVER"),
}


class OpenAIAdapter(VendorAdapter):
    """Chat completions, streamed, with tools."""

    sdk = "openai"
    address = "https://api.openai.com/v1"
    path = "/chat/completions"

    def body(self, request: LlmRequest) -> JsonObject:
        # OpenAI itself has given the limit a new name, which other servers need not know.
        is_openai = self.endpoint.base_url is None
        return body(request, self.endpoint.options, "max_completion_tokens" if is_openai else "max_tokens")

    def reading(self, request: LlmRequest) -> Reading:
        return _Reading()

    def client(self, http: httpx2.AsyncClient, key: str) -> Any:
        import openai

        client = openai.AsyncOpenAI(
            api_key=key, admin_api_key="", webhook_secret="", base_url=self.base_url, max_retries=0, http_client=http
        )
        client.organization = client.project = None  # taken from the environment; headers can name them
        return client


class _Reading:
    """One stream. Blocks take their places in the order in which they begin."""

    def __init__(self) -> None:
        self.finish: Finish | None = None
        self.is_over = False  # the stream says itself where it ends
        self._places: dict[object, int] = {}
        self._count = 0
        self._ids: dict[object, str] = {}
        self._reasoning: str | None = None
        self._extras: dict[int, Any] = {}  # of each call, in their order: what some servers put beside it

    def take(self, data: object) -> Iterator[StreamChunk]:
        chunk = an_object(data, "an event of the stream")
        if (usage := chunk.get("usage")) is not None:
            yield Usage(usage)
        for each in _list(chunk, "choices"):
            choice = an_object(each, "a choice")
            if choice.get("index", 0) != 0:  # options may ask for several answers; one is taken
                continue
            yield from self._delta(an_object(choice.get("delta") or {}, "a delta"))
            if (reason := choice.get("finish_reason")) is not None:
                self.finish = self._finish(reason)

    def _delta(self, delta: Mapping[str, Any]) -> Iterator[StreamChunk]:
        field = next((name for name in REASONING_FIELDS if delta.get(name)), None)
        if field is not None:
            self._reasoning = field
            yield ReasoningDelta(self._place("reasoning"), delta[field])
        for name in ("content", "refusal"):  # a refusal is what the model says
            if delta.get(name):
                yield TextDelta(self._place("text"), delta[name])
        for each in _list(delta, "tool_calls"):
            yield self._call(an_object(each, "a tool call"))

    def _call(self, call: Mapping[str, Any]) -> StreamChunk:
        slot, id = call.get("index"), call.get("id") or None
        if type(slot) not in (int, type(None)):
            invalid(f"the index of a tool call is of type {type(slot).__name__}")
        if id is not None:
            if self._ids.get(slot, id) != id:  # some servers give every call the index 0
                del self._places[slot]
            self._ids[slot] = id
        place = self._place(slot)
        self._extras.setdefault(place)
        if (extra := call.get("extra_content")) is not None:
            self._extras[place] = extra
        function = an_object(call.get("function") or {}, "the function of a tool call")
        return ToolCallDelta(place, function.get("arguments") or "", id, function.get("name"))

    def _place(self, key: object) -> int:
        if key not in self._places:
            self._places[key] = self._count
            self._count += 1
        return self._places[key]

    def _finish(self, reason: object) -> Finish:
        if not isinstance(reason, str):
            invalid("the finish_reason is no text")
        if reason in _REASONS:
            return Finish(_REASONS[reason], replay_state=self._replay_state())
        return Finish("error", _FAILURES.get(reason) or Failure(f"the answer ended for an unknown reason: {reason!r}"))

    def _replay_state(self) -> JsonObject | None:
        """What this server may want back: in which field it reasons, and what it put beside its calls."""
        state: JsonObject = {}
        if self._reasoning is not None:
            state["reasoning"] = self._reasoning
        if any(extra is not None for extra in self._extras.values()):
            state["extra_content"] = list(self._extras.values())
        return state or None


def _list(owner: Mapping[str, Any], key: str) -> list[Any]:
    value = owner.get(key) or []
    if not isinstance(value, list):
        invalid(f"{key} is no list; it is of type {type(value).__name__}")
    return value
