"""A sequence as the scheduler sees it: its tokens, its place in the queue, what it holds."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from tokenmill.core.ids import RequestId, SequenceId
from tokenmill.scheduler.admission import Demand


class Sequence:
    """The tokens of one request and how far the backend has come with them.

    Attributes:
        request_id: whose it is.
        tokens: the prompt, then what has been generated.
        num_prompt_tokens: how many of `tokens` are the prompt's.
        num_computed_tokens: how many are in the backend's state.
        num_kept_tokens: while it is parked, how many are in a copy of that state.
        backend_id: the backend's name for it; None while it waits.
        demand: what it can come to need.
        priority: higher goes first.
        client: whose fair share it takes.
        order: counts up with arrivals; a request that was parked keeps its own.
        waiting_since: when it last began to wait, seconds on the engine's clock.
        waited: seconds that it waited before that.
        reserved: tokens that it holds memory for; 0 while it waits.
        was_parked: it held a row before, and had to give it up.
    """

    __slots__ = (
        "backend_id",
        "client",
        "demand",
        "num_computed_tokens",
        "num_kept_tokens",
        "num_prompt_tokens",
        "order",
        "priority",
        "request_id",
        "reserved",
        "tokens",
        "waited",
        "waiting_since",
        "was_parked",
    )

    def __init__(
        self,
        request_id: RequestId,
        prompt: SequenceOf[int],
        demand: Demand | None = None,
        *,
        priority: int = 0,
        client: str = "",
    ) -> None:
        self.request_id = request_id
        self.tokens = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.num_computed_tokens = 0
        self.num_kept_tokens = 0
        self.backend_id: SequenceId | None = None
        self.demand = demand or Demand(len(prompt), 1, is_open=False)
        self.priority, self.client = priority, client
        self.order = 0
        self.waiting_since = self.waited = 0.0
        self.reserved = 0
        self.was_parked = False

    @property
    def num_pending_tokens(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether part of the prompt is still to be computed."""
        return self.num_computed_tokens < self.num_prompt_tokens

    @property
    def is_replaying(self) -> bool:
        """Whether generated tokens are computed again, after their state was given up."""
        return not self.is_prefilling and self.num_pending_tokens > 1
