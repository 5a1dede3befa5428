"""Typed errors: what failed, why, and what to do about it.

Every error that a caller can cause or must react to is a `TokenmillError`. `ERROR_TABLE` is the
one place that says how each kind looks through a door: HTTP status, exit code, C code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class TokenmillError(Exception):
    """Base of all typed errors.

    Args:
        what: what failed, naming the file, port, field or option concerned.
        why: the cause, with the figures that matter.
        fix: what the caller can do.
    """

    code = "error"

    def __init__(self, what: str, *, why: str = "", fix: str = "") -> None:
        self.what, self.why, self.fix = what, why, fix
        super().__init__(what, why, fix)

    def __str__(self) -> str:
        text = self.what
        if self.why:
            text += f": {self.why}"
        if self.fix:
            text += f". {self.fix}"
        return text

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.what, self.why, self.fix))


def _rebuild(kind: type[TokenmillError], what: str, why: str, fix: str) -> TokenmillError:
    return kind(what, why=why, fix=fix)


# What a caller got wrong.
class InvalidRequest(TokenmillError):
    """A request that no model could serve: a bad value, an empty prompt, a conflict."""

    code = "invalid_request"


class ContextLengthExceeded(InvalidRequest):
    """The prompt leaves no room for one token in the model's context."""

    code = "context_length_exceeded"


class NoChatTemplate(InvalidRequest):
    """A chat was asked of a package that has no chat template."""

    code = "no_chat_template"


class TemplateError(InvalidRequest):
    """The chat template refused the conversation, or does not compile."""

    code = "template_error"


class Unsupported(InvalidRequest):
    """A feature that this backend or package does not have; the message names it."""

    code = "unsupported"


class InvalidOption(TokenmillError):
    """An option with a value that cannot be used; the message names the option."""

    code = "invalid_option"


class ProviderUnavailable(InvalidOption):
    """An execution provider that this machine does not have."""

    code = "provider_unavailable"


# What is wrong with a model.
class ModelNotFound(TokenmillError):
    """No directory, file, catalogue entry or hub repository of that name."""

    code = "model_not_found"


class InvalidPackage(TokenmillError):
    """A package that cannot work; the message names the file, field or port."""

    code = "invalid_package"


class CorruptFile(InvalidPackage):
    """A file that is truncated, or is not what it says it is."""

    code = "corrupt_file"


class UnsupportedModel(InvalidPackage):
    """A sound package that asks for something that we do not have; the message names it."""

    code = "unsupported_model"


# What the surroundings did.
class DownloadFailed(TokenmillError):
    """A file could not be fetched, or arrived with another checksum."""

    code = "download_failed"


class OutOfMemory(TokenmillError):
    """There is no room for that state; nothing was changed."""

    code = "out_of_memory"


class Busy(TokenmillError):
    """The queue is full; try again later.

    Attributes:
        retry_after: seconds after which there may be room, estimated from what finished lately.
    """

    code = "busy"

    def __init__(
        self, what: str, *, why: str = "", fix: str = "", retry_after: float = 1.0
    ) -> None:
        super().__init__(what, why=why, fix=fix)
        self.retry_after = retry_after

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild_busy, (self.what, self.why, self.fix, self.retry_after))


def _rebuild_busy(what: str, why: str, fix: str, retry_after: float) -> Busy:
    return Busy(what, why=why, fix=fix, retry_after=retry_after)


class Cancelled(TokenmillError):
    """The caller withdrew the request."""

    code = "cancelled"


class CallbackError(TokenmillError):
    """A caller's own logits processor or sampler raised, or gave back what cannot be used."""

    code = "callback_error"


class DeadlineExceeded(TokenmillError):
    """The request's time ran out before its first token."""

    code = "deadline_exceeded"


class Closed(TokenmillError):
    """The engine, model or sequence was closed before."""

    code = "closed"


# What went wrong on our side.
class BackendError(TokenmillError):
    """A model step failed inside the backend."""

    code = "backend_error"


class ErrorMapping(NamedTuple):
    """How one kind of error looks through each door."""

    http_status: int
    exit_code: int
    c_code: int


ERROR_TABLE: Mapping[type[TokenmillError], ErrorMapping] = {
    InvalidRequest: ErrorMapping(400, 2, 1),
    InvalidOption: ErrorMapping(400, 2, 2),
    ModelNotFound: ErrorMapping(404, 2, 3),
    InvalidPackage: ErrorMapping(422, 2, 4),
    DownloadFailed: ErrorMapping(502, 3, 5),
    OutOfMemory: ErrorMapping(503, 3, 6),
    Busy: ErrorMapping(429, 3, 7),
    Cancelled: ErrorMapping(499, 4, 8),
    DeadlineExceeded: ErrorMapping(504, 4, 9),
    Closed: ErrorMapping(503, 1, 10),
    CallbackError: ErrorMapping(500, 1, 13),
    BackendError: ErrorMapping(500, 1, 11),
    TokenmillError: ErrorMapping(500, 1, 12),
}


def mapping_of(error: TokenmillError) -> ErrorMapping:
    """Returns the row of `ERROR_TABLE` for the error's kind, or for its nearest base."""
    for kind in type(error).__mro__:
        if kind in ERROR_TABLE:
            return ERROR_TABLE[kind]
    raise AssertionError("ERROR_TABLE has a row for TokenmillError, the base of every error")
