import pytest

from support.tiny_plain import STATIC, PlainSpec, PortNames, renamed, write_plain
from tokenmill.core.errors import InvalidOption, InvalidPackage
from tokenmill.package.load import load_package
from tokenmill.package.load_options import LoadOptions
from tokenmill.package.model_package import PackageForm, Role, StateLayout

TABLE = PlainSpec(positions="table", context=96)


CHOOSE = LoadOptions()


def load(directory, spec=TABLE, options=CHOOSE, **documents):
    return load_package(write_plain(directory, spec, config=False, **documents), options)


def test_everything_comes_from_the_graph(tmp_path):
    package = load(tmp_path, renamed(TABLE))
    assert package.form is PackageForm.BARE
    assert package.state.layout is StateLayout.PLAIN
    assert (package.context_length, package.vocab_size) == (96, 64)
    assert package.decoder.port(Role.INPUT_IDS).name == "a"
    assert package.text.tokenizer_file == tmp_path / "tokenizer.json"
    assert package.choices == ()


def test_without_an_end_of_text_that_is_said(tmp_path):
    (note,) = load(tmp_path).ignored
    assert (note.field, note.value) == ("eos_token_id", "none")


def test_the_tokenizer_files_tell_the_end_of_a_text(tmp_path):
    package = load(tmp_path, tokenizer_config={"eos_token": "</s>"})
    assert (package.text.eos_token_ids, package.ignored) == ({2}, ())


def test_a_learned_table_of_positions_is_the_context(tmp_path):
    assert load(tmp_path, PlainSpec(positions="learned", context=77)).context_length == 77


def test_positions_that_the_graph_counts_itself_index_a_table_too(tmp_path):
    spec = PlainSpec(positions="table", context=96, names=PortNames(position_ids=None))
    assert load(tmp_path, spec).context_length == 96


def test_a_static_cache_is_the_context(tmp_path):
    package = load(tmp_path, STATIC)
    assert (package.context_length, package.state.capacity) == (32, 32)


def test_the_tokenizer_may_tell_how_long_a_text_may_be(tmp_path):
    package = load(tmp_path, PlainSpec(), tokenizer_config={"model_max_length": 50})
    assert package.context_length == 50


@pytest.mark.parametrize("documents", [{}, {"tokenizer_config": {"model_max_length": 10**30}}])
def test_a_context_that_nothing_tells_is_an_error_that_names_what_is_missing(tmp_path, documents):
    with pytest.raises(InvalidPackage) as caught:
        load(tmp_path, PlainSpec(), **documents)
    assert "nothing tells how long a text model.onnx may see" in str(caught.value)
    assert "tokenizer_config.json model_max_length" in str(caught.value)


def test_sizes_that_the_graph_does_not_tell_are_an_error(tmp_path):
    with pytest.raises(InvalidPackage, match="nothing tells num_kv_heads"):
        load(tmp_path, PlainSpec(positions="table", symbolic_heads=True))


def test_of_several_graphs_one_must_be_chosen(tmp_path):
    write_plain(tmp_path, TABLE, config=False, file="small.onnx")
    write_plain(tmp_path, TABLE, config=False, file="large.onnx")
    with pytest.raises(InvalidPackage) as caught:
        load_package(tmp_path)
    assert "holds 2 graphs: large.onnx, small.onnx. Choose one with --variant" in str(caught.value)
    package = load_package(tmp_path, LoadOptions(variant="small"))
    assert package.decoder.file.name == "small.onnx"
    assert package.choices[0].others == {"large.onnx": "another graph"}


def test_a_variant_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(InvalidOption, match=r"there are model\.onnx"):
        load(tmp_path, options=LoadOptions(variant="q4"))


def test_a_graph_in_the_folder_onnx_is_found(tmp_path):
    package = load(tmp_path, file="onnx/model.onnx")
    assert package.decoder.file == tmp_path / "onnx" / "model.onnx"
