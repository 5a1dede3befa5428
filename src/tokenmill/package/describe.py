"""What `tokenmill show` tells of a package, as stable JSON and as text. See docs/show.md."""

from __future__ import annotations

from typing import Any

from tokenmill.package.model_package import Component, Ignored, ModelPackage


def describe(package: ModelPackage) -> dict[str, Any]:
    """Returns everything known about a package, in types that JSON has."""
    text, state = package.text, package.state
    return {
        "format": 1,
        "root": str(package.root),
        "form": package.form.value,
        "fingerprint": package.fingerprint,
        "precision": package.precision,
        "context_length": package.context_length,
        "vocab_size": package.vocab_size,
        "hidden_size": package.hidden_size,
        "components": {name: _component(part) for name, part in package.components.items()},
        "state": {
            "layout": state.layout.value,
            "bytes_per_token": state.bytes_per_token,
            "layers": [
                {
                    "layer": layer.layer,
                    "kind": "attention",
                    "num_kv_heads": layer.num_kv_heads,
                    "head_dim": layer.head_dim,
                    "dtype": layer.dtype,
                    "sliding_window": layer.sliding_window,
                }
                for layer in state.attention
            ],
        },
        "text": {
            "tokenizer": text.tokenizer_file.name if text.tokenizer_file else None,
            "chat_template": text.chat_template is not None,
            "chat_template_source": text.template_source or None,
            "named_templates": sorted(text.named_templates),
            "bos_token_id": text.bos_token_id,
            "add_bos": text.add_bos,
            "eos_token_ids": sorted(text.eos_token_ids),
            "pad_token_id": text.pad_token_id,
            "special_tokens": dict(text.special_tokens),
        },
        "defaults": {name: getattr(package.defaults, name) for name in package.defaults.__slots__},
        "provider_options": [
            {"provider": name, "options": dict(options)}
            for name, options in package.provider_options
        ],
        "provenance": dict(package.provenance),
        "ignored": [_ignored(item) for item in package.ignored],
    }


def _ignored(item: Ignored) -> dict[str, str]:
    return {"field": item.field, "value": item.value, "why": item.why}


def _component(component: Component) -> dict[str, Any]:
    return {
        "file": component.file.name,
        "weight_bytes": component.weight_bytes,
        "operators": dict(component.operators),
        "ports": [
            {
                "name": binding.port.name,
                "direction": "input" if binding.port.is_input else "output",
                "dtype": binding.port.dtype,
                "shape": list(binding.port.shape),
                "role": binding.role.value,
                "layer": binding.layer,
                "why": binding.why,
            }
            for binding in component.bindings
        ],
    }


def to_text(description: dict[str, Any]) -> str:
    """Returns the description as lines for people; ports of equal layers are folded into one."""
    d = description
    state, text = d["state"], d["text"]
    defaults = ", ".join(f"{k} {v}" for k, v in d["defaults"].items() if v is not None)
    layers = f"{len(state['layers'])} layers of attention, {state['layout']}"
    bos = f"BOS {text['bos_token_id']} {'added' if text['add_bos'] else 'not added'}"
    facts = {
        "form": d["form"],
        "precision": d["precision"],
        "context": f"{d['context_length']} tokens, vocabulary {d['vocab_size']}",
        "state": f"{layers}, {state['bytes_per_token']} bytes per token",
        "tokenizer": text["tokenizer"] or "none",
        "template": text["chat_template_source"] or "none",
        "ends at": f"{_ids(text['eos_token_ids'])}; {bos}",
        "defaults": defaults or "none: temperature 1",
        "fingerprint": d["fingerprint"],
    }
    lines = [d["root"], *(f"  {name:12} {value}" for name, value in facts.items())]
    for field, value in d["provenance"].items():
        lines.append(f"  from         {field}: {value}")
    for name, component in d["components"].items():
        megabytes = component["weight_bytes"] / 1e6
        lines.append(f"{name}: {component['file']}, {megabytes:.1f} MB of weights")
        operators = list(component["operators"].items())
        lines.append("  operators    " + ", ".join(f"{op} x {n}" for op, n in operators[:6]))
        lines.extend(_port_lines(component["ports"]))
    lines.extend(
        f"ignored: {item['field']} = {item['value']} ({item['why']})" for item in d["ignored"]
    )
    return "\n".join(lines)


def _port_lines(ports: list[dict[str, Any]]) -> list[str]:
    lines = []
    for port in ports:
        if port["layer"] not in (None, 0):
            continue
        count = sum(1 for other in ports if other["role"] == port["role"])
        name = port["name"] if port["layer"] is None else f"{port['name']} ... ({count} layers)"
        shape = ", ".join(str(size) for size in port["shape"])
        lines.append(
            f"  {port['direction']:6} {name}: {port['dtype']} [{shape}] "
            f"is {port['role']} ({port['why']})"
        )
    return lines


def _ids(ids: list[int]) -> str:
    return ", ".join(str(one) for one in ids) or "no token"
