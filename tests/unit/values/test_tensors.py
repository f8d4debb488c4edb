"""torch tensors of every dtype come back, ship only their own part, stay tied, and have a stand-in without torch."""

from __future__ import annotations

import builtins
import sys
from typing import Any

import numpy as np
import pytest
import torch

from kcoral_magic.values import tree
from kcoral_magic.values.buffers import NotSafe, Reader, Writer
from kcoral_magic.values.digest import digest
from kcoral_magic.values.tensors import ITEM_BYTES, TensorData

NUMPY_HAS_NOT = (
    "bfloat16",
    "complex32",
    "float8_e4m3fn",
    "float8_e5m2",
    "float8_e4m3fnuz",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
)


def written(value: Any) -> tuple[bytes, list[memoryview]]:
    writer = Writer()
    return tree.write(value, writer), writer.buffers


def travelled(value: Any) -> Any:
    head, buffers = written(value)
    return tree.read(head, Reader([bytearray(buffer) for buffer in buffers]))


def raw(tensor: Any) -> bytes:
    """The elements as bits: fp8 has no ==, and NaN is not itself."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return b"" if not plain.numel() else plain.reshape(-1).view(torch.uint8).numpy().tobytes()


def of_dtype(name: str, *shape: int) -> Any:
    size = int(np.prod(shape)) * ITEM_BYTES[name]
    bits = torch.arange(size, dtype=torch.uint8) % (2 if name == "bool" else 251)
    return bits.view(getattr(torch, name)).reshape(shape)


@pytest.fixture
def no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without torch: what was written before this still lies in its buffers."""
    real = builtins.__import__

    def blocked(name: str, *rest: Any) -> Any:
        if name == "torch":
            raise ImportError(name="torch")
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", blocked)


def test_every_dtype_that_torch_has_elements_for_is_in_the_table() -> None:
    """Bits and quantized types have no plain elements; two 4-bit floats share a byte."""
    every = {name for name in dir(torch) if isinstance(getattr(torch, name), torch.dtype)}
    every = {str(getattr(torch, name)).removeprefix("torch.") for name in every}
    missing = {
        name for name in every - ITEM_BYTES.keys() if not name.startswith(("q", "bits", "int", "uint", "float4"))
    }
    assert missing == set()
    assert all(getattr(torch, name).itemsize == size for name, size in ITEM_BYTES.items())


@pytest.mark.parametrize("name", ITEM_BYTES)
@pytest.mark.filterwarnings("ignore:ComplexHalf")  # torch's own remark, the first time one is made
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3)], ids=str)
def test_a_tensor_of_any_dtype_comes_back_bit_for_bit(name: str, shape: tuple[int, ...]) -> None:
    tensor = of_dtype(name, *shape)
    back = travelled(tensor)
    assert (back.dtype, back.shape, back.requires_grad) == (tensor.dtype, tensor.shape, False)
    assert raw(back) == raw(tensor)
    assert digest(back)[0] == digest(tensor)[0]


BASE = torch.arange(60.0).reshape(3, 4, 5)


@pytest.mark.parametrize(
    "tensor",
    [
        BASE[1],
        BASE[:, ::2],
        BASE.transpose(0, 2),
        BASE[..., -1],
        BASE[0, 0, 0],
        torch.ones(1).expand(7, 3),
        BASE.flip(0),
        BASE.to(memory_format=torch.preserve_format),
    ],
    ids=["part", "strided", "transposed", "column", "element", "expanded", "flipped", "whole"],
)
def test_a_view_ships_only_its_own_part(tensor: Any) -> None:
    head, buffers = written(tensor)
    assert sum(buffer.nbytes for buffer in buffers) == tensor.numel() * tensor.element_size()
    back = tree.read(head, Reader([bytearray(buffer) for buffer in buffers]))
    assert torch.equal(back, tensor)
    assert back.is_contiguous()


def test_contiguous_memory_is_copied_neither_when_written_nor_when_read() -> None:
    tensor = torch.zeros(1000)
    head, buffers = written(tensor)
    arrived = bytearray(buffers[0])
    back = tree.read(head, Reader([arrived]))
    tensor[0] = back[1] = 1.0
    assert bytes(buffers[0][:4]) == bytes(arrived[4:8]) == np.float32(1).tobytes()


def test_read_only_memory_is_copied_since_torch_knows_no_read_only_tensor() -> None:
    head, buffers = written(torch.zeros(4))
    arrived = bytes(buffers[0])
    tree.read(head, Reader([arrived]))[0] = 1.0
    assert arrived == bytes(16)


def test_crooked_memory_is_copied() -> None:
    head, buffers = written(torch.arange(4.0))
    back = tree.read(head, Reader([memoryview(bytearray(1) + bytes(buffers[0]))[1:]]))
    assert torch.equal(back * 2, torch.arange(4.0) * 2)


@pytest.mark.parametrize(
    "view",
    [torch.Tensor.conj, lambda t: t.conj().imag, torch.Tensor.adjoint, torch._neg_view],
    ids=["conj", "neg part", "adjoint", "neg"],
)
def test_conjugated_and_negated_views_arrive_resolved(view: Any) -> None:
    tensor = view(torch.tensor([[1 + 2j, 3 - 4j]]))
    assert tensor.is_conj() or tensor.is_neg()
    back = travelled(tensor)
    assert not back.is_conj()
    assert not back.is_neg()
    assert torch.equal(back, tensor.resolve_conj().resolve_neg())


@pytest.mark.parametrize(
    "made",
    [
        lambda: torch.zeros(2, requires_grad=True),
        lambda: torch.zeros(2, requires_grad=True) * 2,
        lambda: torch.nn.Parameter(torch.ones(2, 2)),
        lambda: torch.nn.Parameter(torch.ones(2), requires_grad=False),
        lambda: torch.nn.Parameter(torch.ones(2, dtype=torch.int64), requires_grad=False),
        lambda: torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
        lambda: torch.nn.Parameter(torch.empty(0)),
        lambda: torch.nn.Parameter(torch.ones(2, dtype=torch.complex64)),
    ],
)
def test_gradients_are_wanted_where_they_were_and_parameters_stay_parameters(made: Any) -> None:
    tensor = made()
    back = travelled(tensor)
    assert (type(back), back.requires_grad, back.is_leaf) == (type(tensor), tensor.requires_grad, True)
    assert torch.equal(back.detach(), tensor.detach())


def test_a_state_dict_comes_back_and_loads() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    back = travelled(dict(model.state_dict()))
    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    other.load_state_dict(back)
    assert all(torch.equal(other.state_dict()[name], item) for name, item in model.state_dict().items())


def test_a_models_own_state_dict_object_needs_no_pickle_or_is_left_to_it() -> None:
    state = torch.nn.Linear(2, 2).state_dict()
    try:
        back = travelled(state)
    except NotSafe:
        return
    assert back.keys() == state.keys()


def test_tied_tensors_of_one_value_stay_tied() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    back = travelled({"embed": weight, "head": [weight], "other": torch.nn.Parameter(torch.ones(2))})
    assert back["embed"] is back["head"][0]
    assert back["embed"] is not back["other"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.ones(2).to_sparse(),
        lambda: torch.empty(2, device="meta"),
        lambda: torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8),
    ],
    ids=["sparse", "meta", "quantized"],
)
@pytest.mark.filterwarnings("ignore")
def test_tensors_without_plain_elements_are_left_to_pickle(make: Any) -> None:
    tensor = make()
    with pytest.raises(NotSafe, match="tensor of dtype") as caught:
        written([tensor])
    assert caught.value.path == "[0]"


def test_digests_tell_dtype_shape_gradient_and_elements_apart() -> None:
    base = torch.zeros(2, 2)
    others = [
        base + 1,
        base.int(),
        base.reshape(4),
        base.clone().requires_grad_(),
        torch.nn.Parameter(base),
        base.numpy(),
    ]
    assert len({digest(tensor)[0] for tensor in (base, *others)}) == 7
    assert digest(torch.zeros(2, 4)[:, ::2])[0] == digest(base)[0]


@pytest.mark.parametrize("name", ITEM_BYTES)
def test_without_torch_a_tensor_is_an_array_or_its_raw_bytes(name: str, request: pytest.FixtureRequest) -> None:
    tensor = of_dtype(name, 2, 3)
    expected, (head, buffers) = raw(tensor), written([tensor])
    request.getfixturevalue("no_torch")
    (back,) = tree.read(head, Reader(buffers))
    if name in NUMPY_HAS_NOT:
        assert isinstance(back, TensorData)
        assert (back.dtype, back.shape, bytes(back.raw)) == (name, (2, 3), expected)
        assert "install torch" in repr(back)
    else:
        assert (str(back.dtype), back.shape, back.tobytes()) == (name, (2, 3), expected)


def test_without_torch_tied_and_0_d_and_empty_tensors_arrive_too(request: pytest.FixtureRequest) -> None:
    tied = torch.ones(2)
    head, buffers = written([tied, tied, torch.tensor(2.5), torch.empty(0, 3)])
    request.getfixturevalue("no_torch")
    one, other, number, empty = tree.read(head, Reader(buffers))
    assert one is other
    assert (number.shape, float(number), empty.shape) == ((), 2.5, (0, 3))


def test_a_torch_that_does_not_know_the_dtype_gives_its_raw_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    head, buffers = written(of_dtype("float8_e5m2", 3))
    monkeypatch.delattr(torch, "float8_e5m2")
    back = tree.read(head, Reader(buffers))
    assert (type(back), back.dtype, len(back.raw)) == (TensorData, "float8_e5m2", 3)


def test_writing_other_values_does_not_load_torch() -> None:
    """A client with torch installed pays its second of import only for a tensor."""
    import subprocess

    code = (
        "import sys; from kcoral_magic.values import tree; from kcoral_magic.values.buffers import Writer;"
        "tree.write({'a': [1, b'x', {2}]}, Writer()); print({'torch', 'numpy', 'pandas', 'pyarrow'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "set()\n"
