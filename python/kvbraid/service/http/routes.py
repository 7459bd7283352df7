"""The route table: what each route takes and answers, and its handler.

Handlers are plain functions from a `Call` to an `Answer`; they raise RefusalError or any other
KvbraidError. They know nothing of ASGI, and never touch the event loop.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec
from anyio import from_thread

from kvbraid.errors import UnknownError, shortened
from kvbraid.fleet.request import Request
from kvbraid.ids import PodId
from kvbraid.service import answers
from kvbraid.service.coefficients import PolicyAnswer
from kvbraid.service.config import PodBody
from kvbraid.service.decoding import decode_body
from kvbraid.service.errors import RefusalError
from kvbraid.service.http.calls import Answer, Call, Context
from kvbraid.service.http.metrics import CONTENT_TYPE
from kvbraid.service.http.pages import FILES, File, file_answer
from kvbraid.service.http.query import OCTET_STREAM, parse_call, parse_pick_call, parse_query
from kvbraid.service.keys import Right
from kvbraid.service.pod_checks import HTTP_SCHEMES, pod_config, pod_id
from kvbraid.service.registry import Service
from kvbraid.service.requests import (
    EventsQuery,
    PickBody,
    PickQuery,
    QueryFields,
    ReportBody,
    RequestsQuery,
    RoutedBody,
    ScoreBody,
    StripsQuery,
    TokensBody,
    parse_routed,
)
from kvbraid.service.shards.front import other_shard
from kvbraid.service.shards.messages import MESSAGE_PACK, WrongAnswerError, read_question
from kvbraid.service.strips import draw

EVENT_STREAM: Final = "text/event-stream"
NOT_KEPT: Final = ((b"cache-control", b"no-store"), (b"x-accel-buffering", b"no"))
"""Headers of a stream: nobody between may keep it, or hold it back."""

_encode: Final = msgspec.json.Encoder().encode
_POD: Final = msgspec.json.Decoder(PodBody)
_TOKENS: Final = msgspec.json.Decoder(TokensBody)
_REPORT: Final = msgspec.json.Decoder(ReportBody)


def score(context: Context, call: Call) -> Answer:
    """How much of the request each pod could reuse."""
    request = _known_request(context.service, call)
    return Answer(context.service.index.score(request).to_json())


def explain(context: Context, call: Call) -> Answer:
    """Why: per pod and group, the blocks held and the boundaries accepted."""
    request = _known_request(context.service, call)
    explanation = context.service.index.explain(request).rows
    rows = msgspec.convert(explanation, list[answers.ExplainRow], from_attributes=True)
    body = answers.ExplainAnswer(model=request.model, num_tokens=len(request.token_ids), pods=rows)
    return Answer(_encode(body))


def shard(context: Context, call: Call) -> Answer:
    """A question of a front, as MessagePack: how much each pod could reuse, or what is sent."""
    service, most = context.service, context.service.limits.tokens
    if service.front is not None:
        raise other_shard("a front has no index; it answers no front")
    try:
        question = read_question(call.body)
    except WrongAnswerError as error:
        raise RefusalError("malformed_body", str(error)) from None
    if question.num_tokens > most:
        raise RefusalError("too_many_tokens", f"{question.num_tokens} tokens; limit {most}")
    return Answer(service.questions.answer(question), content_type=MESSAGE_PACK)


def shard_at_once(context: Context, call: Call) -> Answer | None:
    """Answer a short question; it may wait for a slice of a batch, as a pick does."""
    return shard(context, call) if is_short(context.service, call) else None


def strips(context: Context, call: Call) -> Answer:
    """The same as a drawing: cells of strips, boundaries of all groups, what is missing."""
    return _strips(context, _known_request(context.service, call))


def strips_kept(context: Context, call: Call) -> Answer:
    """The drawing of one of the last requests, if prompts are kept: as it would be now."""
    asked = parse_query(call.query, StripsQuery)
    request = context.service.picking.recent.prompt(asked.request)
    _check_known(context.service, request.model, ())
    return _strips(context, request)


def _strips(context: Context, request: Request) -> Answer:
    explanation = context.service.index.explain(request).rows
    rows = msgspec.convert(explanation, list[answers.ExplainRow], from_attributes=True)
    return Answer(_encode(draw(request, rows)))


def tokens(context: Context, call: Call) -> Answer:
    """The token ids of a text or chat, as the server makes those of a request."""
    asked = decode_body(call.body, _TOKENS)
    if context.token_ids is None:
        raise RefusalError("no_token_ids", "this server makes no token ids of prompts")
    ids = list(from_thread.run(context.token_ids, call.body))
    body = answers.TokensAnswer(model=asked.model, num_tokens=len(ids), token_ids=ids)
    return Answer(_encode(body))


def pick(context: Context, call: Call) -> Answer:
    """Choose the rank that gets a request, and book the request there."""
    service, max_tokens = context.service, context.service.limits.tokens
    asked = parse_pick_call(call.body, call.content_type, call.query, max_tokens=max_tokens)
    _check_known(service, asked.request.model, ())
    return Answer(_encode(service.picking.pick(asked, service.pods, traceparent=call.traceparent)))


def pick_at_once(context: Context, call: Call) -> Answer | None:
    """Choose for a short call; None if another choice is being made on a thread.

    It may wait for a slice of a batch, or for an answer that another thread is given.
    """
    if context.service.picking.is_choosing or not is_short(context.service, call):
        return None
    return pick(context, call)


def picked(context: Context, call: Call) -> Answer:
    """Note a picked request's first token, its end or its failure."""
    told = decode_body(call.body, _REPORT)
    return Answer(_encode(context.service.picking.report(told)))


def ladder(context: Context, call: Call) -> Answer:
    """From all prompts to what was delivered: sums of tokens per model, and why they are lower."""
    del call
    return Answer(_encode(context.service.picking.ladder.answer()))


def ladder_history(context: Context, call: Call) -> Answer:
    """The same for the last hour, in intervals of ten seconds."""
    del call
    return Answer(_encode(context.service.picking.ladder.over_time()))


def list_pods(context: Context, call: Call) -> Answer:
    """Every registered pod and rank: state, progress, what was placed and refused."""
    del call
    return Answer(_encode(context.service.pods_answer()))


def pod_snapshot(context: Context, call: Call) -> Answer:
    """All that is known of a pod, sealed, for a server that starts and has the same secret."""
    service, pod = context.service, PodId(call.pod)
    if pod not in service.followed:
        raise RefusalError("unknown_pod", f"pod {shortened(pod)} is not followed")
    if service.front is not None:
        raise service.front.elsewhere(pod)
    if service.snapshots is None:
        remedy = "set index.snapshots in its fleet.toml"
        raise RefusalError("not_found", "this server keeps no snapshots", remedy=remedy)
    saved = service.snapshots.give(pod, service.feed)
    if saved is None:
        raise RefusalError("not_settled", f"batches of pod {shortened(pod)} keep waiting")
    return Answer(saved, content_type=OCTET_STREAM.decode())


def list_requests(context: Context, call: Call) -> Answer:
    """The last requests that a rank was chosen for: why there, and what became of them."""
    asked = parse_query(call.query, RequestsQuery)
    return Answer(_encode(context.service.picking.recent_answer(asked.request)))


def events(context: Context, call: Call) -> Answer:
    """What changes, once a second, as server-sent events."""
    topics = parse_query(call.query, EventsQuery).topics
    stream = context.events.subscribe(topics)
    return Answer(content_type=EVENT_STREAM, headers=NOT_KEPT, stream=stream)


def page(context: Context, call: Call, *, file: File) -> Answer:
    """A file of the console."""
    del context
    return file_answer(file, call.if_none_match)


def put_pod(context: Context, call: Call) -> Answer:
    """Register a pod, or replace its configuration; the same body again changes nothing."""
    pod = pod_id(call.pod)
    body = decode_body(call.body, _POD)
    change = context.service.put(pod, pod_config(body, body.model_config, schemes=HTTP_SCHEMES))
    return Answer(_encode(change), status=201 if change.status == "created" else 200)


def delete_pod(context: Context, call: Call) -> Answer:
    """Stop following a pod and forget it with all its ranks."""
    return Answer(_encode(context.service.delete(PodId(call.pod))))


def show_policy(context: Context, call: Call) -> Answer:
    """The rule that chooses ranks, and the coefficients that count for each model."""
    del call
    return Answer(_encode(context.service.picking.policy_answer()))


def show_config(context: Context, call: Call) -> Answer:
    """The configuration in force, what of the file waits for a start, and what was refused."""
    del call
    return Answer(_encode(context.service.in_force.answer()))


def list_models(context: Context, call: Call) -> Answer:
    """The models with at least one registered pod."""
    del call
    return Answer(_encode(answers.ModelsAnswer(models=sorted(context.service.models))))


def healthz(context: Context, call: Call) -> Answer:
    """Whether the process answers and follows its pods."""
    del call
    failure = context.service.feed.failure
    if failure is not None:
        raise RefusalError("not_following", failure)
    return Answer(_encode(answers.StatusAnswer(status="ok")))


def readyz(context: Context, call: Call) -> Answer:
    """Whether each registered pod has finished its first rebuild, or has been waited for."""
    del call
    missing = context.service.missing()
    if missing:
        raise RefusalError("not_ready", missing)
    service = context.service
    parts = (service.snapshots, service.shared, service.log, service.front)
    problems = [part.problem for part in parts if part is not None and part.problem]
    return Answer(_encode(answers.StatusAnswer(status="ready", detail="; ".join(problems))))


def metrics(context: Context, call: Call) -> Answer:
    """Prometheus metrics."""
    del call
    return Answer(context.metrics.render(), content_type=CONTENT_TYPE)


def openapi(context: Context, call: Call) -> Answer:
    """This document."""
    del call
    return Answer(context.openapi)


def routed(context: Context, call: Call) -> Answer:
    """Note a request that a pod was sent, and what came back; it improves `expected` alone."""
    service = context.service
    told = parse_routed(call.body, max_tokens=service.limits.tokens)
    _check_known(service, told.request.model, [told.pod])
    pod = PodId(told.pod)
    try:
        service.index.routed(pod, told.request, told.produced, dp_rank=told.dp_rank)
    except UnknownError as error:  # Another rank, or a pod of another model.
        raise RefusalError("unknown_pod", str(error)) from error
    return Answer(_encode(answers.PodChange(pod=pod, status="noted")))


def _known_request(service: Service, call: Call) -> Request:
    max_tokens = service.limits.tokens
    request = parse_call(call.body, call.content_type, call.query, max_tokens=max_tokens)
    _check_known(service, request.model, request.pods or ())
    return request


def _check_known(service: Service, model: str, pods: Iterable[str]) -> None:
    if model not in service.models:
        raise RefusalError("unknown_model", f"no registered pod serves model {shortened(model)}")
    for pod in pods:
        if pod not in service.pods:
            raise RefusalError("unknown_pod", f"pod {shortened(pod)} is not registered")


def never_at_once(context: Context, call: Call) -> Answer | None:
    """For handlers that may wait for a lock or walk the whole index."""
    del context, call
    return None


_INLINE_NS: Final = 1_000_000
_NS_PER_JSON_BYTE: Final = 2
_NS_PER_RAW_BYTE: Final = 1
_NS_PER_RANK: Final = 1_000


def score_at_once(context: Context, call: Call) -> Answer | None:
    """Score a short call; None if another thread has the index, since a loop must not wait."""
    if not is_short(context.service, call):
        return None
    scores = context.service.index.try_score(_known_request(context.service, call))
    return None if scores is None else Answer(scores.to_json())


def is_short(service: Service, call: Call) -> bool:
    """Estimate a score call from its size: reading and hashing a byte, answering a rank.

    A front has to wait for its shards.
    """
    if service.front is not None:
        return False
    raw = call.content_type.startswith((OCTET_STREAM, MESSAGE_PACK.encode()))
    per_byte = _NS_PER_RAW_BYTE if raw else _NS_PER_JSON_BYTE
    return len(call.body) * per_byte + service.num_ranks * _NS_PER_RANK <= _INLINE_NS


_KEY_ERRORS: Final = ("unauthorized", "right_missing")
_CHANGE_ERRORS: Final = (*_KEY_ERRORS, "registration_off", "foreign_host")
_OF_RIGHTS: Final[Mapping[Right | None, tuple[str, ...]]] = {
    None: (),
    "read": _KEY_ERRORS,
    "explain": _KEY_ERRORS,
    "route": _CHANGE_ERRORS,
    "change": _CHANGE_ERRORS,
    "snapshot": _CHANGE_ERRORS,
}
"""The codes of refusals by what a caller may do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route: how it is found, what it takes, what it answers, who handles it.

    The event loop's own thread may run `at_once`, which answers without waiting or not at all. If
    it does not answer, `handler` answers on a thread.

    `query` has what the query says of a body of raw token ids, if the route takes one. `binary` is
    the content type of a body that is nothing else.
    `right` is what a caller needs; None: everybody may call it. `is_page` says that it is part of
    the console, and not of the API. `answers` maps each status of
    success to its body; `errors` lists the codes of its refusals, besides those of the right and
    those of every route.
    """

    method: str
    path: str
    handler: Callable[[Context, Call], Answer]
    at_once: Callable[[Context, Call], Answer | None]
    body: type[msgspec.Struct] | None = None
    query: type[msgspec.Struct] | None = None
    binary: str = ""
    is_page: bool = False
    right: Right | None
    answers: Mapping[int, type[msgspec.Struct] | None]
    errors: tuple[str, ...] = ()

    @property
    def codes(self) -> tuple[str, ...]:
        """The codes of its refusals, besides those of every route."""
        return (*_OF_RIGHTS[self.right], *self.errors)

    @property
    def summary(self) -> str:
        """The handler's own sentence."""
        return (self.handler.__doc__ or "").strip()


_READ_ERRORS: Final = (
    "malformed_body", "invalid_value", "unknown_model", "unknown_pod",
    "body_too_large", "too_many_tokens", "too_large",
)  # fmt: skip
_PAGE_DATA: Final[Mapping[str, tuple[Right, Callable[[Context, Call], Answer]]]] = {
    "fleet": ("read", list_pods),
    "requests": ("read", list_requests),
    "explain": ("explain", strips_kept),
    "ladder": ("read", ladder_history),
    "policy": ("read", show_policy),
    "config": ("read", show_config),
}
"""The data of each page of the console; docs/api.md has their other names."""

ROUTES: Final = (
    Route(
        method="POST", path="/v1/score", right="explain", handler=score, at_once=score_at_once,
        body=ScoreBody, query=QueryFields, answers={200: answers.ScoreAnswer},
        errors=_READ_ERRORS,
    ),
    Route(
        method="POST", path="/v1/explain", right="explain", handler=explain, at_once=never_at_once,
        body=ScoreBody, query=QueryFields, answers={200: answers.ExplainAnswer},
        errors=_READ_ERRORS,
    ),
    Route(
        method="POST", path="/v1/shard", right="route", handler=shard, at_once=shard_at_once,
        binary=MESSAGE_PACK,
        answers={200: None},
        errors=("malformed_body", "invalid_value", "unknown_model", "unknown_pod",
                "body_too_large", "too_many_tokens", "too_large", "other_shard"),
    ),
    Route(
        method="POST", path="/v1/strips", right="explain", handler=strips, at_once=never_at_once,
        body=ScoreBody, query=QueryFields, answers={200: answers.StripsAnswer},
        errors=_READ_ERRORS,
    ),
    Route(
        method="GET", path="/v1/strips", right="explain", handler=strips_kept,
        at_once=never_at_once,
        query=StripsQuery, answers={200: answers.StripsAnswer},
        errors=("malformed_body", "unknown_model", "unknown_request", "too_large"),
    ),
    Route(
        method="POST", path="/v1/tokens", right="explain", handler=tokens, at_once=never_at_once,
        body=TokensBody, answers={200: answers.TokensAnswer},
        errors=("malformed_body", "body_too_large", "no_token_ids"),
    ),
    Route(
        method="POST", path="/v1/routed", right="route", handler=routed, at_once=never_at_once,
        body=RoutedBody, answers={200: answers.PodChange},
        errors=(*_READ_ERRORS, "shard_silent"),
    ),
    Route(
        method="POST", path="/v1/pick", right="route", handler=pick, at_once=pick_at_once,
        body=PickBody, query=PickQuery, answers={200: answers.PickAnswer},
        errors=("malformed_body", "invalid_value", "unknown_model",
                "body_too_large", "too_many_tokens", "too_large", "no_pod"),
    ),
    Route(
        method="POST", path="/v1/picked", right="route", handler=picked, at_once=never_at_once,
        body=ReportBody, answers={200: answers.PickedAnswer},
        errors=("malformed_body", "invalid_value", "body_too_large"),
    ),
    Route(
        method="GET", path="/v1/ladder", right="read", handler=ladder, at_once=never_at_once,
        answers={200: answers.LadderAnswer},
    ),
    Route(
        method="GET", path="/v1/ladder/history", right="read", handler=ladder_history,
        at_once=never_at_once, answers={200: answers.LadderHistoryAnswer},
    ),
    Route(
        method="GET", path="/v1/requests", right="read", handler=list_requests,
        at_once=never_at_once,
        query=RequestsQuery, answers={200: answers.RequestsAnswer}, errors=("malformed_body",),
    ),
    Route(
        method="GET", path="/v1/events", right="read", handler=events, at_once=events,
        query=EventsQuery,
        answers={200: None}, errors=("malformed_body", "invalid_value", "too_many_streams"),
    ),
    Route(
        method="GET", path="/v1/pods", right="read", handler=list_pods, at_once=never_at_once,
        answers={200: answers.PodsAnswer},
    ),
    Route(
        method="PUT", path="/v1/pods/{id}", right="change", handler=put_pod,
        at_once=never_at_once, body=PodBody,
        answers={200: answers.PodChange, 201: answers.PodChange},
        errors=("malformed_body", "body_too_large", "invalid_value",
                "invalid_topology", "invalid_endpoint", "too_many_pods", "other_shard"),
    ),
    Route(
        method="DELETE", path="/v1/pods/{id}", right="change", handler=delete_pod,
        at_once=never_at_once,
        answers={200: answers.PodChange}, errors=("unknown_pod",),
    ),
    Route(
        method="GET", path="/v1/pods/{id}/snapshot", right="snapshot", handler=pod_snapshot,
        at_once=never_at_once,
        answers={200: None}, errors=("unknown_pod", "not_found", "not_settled", "other_shard"),
    ),
    Route(
        method="GET", path="/v1/policy", right="read", handler=show_policy, at_once=never_at_once,
        answers={200: PolicyAnswer},
    ),
    Route(
        method="GET", path="/v1/config", right="read", handler=show_config, at_once=never_at_once,
        answers={200: answers.ConfigAnswer},
    ),
    Route(
        method="GET", path="/v1/models", right="read", handler=list_models, at_once=list_models,
        answers={200: answers.ModelsAnswer},
    ),
    Route(
        method="GET", path="/healthz", right=None, handler=healthz, at_once=healthz,
        answers={200: answers.StatusAnswer}, errors=("not_following",),
    ),
    Route(
        method="GET", path="/readyz", right=None, handler=readyz, at_once=never_at_once,
        answers={200: answers.StatusAnswer}, errors=("not_ready",),
    ),
    Route(
        method="GET", path="/metrics", right="read", handler=metrics,
        at_once=never_at_once, answers={200: None},
    ),
    Route(
        method="GET", path="/openapi.json", right=None, handler=openapi,
        at_once=openapi, answers={200: None},
    ),
    *(
        Route(
            method="GET", path=f"/{name}.json", right=right, handler=handler,
            at_once=never_at_once,
            answers={200: None}, is_page=True,
        )
        for name, (right, handler) in _PAGE_DATA.items()
    ),
    *(
        Route(
            method="GET", path=path, right=None, handler=partial(page, file=file),
            at_once=partial(page, file=file), answers={200: None}, is_page=True,
        )
        for path, file in FILES.items()
    ),
)  # fmt: skip
"""Every route; the application and the OpenAPI document are both built from it."""
