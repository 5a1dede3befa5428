"""Tiny packages with an `inference_metadata` document: in the legacy form, and as a workflow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import yaml
from onnx import TensorProto, helper

from support.tiny_genai import tokenizer_json
from support.tiny_onnx import TinySpec, save_decoder
from support.tiny_static import StaticSpec, make_static_decoder

SPEC = TinySpec()
STATIC = StaticSpec()
PORTS = ("key", "value")


def legacy() -> dict[str, Any]:
    """The document as the released exporter writes it for a decoder."""
    past = [f"past_key_values.{layer}.{half}" for layer in range(SPEC.layers) for half in PORTS]
    present = [f"present.{layer}.{half}" for layer in range(SPEC.layers) for half in PORTS]
    shape = ["batch", SPEC.kv_heads, "past_sequence_len", SPEC.head_dim]
    return {
        "required_capabilities": ["kv_cache", "grouped_query_attention"],
        "model": {
            "attention": {
                "type": "grouped_query",
                "num_attention_heads": SPEC.heads,
                "num_kv_heads": SPEC.kv_heads,
                "head_dim": SPEC.head_dim,
            },
            "architecture": "llama",
            "max_sequence_length": SPEC.context,
            "io": {
                "inputs": [
                    {"name": "input_ids", "dtype": "int64", "rank": 2, "shape": ["b", "s"]},
                    *({"name": n, "dtype": "fp32", "rank": 4, "shape": shape} for n in past),
                ],
                "outputs": [
                    {
                        "name": "logits",
                        "dtype": "fp32",
                        "rank": 3,
                        "shape": ["b", "s", SPEC.vocab],
                    }
                ],
                "kv_ownership": "owned",
                "sequence_source": "token_ids",
                "token_input": "input_ids",
                "attention_mask_input": "attention_mask",
                "logits_output": "logits",
                "kv_inputs": past,
                "kv_outputs": present,
                "kv_update": "append",
            },
        },
        "kv_cache": {"native_dtype": "float32"},
    }


def static() -> dict[str, Any]:
    """The same exporter's document for a static cache."""
    document = legacy()
    document["model"]["io"] = {
        "sequence_source": "token_ids",
        "token_input": "input_ids",
        "position_ids_input": "position_ids",
        "logits_output": "logits",
        "static_cache": {
            "write_indices_input": "write_indices",
            "kv_sequence_length_input": "nonpad_kv_seqlen",
            **{
                f"{half}_cache_{way}": [f"{mark}{half}_cache.{n}" for n in range(STATIC.layers)]
                for half in PORTS
                for way, mark in (("inputs", ""), ("outputs", "updated_"))
            },
        },
    }
    return document


def contract(dtype: str, *shape: int | str) -> dict[str, Any]:
    """A tensor contract, rows along its first axis."""
    layout = {"kind": "request_aligned", "axis": 0}
    return {"dtype": dtype, "rank": len(shape), "shape": list(shape), "batch_layout": layout}


def _input(
    what: dict[str, Any],
    role: str | None = None,
    *,
    source: str = "request",
    **fields: Any,
) -> dict[str, Any]:
    meant = {"kind": "opaque"}
    if role is not None:
        meant = {"kind": "runtime", "version": "1.0", "role": role}
    return {"contract": what, "role": meant, "source": {"kind": source}, **fields}


def _cells() -> dict[str, tuple[str, str, int, str]]:
    """State cell to past port, present port, layer and role."""
    return {
        f"{half[0]}{layer}": (
            f"past_key_values.{layer}.{half}",
            f"present.{layer}.{half}",
            layer,
            half,
        )
        for layer in range(SPEC.layers)
        for half in PORTS
    }


def workflow() -> dict[str, Any]:
    """A decoder's workflow: the prompt once, then sample, decode and emit in a loop."""
    row = contract("int64", "batch")
    flag = contract("bool", "batch")
    kv = contract("float32", "batch", SPEC.kv_heads, "tokens", SPEC.head_dim)
    cells = _cells()
    empty = {f"init.{cell}": _input(kv, source="application") for cell in cells}
    sampling = {
        name: _input(contract(dtype, "batch"), f"sampling_{name}", default=default)
        for name, dtype, default in (
            ("temperature", "float32", 0.7),
            ("top_k", "int64", 40),
            ("top_p", "float32", 0.9),
            ("min_p", "float32", 0.0),
        )
    }
    decode = {"input_ids": "", "attention_mask": "mask"}
    return {
        "schema_version": "v1",
        "model": {"max_sequence_length": SPEC.context},
        "pipeline": {
            "workflow": {
                "manifest": {
                    "capabilities": [
                        "workflow_ssa",
                        "linear_effects",
                        "nested_control_flow",
                        "typed_emit",
                        "loop_induction_values",
                        "serving_service_contract",
                        "bounded_state_recurrence",
                    ]
                },
                "inputs": {
                    "ids": _input(contract("int64", "batch", "sequence"), "prompt_tokens"),
                    "limit": _input(contract("int64", 1), "max_output_tokens", default=50),
                    "mask": _input(contract("int64", "batch", "total"), source="application"),
                    "eos": _input(contract("int64", 1), source="literal", default=2),
                    "most": _input(contract("int64", 1), source="literal", default=200),
                    "on": _input(flag, source="literal", default=True),
                    "off": _input(flag, source="literal", default=False),
                    "seed": _input(row, "seed", default=0),
                    "zero": _input(row, source="literal", default=0),
                    **sampling,
                    **empty,
                },
                "outputs": {
                    "tokens": {
                        "contract": contract("int64", "batch", 1),
                        "role": "tokens",
                        "stage": "pre_adapter",
                    }
                },
                "components": _components(),
                "state": {
                    **{
                        cell: {
                            "contract": kv,
                            "scope": "invocation",
                            "initializer": f"init.{cell}",
                            "recurrence": {"kind": "bounded", "axis": 2, "max": "most"},
                            "management": "runtime",
                            "release_boundary": "row",
                            "service_group": "kv",
                        }
                        for cell in cells
                    },
                    "last": _own(contract("float32", "batch", SPEC.vocab), "prompt.last"),
                    "active": _own(flag, "on"),
                    "done": _own(flag, "off"),
                    "count": _own(row, "zero"),
                },
                "serving": {
                    "active": "active",
                    "done": "done",
                    "state_service": {"groups": {"kv": _group(cells)}},
                },
                "steps": [
                    {
                        "kind": "loop",
                        "setup": [
                            {
                                "kind": "invoke",
                                "component": "dec",
                                "inputs": {
                                    **decode,
                                    "input_ids": "ids",
                                    **{past: f"init.{c}" for c, (past, *_) in cells.items()},
                                },
                                "outputs": {
                                    "logits": "prompt.logits",
                                    **{now: f"prompt.{c}" for c, (_, now, *_) in cells.items()},
                                },
                            },
                            _invoke("pick", {"logits": "prompt.logits"}, {"last": "prompt.last"}),
                        ],
                        "steps": [
                            _invoke(
                                "sampler",
                                {
                                    "logits": "last",
                                    **{name: name for name in (*sampling, "seed")},
                                    **{n: n for n in ("active", "done")},
                                    "counter": "count",
                                },
                                {"token": "body.token", "next_counter": "body.count"},
                            ),
                            _invoke("slot", {"token": "body.token"}, {"slot": "body.slot"}),
                            _invoke(
                                "end",
                                {
                                    "tokens": "body.token",
                                    "eos_ids": "eos",
                                    "iteration": "i",
                                    "max_iterations": "limit",
                                },
                                {"done": "body.done"},
                            ),
                            {
                                "kind": "emit",
                                "value": "body.slot",
                                "output": "tokens",
                                "mode": "append",
                                "when": "active",
                                "axis": 1,
                            },
                            _invoke(
                                "dec",
                                {
                                    **decode,
                                    "input_ids": "body.slot",
                                    **{past: c for c, (past, *_) in cells.items()},
                                },
                                {
                                    "logits": "body.logits",
                                    **{now: f"body.{c}" for c, (_, now, *_) in cells.items()},
                                },
                            ),
                            _invoke("pick", {"logits": "body.logits"}, {"last": "body.last"}),
                        ],
                        "continue_when": "active",
                        "max_iterations": "limit",
                        "termination": "generation_eos",
                        "iteration": {"value": "i", "contract": contract("int64", 1)},
                        "carried": [
                            *(
                                {"cell": c, "initial": f"prompt.{c}", "next": f"body.{c}"}
                                for c in cells
                            ),
                            {"cell": "last", "next": "body.last"},
                            {"cell": "done", "next": "body.done"},
                            {"cell": "active", "initial": "on", "next": "active"},
                            {"cell": "count", "next": "body.count"},
                        ],
                    }
                ],
            }
        },
        "package": {
            "tokenizer": {
                "algorithm": "bpe",
                "vocab_size": 6,
                "byte_level": True,
                "artifacts": [{"location": "tokenizer.json"}],
                "special_tokens": {
                    "bos": {"id": 1, "content": "<s>"},
                    "eos": {"id": 3, "content": "<|end|>"},
                    "pad": {"id": 0, "content": "<pad>"},
                },
            }
        },
        "generation": {
            "defaults": {"do_sample": True},
            "overrides": {
                "temperature": {"input": "temperature", "constraint": {"maximum": 1.5}},
                "max_output_tokens": {"input": "limit", "constraint": {"minimum": 1}},
            },
        },
    }


def _invoke(component: str, inputs: dict[str, str], outputs: dict[str, str]) -> dict[str, Any]:
    return {"kind": "invoke", "component": component, "inputs": inputs, "outputs": outputs}


def _own(what: dict[str, Any], initial: str) -> dict[str, Any]:
    return {
        "contract": what,
        "scope": "invocation",
        "initializer": initial,
        "recurrence": {"kind": "invariant"},
    }


def _group(cells: dict[str, tuple[str, str, int, str]]) -> dict[str, Any]:
    return {
        "kind": "full_attention",
        "sequence_axis": 2,
        "layout": "bnsh",
        "aliasing": "permitted",
        "update": {"kind": "append"},
        "reuse": {"prefix_reusable": True, "evictable_prefix": False},
        "capabilities": {"rollback_positions": 16, "snapshot": True, "fork": True},
        "ports": {
            "dec": {
                cell: {"input": past, "output": present, "role": role, "layer": layer}
                for cell, (past, present, layer, role) in cells.items()
            }
        },
    }


def _components() -> dict[str, Any]:
    return {
        "dec": {
            "implementation": {"kind": "onnx", "artifact": "decoder/model.onnx"},
            "ports": {
                "roles": {
                    "input_ids": "token_ids",
                    "attention_mask": "attention_mask",
                    "logits": "logits",
                }
            },
        },
        "sampler": {
            "implementation": {"kind": "onnx", "artifact": "policies/sampler.onnx"},
            "contract": {
                "id": "onnx-genai.token-sampler",
                "version": "2",
                "bindings": {
                    name: name
                    for name in (
                        *("logits", "active", "done", "temperature", "top_k", "top_p", "min_p"),
                        *("seed", "counter", "token", "next_counter"),
                    )
                },
                "parameters": {"batching": "per_row", "inactive_rows": "preserve"},
            },
            "application_overridable": True,
        },
        "end": {
            "implementation": {"kind": "onnx", "artifact": "policies/end.onnx"},
            "contract": {
                "id": "onnx-genai.termination-predicate",
                "version": "1",
                "bindings": {
                    name: name
                    for name in ("tokens", "eos_ids", "iteration", "max_iterations", "done")
                },
            },
        },
        "pick": {"implementation": {"kind": "onnx", "artifact": "policies/pick.onnx"}},
        "slot": {"implementation": {"kind": "onnx", "artifact": "policies/slot.onnx"}},
    }


def scattered() -> dict[str, Any]:
    """A static cache's workflow: one step, which the application repeats."""
    kv = contract("float32", "batch", STATIC.capacity or "c", STATIC.kv_heads * STATIC.head_dim)
    cells = {
        f"{half[0]}{layer}": (
            f"{half}_cache.{layer}",
            f"updated_{half}_cache.{layer}",
            layer,
            half,
        )
        for layer in range(STATIC.layers)
        for half in PORTS
    }
    document = workflow()
    flow = document["pipeline"]["workflow"]
    flow["manifest"]["capabilities"] = ["workflow_ssa", "typed_emit", "serving_service_contract"]
    row = contract("int64", "batch")
    flow["inputs"] = {
        "ids": _input(contract("int64", "batch", "sequence"), "prompt_tokens"),
        "positions": _input(contract("int64", "batch", "sequence"), source="application"),
        "cursor": _input(row, source="application"),
        "lengths": _input(row, source="application"),
        "room": _input(contract("int64", 1), source="literal", default=STATIC.capacity),
        "on": _input(contract("bool", "batch"), source="application"),
        **{f"init.{cell}": _input(kv, source="application") for cell in cells},
    }
    flow["outputs"] = {
        "logits": {
            "contract": contract("float32", "batch", "sequence", STATIC.vocab),
            "role": "tensor",
            "stage": "pre_adapter",
        }
    }
    flow["components"] = {"dec": flow["components"]["dec"]}
    flow["components"]["dec"]["ports"]["roles"] = {
        "input_ids": "token_ids",
        "position_ids": "position_ids",
        "logits": "logits",
    }
    flow["state"] = {
        **{
            cell: {
                **_own(kv, f"init.{cell}"),
                "management": "runtime",
                "release_boundary": "row",
                "service_group": "kv",
            }
            for cell in cells
        },
        "written": _own(row, "cursor"),
    }
    group = _group(cells)
    group |= {
        "layout": "bsh",
        "sequence_axis": 1,
        "logical_lengths": "written",
        "update": {
            "kind": "indexed_scatter",
            "write_indices": "written",
            "capacity": "room",
            "write_indices_ports": {"dec": "write_indices"},
            "kv_length_ports": {"dec": "nonpad_kv_seqlen"},
        },
    }
    flow["serving"] = {"active": "on", "done": "on", "state_service": {"groups": {"kv": group}}}
    flow["steps"] = [
        _invoke(
            "dec",
            {
                "input_ids": "ids",
                "position_ids": "positions",
                "write_indices": "cursor",
                "nonpad_kv_seqlen": "lengths",
                **{past: f"init.{cell}" for cell, (past, *_) in cells.items()},
            },
            {
                "logits": "out.logits",
                **{now: f"out.{cell}" for cell, (_, now, *_) in cells.items()},
            },
        ),
        {"kind": "emit", "value": "out.logits", "output": "logits", "mode": "replace"},
    ]
    del document["generation"]
    return document


def write_metadata(
    directory: Path,
    document: dict[str, Any],
    *,
    spec: TinySpec = SPEC,
    name: str = "inference_metadata.yaml",
    tokenizer: bool = True,
) -> Path:
    """Writes the package and returns its directory; the graphs are those that it names."""
    directory.mkdir(parents=True, exist_ok=True)
    is_workflow = "pipeline" in document
    where = directory / "decoder" if is_workflow else directory
    where.mkdir(exist_ok=True)
    if isinstance(spec, StaticSpec):
        onnx.save(make_static_decoder(spec), where / "model.onnx")
    else:
        save_decoder(spec, where)
    if is_workflow:
        policies = directory / "policies"
        policies.mkdir(exist_ok=True)
        onnx.save(_pick(), policies / "pick.onnx")
        onnx.save(_slot(), policies / "slot.onnx")
    if tokenizer:
        (directory / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    file = directory / name
    is_json = file.suffix == ".json"
    file.write_text(json.dumps(document) if is_json else yaml.safe_dump(document, sort_keys=False))
    return directory


def _pick() -> onnx.ModelProto:
    """The logits of each row's last token: [batch, sequence, vocab] to [batch, vocab]."""
    return _small(
        [helper.make_node("Gather", ["logits", "last_index"], ["last"], axis=1)],
        ("logits", TensorProto.FLOAT, ["b", "s", "v"]),
        ("last", TensorProto.FLOAT, ["b", "v"]),
        helper.make_tensor("last_index", TensorProto.INT64, [], [-1]),
    )


def _slot() -> onnx.ModelProto:
    """A token of each row as the next step's input: [batch] to [batch, 1]."""
    return _small(
        [helper.make_node("Unsqueeze", ["token", "axis"], ["slot"])],
        ("token", TensorProto.INT64, ["b"]),
        ("slot", TensorProto.INT64, ["b", 1]),
        helper.make_tensor("axis", TensorProto.INT64, [1], [1]),
    )


def scaled_pick() -> onnx.ModelProto:
    """Like the graph that picks logits, but it changes them, too."""
    return _small(
        [
            helper.make_node("Mul", ["logits", "factor"], ["scaled"]),
            helper.make_node("Gather", ["scaled", "last_index"], ["last"], axis=1),
        ],
        ("logits", TensorProto.FLOAT, ["b", "s", "v"]),
        ("last", TensorProto.FLOAT, ["b", "v"]),
        helper.make_tensor("last_index", TensorProto.INT64, [], [-1]),
        helper.make_tensor("factor", TensorProto.FLOAT, [], [2.0]),
    )


def _small(
    nodes: list[onnx.NodeProto],
    source: tuple[str, int, list[int | str]],
    result: tuple[str, int, list[int | str]],
    *constants: onnx.TensorProto,
) -> onnx.ModelProto:
    ports = [helper.make_tensor_value_info(*port) for port in (source, result)]
    graph = helper.make_graph(nodes, "policy", ports[:1], ports[1:], list(constants))
    opsets = [helper.make_opsetid("", 21)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)
