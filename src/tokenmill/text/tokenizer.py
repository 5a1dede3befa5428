"""Words to tokens and back, over a `tokenizer.json`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenmill.core.errors import CorruptFile, InvalidPackage, InvalidRequest
from tokenmill.text.bos import one_bos
from tokenmill.text.decoder_plan import plan_of
from tokenmill.text.detokenizer import Detokenizer, StreamingDetokenizer, WholeDetokenizer
from tokenmill.text.ordinary import OrdinaryEncoder
from tokenmill.text.spans import Span, control_extents, split_at_control_tokens

if TYPE_CHECKING:
    from tokenizers import Tokenizer as NativeTokenizer


class Tokenizer:
    """A model's tokenizer, with the facts about begin and end of text that go with it.

    Encoding never truncates or pads, whatever the file says, and adds nothing but the one BOS.
    All methods may be called from several threads; a `Detokenizer` belongs to one.

    Attributes:
        bos_token_id: None where the model uses none.
        add_bos: whether a prompt begins with one BOS.
        eos_token_ids: every id that ends a text.
        special_tokens: role ("bos_token", "eos_token", ...) to token text, for chat templates.
        vocab_size: one more than the largest id.
        special_token_ids: ids of the control tokens: those that the file marks `special`.
        control_tokens: their texts.
    """

    def __init__(
        self,
        native: NativeTokenizer,
        *,
        bos_token_id: int | None,
        add_bos: bool,
        eos_token_ids: frozenset[int],
        special_tokens: Mapping[str, str],
    ) -> None:
        native.no_truncation()
        native.no_padding()
        native.encode_special_tokens = False
        self._native = native
        self.bos_token_id = bos_token_id
        self.add_bos = add_bos
        self.eos_token_ids = eos_token_ids
        self.special_tokens = dict(special_tokens)
        added = native.get_added_tokens_decoder()
        self._added: dict[int, str] = {token_id: token.content for token_id, token in added.items()}
        special = {token_id: token for token_id, token in added.items() if token.special}
        self.special_token_ids = frozenset(special)
        self.control_tokens = frozenset(token.content for token in special.values())
        self.vocab_size = max([int(native.get_vocab_size(False)), *(i + 1 for i in added)])
        self._ordinary = OrdinaryEncoder(native, special)
        decoder: Mapping[str, Any] | None = None
        if native.decoder is not None:
            decoder = json.loads(native.decoder.__getstate__())
        self._plan = plan_of(decoder)
        self._shown: dict[int, str | None] = {}
        self._shown_without_special: dict[int, str | None] = {}

    @classmethod
    def from_file(
        cls,
        path: Path,
        *,
        bos_token_id: int | None,
        add_bos: bool,
        eos_token_ids: frozenset[int],
        special_tokens: Mapping[str, str],
    ) -> Tokenizer:
        """Reads a `tokenizer.json`.

        Args:
            path: the file.
            bos_token_id: None where the model uses none.
            add_bos: a prompt begins with one BOS.
            eos_token_ids: every id that ends a text.
            special_tokens: role to token text.

        Raises:
            InvalidPackage: there is no such file, or the facts contradict it.
            CorruptFile: it is not a tokenizer.
        """
        try:
            content = path.read_bytes()
        except OSError as error:
            raise InvalidPackage(
                f"cannot read the tokenizer {path}",
                why=error.strerror or str(error),
                fix="A text model needs its tokenizer.json",
            ) from error
        from tokenizers import Tokenizer as NativeTokenizer

        try:
            native = NativeTokenizer.from_buffer(content)
        except Exception as error:  # the library raises plain Exception
            raise CorruptFile(
                f"{path} is not a tokenizer that can be read",
                why=str(error),
                fix="Fetch the file again, or write it with a current `tokenizers` library",
            ) from error
        tokenizer = cls(
            native,
            bos_token_id=bos_token_id,
            add_bos=add_bos,
            eos_token_ids=eos_token_ids,
            special_tokens=special_tokens,
        )
        if add_bos and bos_token_id is None:
            raise InvalidPackage(
                f"prompts for {path} shall begin with BOS",
                why="the package names no bos_token_id",
                fix="Add bos_token_id to the package, or say that no BOS is added",
            )
        return tokenizer

    def encode(self, text: str, *, add_bos: bool | None = None) -> list[int]:
        """Encodes a text in which control tokens count as such.

        Args:
            text: any text; "" gives at most a BOS.
            add_bos: None for what the package says. With True the result begins with exactly one
                BOS, also where the text begins with one.

        Raises:
            InvalidRequest: the text is not Unicode (a lone surrogate), or a BOS is asked for that
                the model does not have.
        """
        return self._with_bos(self._encode(text), add_bos)

    def encode_ordinary(self, text: str) -> list[int]:
        """Encodes a text in which nothing is a control token; adds no BOS.

        Raises:
            InvalidRequest: the text is not Unicode, or it holds a control token that this
                vocabulary cannot spell in any other way.
        """
        return self.encode_prompt([Span(text, False)], add_bos=False)

    def encode_prompt(self, spans: Sequence[Span], *, add_bos: bool | None = None) -> list[int]:
        """Encodes a prompt in which it is known what is a control token.

        The ordinary spans are encoded as they would be in the whole text, except that control
        tokens are not recognised in them.

        Args:
            spans: in order; the text of a control span is one of `control_tokens`.
            add_bos: as for `encode`.

        Raises:
            InvalidRequest: as for `encode_ordinary`.
        """
        text = "".join(span.text for span in spans)
        controls = control_extents(spans)
        if control_extents(self.split(text)) == controls:
            ids = self._encode(text)
            # More special ids than control spans: some ordinary text became one all the same.
            if sum(token_id in self.special_token_ids for token_id in ids) <= len(controls):
                return self._with_bos(ids, add_bos)
        _check_unicode(text)
        return self._with_bos(self._ordinary.encode(spans), add_bos)

    def split(self, text: str) -> list[Span]:
        """Cuts a text at its control tokens."""
        return split_at_control_tokens(text, self.control_tokens)

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Decodes a whole output. Ids beyond the vocabulary add nothing.

        Args:
            ids: of one output, all of them: a part may decode to other text than it adds.
            skip_special_tokens: leave out control tokens.

        Raises:
            InvalidRequest: an id is negative or has more than 32 bits.
        """
        if not ids:
            return ""
        try:
            return str(self._native.decode(list(ids), skip_special_tokens=skip_special_tokens))
        except OverflowError as error:
            raise InvalidRequest(
                "the ids cannot be decoded",
                why="one is negative or has more than 32 bits",
                fix=f"Send ids from 0 to {self.vocab_size - 1}",
            ) from error

    def detokenizer(self, skip_special_tokens: bool = True) -> Detokenizer:
        """Returns a fresh detokenizer whose texts join to what `decode` gives."""
        if self._plan.streaming is None:
            return WholeDetokenizer(
                lambda ids: self.decode(ids, skip_special_tokens=skip_special_tokens)
            )
        if skip_special_tokens:
            return StreamingDetokenizer(
                self._piece_unless_special, self._plan.streaming(), self._shown_without_special
            )
        return StreamingDetokenizer(self._piece, self._plan.streaming(), self._shown)

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token adds in the middle of an output; b"" for an unknown id.

        They need not be UTF-8: one token may be part of a character. Control tokens give their
        text.
        """
        piece = self._piece(token_id)
        if piece is None:
            return b""
        if token_id in self.special_token_ids:
            return self._added[token_id].encode()
        if self._plan.piece_bytes is None:
            return self.decode([token_id], skip_special_tokens=False).encode()
        return self._plan.piece_bytes(piece)

    def token_text(self, token_id: int) -> str:
        """The text that a token adds in the middle of an output, valid in JSON.

        Bytes that are not UTF-8 by themselves show as U+FFFD.
        """
        return self.token_bytes(token_id).decode(errors="replace")

    def id_of(self, token: str) -> int | None:
        """The id of a vocabulary entry (a control token's text, or a piece), or None."""
        found = self._native.token_to_id(token)
        return None if found is None else int(found)

    def _encode(self, text: str) -> list[int]:
        _check_unicode(text)
        return list(self._native.encode(text, add_special_tokens=False).ids)

    def _with_bos(self, ids: list[int], add_bos: bool | None) -> list[int]:
        add = self.add_bos if add_bos is None else add_bos
        if add and self.bos_token_id is None:
            raise InvalidRequest(
                "cannot begin the prompt with BOS",
                why="this model has no BOS token",
                fix="Leave add_bos out",
            )
        return one_bos(ids, self.bos_token_id, add=add)

    def _piece(self, token_id: int) -> str | None:
        if token_id < 0:
            return None
        piece = self._native.id_to_token(token_id)
        return None if piece is None else str(piece)

    def _piece_unless_special(self, token_id: int) -> str | None:
        # The library skips by the piece's text, not by its id: the same, so that texts agree.
        piece = self._piece(token_id)
        return None if piece in self.control_tokens else piece


def _check_unicode(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            "the text is not valid Unicode",
            why=f"character {error.start} is the lone surrogate U+{ord(text[error.start]):04X}",
            fix="Send surrogates in pairs, or leave them out",
        ) from error
