"""What the scripts' programs call. It is uploaded as source and runs in the gateway's workers."""

import json
import os
import signal
import subprocess
import sys
import time

ARRAYS = ("int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64")


def add(a, b):
    return a + b


def same(value):
    return value


def size(data):
    return len(data)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def upper():
    return lambda text: text.upper()


def plain():
    return None, True, -3, 2.5, "téxt", [1, [2]], {"k": {"n": None}}


def mixed():
    return {"a": b"one", "b": [b"two", {"c": b""}]}


def big():
    return 10**30


def array(name):
    import numpy

    return numpy.arange(12, dtype=name).reshape(3, 4)[:, ::2]


def odd_arrays():
    import numpy
    import torch

    empty, scalar = numpy.zeros((0, 3), dtype="float16"), numpy.array(7, dtype="int64")
    return [empty, scalar, torch.ones(2, dtype=torch.bfloat16), torch.tensor([True, False])]


def write():
    os.makedirs("out/deep/empty")
    for name in ("out/a.bin", "out/deep/.b"):
        with open(name, "wb") as file:
            file.write(name.encode() * 3)
    return "out"


def name_of_file():
    return "out/a.bin"


def link():
    os.makedirs("linked")
    os.symlink("/etc/passwd", "linked/link")
    return "linked"


def say(text):
    print(text, flush=True)
    return text


def say_everywhere():
    print("out", flush=True)
    print("err", file=sys.stderr, flush=True)
    subprocess.run(["echo", "child"], check=True)


def gpus():
    return os.environ.get("CUDA_VISIBLE_DEVICES", "")


def mark():
    found = [getattr(json, "LEAK", 0), os.listdir(".")]
    json.LEAK = 1
    with open("left", "w"):
        pass
    return found


def sleep(seconds):
    time.sleep(seconds)


# Ways to fail.


def key_error():
    raise KeyError("none")


def differ():
    assert 1 == 2, "they differ"


def leave():
    sys.exit(3)


def end():
    os._exit(7)


def crash():
    os.kill(os.getpid(), signal.SIGSEGV)


def a_set():
    return {1, 2}


def not_a_number():
    return float("nan")


def an_object():
    return [object()]
