"""Model packages whose manifest, or what it names, is at fault."""

from __future__ import annotations

import json
import os
from pathlib import Path

from support.breaking import (
    Broken,
    cut,
    field,
    move_out,
    remove,
    without,
)
from tokenmill.package.load_options import LoadOptions

PACKAGE = "qwen2/model-package"
M = "manifest.json"
V = "components.decoder.variants"
FP32 = f"{V}.cpu-fp32"
HOME = "variants/cpu-fp32"


def _asset(root: Path) -> None:
    (root / "assets").mkdir()
    (root / HOME / "tokenizer.json").rename(root / "assets/tokenizer.json")
    field(M, "shared_assets", {"sha256:" + "0" * 64: "assets"})(root)


def _round(root: Path) -> None:
    os.symlink(root, root / HOME / "again")


def _manifest_inside(root: Path) -> None:
    manifest = json.loads((root / M).read_text())
    (root / HOME / M).write_text(json.dumps(manifest))


def _of_gpu(root: Path) -> None:
    for name in ("cpu-fp32", "cpu-int4"):
        field(M, f"{V}.{name}.ep", "CUDAExecutionProvider")(root)


MANIFESTS = [
    Broken(
        "manifest is cut off",
        PACKAGE,
        cut(M, 0.5),
        "manifest.json is not valid JSON",
    ),
    Broken(
        "components empty",
        PACKAGE,
        field(M, "components", {}),
        "components",
    ),
    Broken(
        "components two",
        PACKAGE,
        field(M, "components.encoder", {"variants": {}}),
        "components",
    ),
    Broken(
        "no variants",
        PACKAGE,
        field(M, V, {}),
        "components.decoder.variants",
    ),
    Broken(
        "another schema version",
        PACKAGE,
        field(M, "schema_version", "2.0"),
        "manifest.json: schema_version: it is '2.0'",
    ),
    Broken(
        "no version",
        PACKAGE,
        without(M, "schema_version"),
        "manifest.json: schema_version: it is missing",
    ),
    Broken(
        "layout installed",
        PACKAGE,
        field(M, "layout", "installed"),
        "layout",
    ),
    Broken(
        "field unknown",
        PACKAGE,
        field(M, "color", 1),
        "manifest.json: color",
    ),
    Broken(
        "variant field unknown",
        PACKAGE,
        field(M, f"{FP32}.gpu", 1),
        "components.decoder.variants.cpu-fp32.gpu",
    ),
    Broken(
        "device unknown",
        PACKAGE,
        field(M, f"{FP32}.device", "tpu"),
        "components.decoder.variants.cpu-fp32.device: 'tpu'",
    ),
    Broken(
        "a variant's directory leads up",
        PACKAGE,
        field(M, f"{FP32}.variant_directory", "../p/variants/cpu-fp32"),
        "manifest.json: components.decoder.variants.cpu-fp32.variant_directory",
    ),
    Broken(
        "a variant's directory is absolute",
        PACKAGE,
        field(M, f"{FP32}.variant_directory", "/etc"),
        "manifest.json: components.decoder.variants.cpu-fp32.variant_directory",
    ),
    Broken(
        "half a character in a directory's name",
        PACKAGE,
        field(M, f"{FP32}.variant_directory", "\ud800"),
        "manifest.json is not valid: a text holds '\\ud800', half of a surrogate pair",
    ),
    Broken(
        "a variant's directory is not there",
        PACKAGE,
        field(M, f"{FP32}.variant_directory", "variants/none"),
        "manifest.json: components.decoder.variants.cpu-fp32.variant_directory",
    ),
    Broken(
        "a variant is its own package",
        PACKAGE,
        field(M, f"{FP32}.variant_directory", "."),
        "manifest.json: components.decoder.variants.cpu-fp32.variant_directory",
    ),
    Broken(
        "a manifest inside a variant",
        PACKAGE,
        _manifest_inside,
        "manifest.json: components.decoder.variants.cpu-fp32.variant_directory",
    ),
    Broken(
        "a variant's directory links out",
        PACKAGE,
        move_out(HOME),
        "manifest.json: components.decoder.variants.cpu-fp32.variant_directory",
    ),
    Broken(
        "a variant's tokenizer links out",
        PACKAGE,
        move_out(f"{HOME}/tokenizer.json"),
        "tokenizer.json",
    ),
    Broken(
        "no provider",
        PACKAGE,
        _of_gpu,
        "cpu-fp32",
    ),
    Broken(
        "no such provider",
        PACKAGE,
        lambda _: None,
        "npu9",
        False,
        LoadOptions(providers=("npu9",)),
    ),
    Broken(
        "no such variant",
        PACKAGE,
        lambda _: None,
        "'gpu'",
        False,
        LoadOptions(variant="gpu"),
    ),
    Broken(
        "component leads up",
        PACKAGE,
        field(M, "components.decoder", "../component.json"),
        "manifest.json: components.decoder: '../component.json'",
    ),
    Broken(
        "component file is not there",
        PACKAGE,
        field(M, "components.decoder", "decoder"),
        "manifest.json: components.decoder",
    ),
    Broken(
        "component file is the manifest",
        PACKAGE,
        field(M, "components.decoder", "manifest.json"),
        "manifest.json: variants",
    ),
    Broken("a shared asset has another hash", PACKAGE, _asset, "assets"),
    Broken(
        "a shared asset leads up",
        PACKAGE,
        field(M, "shared_assets", {"sha256:" + "0" * 64: "../x"}),
        "manifest.json: shared_assets.sha256:0000000000000000000000000000000000000000000000000",
    ),
    Broken(
        "a variant lacks its graph",
        PACKAGE,
        remove(f"{HOME}/model.onnx"),
        "variants/cpu-fp32/model.onnx is not there",
    ),
]
