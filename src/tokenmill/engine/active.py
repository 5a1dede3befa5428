"""A request inside the engine."""

from __future__ import annotations

from tokenmill.core.pages import PageBlock
from tokenmill.engine.output import Output
from tokenmill.engine.prepare import PreparedRequest
from tokenmill.engine.streams import RequestStream
from tokenmill.scheduler.sequence import Sequence
from tokenmill.telemetry.timeline import Timeline
from tokenmill.text.detokenizer import Detokenizer


class ActiveRequest:
    """A request's sequence, its output and its reader.

    Attributes:
        prepared: what was asked.
        sequence: its tokens, as the scheduler sees them.
        output: tokens become text here.
        stream: where its events go.
        submitted: when it came in, seconds on the engine's clock.
        last_token: when its last token was drawn; None before the first.
        copy: of its state, while it is parked and that was kept.
        has_started: it has had a row.
        parked_since: when it was parked; None while it is not.
        served_tokens: how many of its tokens have been computed or drawn at least once.
    """

    __slots__ = (
        "copy",
        "has_started",
        "last_token",
        "output",
        "parked_since",
        "prepared",
        "sequence",
        "served_tokens",
        "stream",
        "submitted",
    )

    def __init__(
        self,
        prepared: PreparedRequest,
        detokenizer: Detokenizer | None,
        stream: RequestStream,
        submitted: float,
    ) -> None:
        request = prepared.request
        self.prepared = prepared
        self.sequence = Sequence(
            request.id,
            prepared.prompt_ids,
            prepared.demand,
            priority=request.priority,
            client=request.client,
        )
        self.output = Output(prepared, detokenizer)
        self.stream = stream
        self.submitted = submitted
        self.last_token: float | None = None
        self.copy: PageBlock | None = None
        self.has_started = False
        self.parked_since: float | None = None
        self.served_tokens = 0

    @property
    def timeline(self) -> Timeline:
        """The request's timeline."""
        return self.prepared.timeline
