"""Station 2: a request becomes tokens, limits and settled parameters, or a typed refusal."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenmill.core.errors import (
    ContextLengthExceeded,
    InvalidRequest,
    NoChatTemplate,
    Unsupported,
)
from tokenmill.core.events import FinishReason
from tokenmill.core.request import Chat, GenerateRequest
from tokenmill.core.sampling_params import SamplingParams
from tokenmill.package.model_package import ModelPackage
from tokenmill.scheduler.admission import Demand
from tokenmill.telemetry.timeline import Timeline
from tokenmill.text.chat_template import ChatTemplate
from tokenmill.text.prompt import encode_chat
from tokenmill.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class PreparedRequest:
    """A request that can run.

    Attributes:
        request: as it came in.
        prompt_ids: the whole prompt, at least one token.
        sampling: with a seed, unless greedy.
        max_tokens: most completion tokens, at least 1.
        limited_by: the reason to give when they are used up: LENGTH or CONTEXT.
        end_ids: ids that end the text and are not shown.
        stop_ids: ids that end the text because the request says so.
        deadline: `perf_counter` seconds, or None.
        timeline: with the span "prepare".
        is_open: nobody named a number of tokens, so that memory is held in steps.
        cap: what to tell where admission lowered `max_tokens`; None where it did not.
    """

    request: GenerateRequest
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    limited_by: FinishReason
    end_ids: frozenset[int]
    stop_ids: frozenset[int]
    deadline: float | None
    timeline: Timeline
    is_open: bool = False
    cap: str | None = None

    @property
    def demand(self) -> Demand:
        """What it can come to need."""
        return Demand(len(self.prompt_ids), self.max_tokens, self.is_open)


class Preparer:
    """Turns requests for one model into prepared ones. Used by any thread.

    Args:
        package: what the model is.
        tokenizer: None where the package has none; then only token ids can be asked.
        context_length: most tokens of prompt and reply together, in this engine.
    """

    def __init__(
        self, package: ModelPackage, tokenizer: Tokenizer | None, context_length: int
    ) -> None:
        self._package = package
        self._tokenizer = tokenizer
        self._context_length = context_length
        text = package.text
        sources = dict(text.named_templates)
        if text.chat_template is not None:
            sources.setdefault("default", text.chat_template)
        self._templates = {
            name: ChatTemplate(source, special_tokens=text.special_tokens, name=name)
            for name, source in sources.items()
        }

    @property
    def has_chat_template(self) -> bool:
        """Whether conversations can be asked."""
        return "default" in self._templates

    def prepare(self, request: GenerateRequest) -> PreparedRequest:
        """Returns the request with everything settled.

        Raises:
            InvalidRequest: what the message says; nothing has been computed.
        """
        timeline = Timeline(request.id)
        with timeline.span("prepare") as counts:
            _refuse_unsupported(request)
            prompt_ids = self._prompt_ids(request.prompt)
            counts["prompt_tokens"] = len(prompt_ids)
            max_tokens, limited_by = self._ceiling(request.limits.max_tokens, len(prompt_ids))
            _check_permitted(request, self._package)
            timeout = request.limits.timeout
            if timeout is not None and not timeout > 0:
                raise InvalidRequest(f"timeout is {timeout!r}", why="it must be above 0 seconds")
            ends = self._package.text.eos_token_ids
            return PreparedRequest(
                request=request,
                prompt_ids=prompt_ids,
                sampling=_with_seed(request.sampling),
                max_tokens=max_tokens,
                limited_by=limited_by,
                end_ids=frozenset() if request.stop.ignore_eos else ends,
                stop_ids=request.stop.token_ids,
                deadline=None if timeout is None else time.perf_counter() + timeout,
                timeline=timeline,
                is_open=limited_by is FinishReason.CONTEXT and request.limits.max_tokens is None,
            )

    def _prompt_ids(self, prompt: str | Sequence[int] | Chat) -> tuple[int, ...]:
        if isinstance(prompt, str):
            ids = self._require_tokenizer().encode(prompt)
        elif isinstance(prompt, Chat):
            ids = self._chat_ids(prompt)
        else:
            ids = self._checked_ids(prompt)
        if not ids:
            raise InvalidRequest("the prompt is empty", why="a model needs one token to begin from")
        return tuple(ids)

    def _chat_ids(self, chat: Chat) -> list[int]:
        name = chat.template or "default"
        template = self._templates.get(name)
        if template is None and chat.template is None:
            raise NoChatTemplate(
                f"{self._package.root.name} has no chat template",
                why="neither its tokenizer files nor its configuration hold one",
                fix="Give plain text (`generate`, or --raw on the command line)",
            )
        if template is None:
            raise InvalidRequest(
                f"there is no chat template named {name!r}",
                why=f"the package has {', '.join(sorted(self._templates)) or 'none'}",
            )
        return encode_chat(
            self._require_tokenizer(),
            template,
            chat.messages,
            tools=chat.tools,
            documents=chat.documents,
            variables=chat.variables,
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
            allow_control_tokens=chat.allow_control_tokens,
        )

    def _checked_ids(self, ids: Sequence[int]) -> list[int]:
        limit = self._package.vocab_size
        for place, token in enumerate(ids):
            if not isinstance(token, int) or isinstance(token, bool):
                raise InvalidRequest(f"prompt[{place}] is {token!r}", why="token ids are integers")
            if not 0 <= token < limit:
                raise InvalidRequest(
                    f"prompt[{place}] is {token}", why=f"the vocabulary has ids 0 to {limit - 1}"
                )
        return list(ids)

    def _require_tokenizer(self) -> Tokenizer:
        if self._tokenizer is None:
            raise InvalidRequest(
                f"{self._package.root.name} has no tokenizer",
                why="there is no tokenizer.json in the package",
                fix="Give token ids, or put the model's tokenizer.json beside its graph",
            )
        return self._tokenizer

    def _ceiling(self, max_tokens: int | None, prompt_tokens: int) -> tuple[int, FinishReason]:
        if max_tokens is not None and (
            not isinstance(max_tokens, int) or isinstance(max_tokens, bool) or max_tokens < 1
        ):
            raise InvalidRequest(
                f"max_tokens is {max_tokens!r}", why="it must be a whole number from 1 on"
            )
        room = self._context_length - prompt_tokens
        if room < 1:
            raise ContextLengthExceeded(
                f"the prompt has {prompt_tokens} tokens",
                why=f"the context is {self._context_length} tokens, and a reply needs one of them",
                fix="Shorten the prompt, or load the model with a larger max_context if it has one",
            )
        if max_tokens is None:
            max_tokens = self._package.defaults.max_tokens
        if max_tokens is not None and max_tokens <= room:
            return max_tokens, FinishReason.LENGTH
        return room, FinishReason.CONTEXT


def _refuse_unsupported(request: GenerateRequest) -> None:
    asked = {
        "media": bool(request.media),
        "constraint": request.constraint is not None,
        "session": request.session is not None,
        "adapter": request.adapter is not None,
        "cache_salt": bool(request.cache_salt),
    }
    for name, is_asked in asked.items():
        if is_asked:
            raise Unsupported(
                f"{name} is not supported", why="this version cannot honour it", fix="Leave it out"
            )


_NEUTRAL = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0}
"""What a request does where neither it nor the package says anything."""


def _check_permitted(request: GenerateRequest, package: ModelPackage) -> None:
    """Refuses what the package does not let a request choose; its own defaults always pass."""
    overrides = package.permissions.overrides
    if overrides is None:
        return
    asked: dict[str, float] = {}
    for name, neutral in _NEUTRAL.items():
        own = getattr(package.defaults, name)
        value = getattr(request.sampling, name)
        if value != (neutral if own is None else own):
            asked[name] = value
    if request.sampling.seed is not None:
        asked["seed"] = request.sampling.seed
    if request.limits.max_tokens is not None:
        asked["max_tokens"] = request.limits.max_tokens
    if request.logits_processors or request.sampler is not None:
        raise InvalidRequest(
            "the request brings its own logits processors or sampler",
            why="the package does not leave all of sampling to requests, see generation.overrides",
            fix="Leave them out",
        )
    for name, value in asked.items():
        if name not in overrides:
            raise InvalidRequest(
                f"{name} is {value}",
                why="the package does not let a request set it; generation.overrides has "
                + (", ".join(overrides) or "no field"),
                fix="Leave it out",
            )
        low, high = overrides[name]
        if (low is not None and value < low) or (high is not None and value > high):
            bounds = [f"at least {low:g}"] if low is not None else []
            bounds += [f"at most {high:g}"] if high is not None else []
            raise InvalidRequest(
                f"{name} is {value}",
                why=f"the package's generation.overrides allow {' and '.join(bounds)}",
            )


def _with_seed(sampling: SamplingParams) -> SamplingParams:
    if sampling.greedy or sampling.seed is not None:
        return sampling
    return replace(sampling, seed=int.from_bytes(os.urandom(8), "little"))
