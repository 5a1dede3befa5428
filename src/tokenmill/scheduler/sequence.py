"""A sequence as the scheduler sees it: which tokens are known, and how many are computed."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf

from tokenmill.core.ids import RequestId, SequenceId


class Sequence:
    """The tokens of one running request and how far the backend has come with them.

    Attributes:
        request_id: whose it is.
        tokens: the prompt, then what has been generated.
        num_prompt_tokens: how many of `tokens` are the prompt's.
        num_computed_tokens: how many are in the backend's state.
        backend_id: the backend's name for it, None until it is admitted.
    """

    __slots__ = ("backend_id", "num_computed_tokens", "num_prompt_tokens", "request_id", "tokens")

    def __init__(self, request_id: RequestId, prompt: SequenceOf[int]) -> None:
        self.request_id = request_id
        self.tokens = list(prompt)
        self.num_prompt_tokens = len(prompt)
        self.num_computed_tokens = 0
        self.backend_id: SequenceId | None = None

    @property
    def num_pending_tokens(self) -> int:
        """Known tokens that are not computed yet."""
        return len(self.tokens) - self.num_computed_tokens

    @property
    def is_prefilling(self) -> bool:
        """Whether part of the prompt is still to be computed."""
        return self.num_computed_tokens < self.num_prompt_tokens
