import shutil

import pytest
from onnx import TensorProto, helper

from support.tiny_onnx import TinySpec, save_decoder
from tokenmill.core.errors import CorruptFile, InvalidPackage
from tokenmill.package.external_data import check_external_data
from tokenmill.package.onnx_file import read_onnx


def check(path):
    check_external_data(read_onnx(path), path.parent)


def graph_with(directory, location, *, offset=None, length=None, dims=(4,)):
    """A graph with one float32 weight beside it."""
    tensor = TensorProto(name="w", data_type=1, dims=dims, data_location=1)
    for key, value in (("location", location), ("offset", offset), ("length", length)):
        if value is not None:
            tensor.external_data.add(key=key, value=str(value))
    graph = helper.make_graph([], "g", [], [], [tensor])
    path = directory / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_weights_that_are_whole_pass(tmp_path):
    check(save_decoder(TinySpec(external=True), tmp_path))


def test_the_file_may_lie_in_a_folder_of_the_package(tmp_path):
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "data").write_bytes(bytes(16))
    check(graph_with(tmp_path, "weights/data", offset=0, length=16))


def test_a_missing_file_names_tensor_and_file(tmp_path):
    with pytest.raises(CorruptFile, match=r"the weights 'w' of .*model\.onnx: .*/data: No such"):
        check(graph_with(tmp_path, "data"))


@pytest.mark.parametrize(("offset", "size"), [(0, 15), (1, 16), (None, 0), (10**15, 16)])
def test_a_file_that_is_too_short_names_both_ends(tmp_path, offset, size):
    (tmp_path / "data").write_bytes(bytes(size))
    end = (offset or 0) + 16
    with pytest.raises(CorruptFile, match=f"'w'.*end at byte {end} of 'data', which has {size}"):
        check(graph_with(tmp_path, "data", offset=offset))


@pytest.mark.parametrize("length", [0, 15, 17])
def test_a_length_that_does_not_fit_the_shape(tmp_path, length):
    (tmp_path / "data").write_bytes(bytes(64))
    with pytest.raises(CorruptFile, match=f"{length} bytes are declared where the shape asks for"):
        check(graph_with(tmp_path, "data", length=length))


@pytest.mark.parametrize("location", ["../data", "/etc/passwd", "a/../../data"])
def test_a_location_that_leads_out_is_refused(tmp_path, location):
    (tmp_path / "data").write_bytes(bytes(64))
    package = tmp_path / "package"
    package.mkdir()
    with pytest.raises(InvalidPackage, match=r"'w'.*leads out of"):
        check(graph_with(package, location))


def test_a_link_that_leads_out_is_refused(tmp_path):
    (tmp_path / "secret").write_bytes(bytes(64))
    package = tmp_path / "package"
    package.mkdir()
    (package / "data").symlink_to(tmp_path / "secret")
    with pytest.raises(InvalidPackage, match="'data' is a link out of"):
        check(graph_with(package, "data"))


@pytest.mark.parametrize("folder", [".", "cpu/int4"])
def test_links_into_a_hub_cache_are_what_the_hub_client_makes(tmp_path, folder):
    package = tmp_path / "models--a--b" / "snapshots" / "c0ffee" / folder
    blobs = tmp_path / "models--a--b" / "blobs"
    package.mkdir(parents=True)
    blobs.mkdir()
    save_decoder(TinySpec(external=True), package)
    shutil.move(package / "model.onnx.data", blobs / "1234")
    (package / "model.onnx.data").symlink_to(blobs / "1234")
    check(package / "model.onnx")


def test_an_address_in_memory_is_refused(tmp_path):
    (tmp_path / "*").mkdir()
    (tmp_path / "*" / "_ORT_MEM_ADDR_").mkdir()
    (tmp_path / "*" / "_ORT_MEM_ADDR_" / "*").write_bytes(bytes(64))
    with pytest.raises(InvalidPackage, match="an address in memory"):
        check(graph_with(tmp_path, "*/_ORT_MEM_ADDR_/*"))


@pytest.mark.parametrize("location", [None, ""])
def test_no_location_is_refused(tmp_path, location):
    with pytest.raises(InvalidPackage, match="without a location"):
        check(graph_with(tmp_path, location))


def test_a_directory_is_no_weights(tmp_path):
    (tmp_path / "data").mkdir()
    with pytest.raises(InvalidPackage, match="'data' is not a file"):
        check(graph_with(tmp_path, "data"))
