"""What a model is: the one description that every later stage reads, whatever the source format.

A `ModelPackage` answers four questions: which components with which ports in which role, what
state they keep, what the text contract is, and which defaults and limits apply. It is plain data;
nothing in it depends on a model's name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tokenmill.core.ids import Fingerprint


class Role(Enum):
    """What a port is for."""

    INPUT_IDS = "input_ids"
    INPUTS_EMBEDS = "inputs_embeds"
    ATTENTION_MASK = "attention_mask"
    POSITION_IDS = "position_ids"
    PAST_KEY = "past_key"
    PAST_VALUE = "past_value"
    WRITE_INDICES = "write_indices"
    """Static caches: int64 [batch], where each row's new tokens are written."""
    KV_LENGTHS = "kv_lengths"
    """Static caches: int64 [batch], each row's tokens with the new ones."""
    USE_CACHE_BRANCH = "use_cache_branch"
    """Merged exports: bool [1], whether a past is given."""
    LOGITS = "logits"
    HIDDEN_STATES = "hidden_states"
    PRESENT_KEY = "present_key"
    PRESENT_VALUE = "present_value"


class PackageForm(Enum):
    """The formats a package is read from, numbered as in docs/packages.md."""

    MODEL_PACKAGE = "model-package"
    INFERENCE_METADATA = "inference-metadata"
    GENAI = "onnxruntime-genai"
    HUGGING_FACE = "hugging-face"
    GGUF = "gguf"
    BARE = "bare-onnx"


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of a graph.

    Attributes:
        name: as in the graph.
        dtype: NumPy's name of the element type, e.g. "float32", "int64"; "bfloat16" too.
        shape: sizes, or the symbol's name where a dimension is symbolic ("" if unnamed).
        is_input: input or output.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    is_input: bool


@dataclass(frozen=True, slots=True)
class PortBinding:
    """A port with the role it was given.

    Attributes:
        layer: for state, the layer's index in the model; None for the others.
        why: the evidence in one phrase, e.g. "genai_config.json model.decoder.inputs.input_ids".
    """

    port: Port
    role: Role
    layer: int | None
    why: str


@dataclass(frozen=True, slots=True)
class Component:
    """One graph of the package.

    Attributes:
        name: e.g. "decoder".
        file: the ONNX file, absolute.
        bindings: every port with its role.
        operators: operator type (with domain where not ONNX's own) to number of nodes.
        weight_bytes: of all initializers, inside the file or beside it.
    """

    name: str
    file: Path
    bindings: tuple[PortBinding, ...]
    operators: Mapping[str, int]
    weight_bytes: int

    def find(self, role: Role, layer: int | None = None) -> Port | None:
        """Returns the port in that role (and layer), or None."""
        for binding in self.bindings:
            if binding.role is role and binding.layer == layer:
                return binding.port
        return None

    def port(self, role: Role, layer: int | None = None) -> Port:
        """Returns the port in that role. Loading has checked that required roles are there."""
        found = self.find(role, layer)
        assert found is not None, f"the loader requires a port for {role} of {self.name}"
        return found


class StateKind(Enum):
    """What a layer remembers of the past."""

    ATTENTION = "attention"
    RECURRENT = "recurrent"
    CONVOLUTION = "convolution"
    CROSS_ATTENTION = "cross_attention"


class StateLayout(Enum):
    """How attention state passes through the graph's ports."""

    SHARED_BUFFER = "shared_buffer"
    """Past and present are one buffer [rows, heads, capacity, dim], written in place."""
    PLAIN = "plain"
    """Present is past with the new tokens appended, a new tensor each step."""
    STATIC_CACHE = "static_cache"
    """A fixed buffer with explicit write positions."""


@dataclass(frozen=True, slots=True)
class AttentionState:
    """The key and value state of one layer.

    Attributes:
        layer: the index in the model.
        num_kv_heads, head_dim: geometry of keys and values alike.
        dtype: of the buffers, NumPy's name.
        sliding_window: tokens that are looked back at, None for all.
    """

    layer: int
    num_kv_heads: int
    head_dim: int
    dtype: str
    sliding_window: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Of keys and values together."""
        item = {"float32": 4, "float16": 2, "bfloat16": 2, "int8": 1, "uint8": 1}[self.dtype]
        return 2 * self.num_kv_heads * self.head_dim * item


@dataclass(frozen=True, slots=True)
class StateContract:
    """All state of one sequence, and what can be done with it.

    Attributes:
        layout: see `StateLayout`.
        attention: by layer.
        capacity: tokens that a static cache holds, where the graph fixes that; else None.
    """

    layout: StateLayout
    attention: tuple[AttentionState, ...]
    capacity: int | None = None

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one more token adds to a sequence."""
        return sum(layer.bytes_per_token for layer in self.attention)


@dataclass(frozen=True, slots=True)
class TextContract:
    """How words become tokens and back.

    Attributes:
        tokenizer_file: `tokenizer.json`, absolute; None where the package has none.
        chat_template: Jinja source of the default template, or None.
        named_templates: further templates by name (e.g. "tool_use").
        template_source: which file and field the template came from.
        special_tokens: role ("bos_token", "eos_token", "pad_token", ...) to token text, for the
            template's variables.
        bos_token_id: None where the model uses none.
        add_bos: a prompt begins with one BOS (never two).
        eos_token_ids: every id that ends a text: the union of what all files say.
        pad_token_id: None where there is none.
    """

    tokenizer_file: Path | None
    chat_template: str | None
    named_templates: Mapping[str, str]
    template_source: str
    special_tokens: Mapping[str, str]
    bos_token_id: int | None
    add_bos: bool
    eos_token_ids: frozenset[int]
    pad_token_id: int | None


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """What the package wants where a request says nothing. None: the package says nothing."""

    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    max_tokens: int | None = None


class Range(NamedTuple):
    """What a package lets a request choose; None: no bound on that side."""

    minimum: float | None
    maximum: float | None


@dataclass(frozen=True, slots=True)
class Permissions:
    """What the package lets the runtime do. None: it says nothing.

    Attributes:
        prefix_cache: state may be reused between requests.
        continuous_batching: requests may share steps.
        prefill_chunk: tokens of a prompt in one step; 0 where a prompt must not be cut.
        overrides: the generation fields that a request may set, by their names in
            `GenerationDefaults`, each with its range; None where it may set all of them.
    """

    prefix_cache: bool | None = None
    continuous_batching: bool | None = None
    prefill_chunk: int | None = None
    overrides: Mapping[str, Range] | None = None


@dataclass(frozen=True, slots=True)
class Ignored:
    """A field that the package carries and we do not use, with the reason."""

    field: str
    value: str
    why: str


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several that the package offers: a precision, a variant.

    Attributes:
        what: "file" or "variant".
        chosen: its name.
        why: the reason in one phrase.
        others: the names that were not chosen, each with the reason.
    """

    what: str
    chosen: str
    why: str
    others: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelPackage:
    """A loaded description of a model. See the module's docstring.

    Attributes:
        root: the directory, absolute.
        form: the format it was read from.
        fingerprint: of the graph, its weights' identity and everything that changes results.
        components: by name; a plain decoder has one, "decoder".
        state: what the decoder remembers.
        text: the text contract.
        defaults: generation defaults.
        context_length: most tokens of prompt and reply together.
        vocab_size: width of the logits.
        hidden_size: width of the hidden states; None where unknown.
        precision: in words, e.g. "4-bit blocks of 32 (exact Q4_1), head 8-bit".
        provider_options: (provider name, its options) that the package asks for, in order.
        provenance: where the weights came from, field to value.
        ignored: fields that we do not use.
        permissions: what the package allows.
        choices: what was picked where the package offers several.
        losses: what was given up where a lossy reading was asked for; see `LoadOptions`.
    """

    root: Path
    form: PackageForm
    fingerprint: Fingerprint
    components: Mapping[str, Component]
    state: StateContract
    text: TextContract
    defaults: GenerationDefaults
    context_length: int
    vocab_size: int
    hidden_size: int | None = None
    precision: str = ""
    provider_options: Sequence[tuple[str, Mapping[str, str]]] = ()
    provenance: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[Ignored, ...] = ()
    permissions: Permissions = Permissions()
    choices: tuple[Choice, ...] = ()
    losses: tuple[Ignored, ...] = ()

    @property
    def decoder(self) -> Component:
        """The component that turns tokens into logits."""
        return self.components["decoder"]
