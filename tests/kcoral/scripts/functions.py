"""``@client.function()``: KCoral reads the function's source from this file."""

from __future__ import annotations

import numpy as np
from kcoral import Client, KCoralError, RemoteExecutionError
from support import main, raised


def arguments_and_results_travel(client: Client) -> None:
    @client.function(cpu_only=True)
    def describe(a, b=2, *rest, key="k", **more):
        return {"sum": a + b, "rest": list(rest), "key": key, "more": more}

    assert describe(1) == {"sum": 3, "rest": [], "key": "k", "more": {}}  # a plain call stays here
    assert describe.remote(1) == describe(1)
    assert describe.remote(1, 5, 6, 7, key=None, x=[{"$ref": "no"}]) == describe(
        1, 5, 6, 7, key=None, x=[{"$ref": "no"}]
    )


def arrays_and_bytes_travel(client: Client) -> None:
    @client.function()
    def scale(array, factor, raw):
        return [array * factor, raw[::-1]]

    array = np.linspace(0, 1, 1000).reshape(10, 100)
    scaled, raw = scale.remote(array, 3, b"abc")
    assert np.array_equal(np.asarray(scaled), array * 3)
    assert raw == b"cba"


def an_exception_is_kcoral_s_and_carries_the_result(client: Client) -> None:
    @client.function(cpu_only=True)
    def divide(a, b):
        print("dividing", flush=True)
        return a / b

    assert divide.remote(6, 3) == 2.0
    error = raised(RemoteExecutionError, divide.remote, 1, 0)
    assert "engine: ZeroDivisionError: division by zero" in str(error)
    assert error.result.stdout == "dividing\n"
    assert error.result.error["instruction_id"] == "output"
    assert "return a / b" in error.result.error["traceback"]


def the_whole_result_can_be_had(client: Client) -> None:
    @client.function(cpu_only=True, output_limit_bytes=4)
    def say(text):
        print(text)
        return text

    result = say.execute("hello")
    assert result.completed
    assert (result["output"], result.stdout, result.stdout_truncated) == ("hello", "hell", True)


def a_call_has_its_time_limit(client: Client) -> None:
    @client.function(cpu_only=True, timeout=1)
    def sleep():
        import time

        time.sleep(60)

    error = raised(KCoralError, sleep.remote)
    assert (error.status_code, error.kind) == (504, "timeout")


def what_cannot_travel_back_says_its_type(client: Client) -> None:
    @client.function(cpu_only=True)
    def made():
        return {1, 2}

    error = raised(RemoteExecutionError, made.remote)
    assert "serialization" in str(error)
    assert "set" in str(error)


if __name__ == "__main__":
    main(globals())
