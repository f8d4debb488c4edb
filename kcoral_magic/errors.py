"""Every error of the project, each with one stable wire code.

    KCoralError
    ├── CallerError                 the request was wrong; doing it differently helps
    │   ├── UsageError              usage               an option or name that does not exist
    │   ├── NotConnectedError       not_connected       no gateway is configured or installed
    │   ├── AuthenticationError     unauthenticated     no credential, or one that is not valid
    │   ├── PlacementInfeasible     infeasible          more GPUs than the gateway has
    │   ├── SessionShapeError       session_shape       a running session cannot change its shape
    │   ├── CapacityExceeded        capacity            more sessions or waiting cells than one may have
    │   ├── NotFoundError           not_found           no such session or execution of yours
    │   ├── ValueRefused            value               a value that cannot travel, or bytes that are no value
    │   ├── ProgramInvalid          program             a KCoral program that breaks a rule of its language
    │   ├── ReportInvalid           report              a file that is no report, or a damaged one
    │   └── ProtocolError           protocol            bytes or messages against PROTOCOL.md
    ├── ToolFailed                  tool                a profiler or checker could not do its work; says the remedy
    ├── FaultsFound                 faults              a checker found faults in the kernels of a cell
    ├── ExpectationFailed           expectation         a measure did not hold what --expect or --check said
    ├── RemoteError                 remote              user code raised; its type is not known here
    ├── ExitStatusError             exit_status         a tool or program ended with another status than 0
    └── SystemFault                 the system's fault
        ├── QueueTimeout            queue_timeout       no GPUs within --queue-timeout
        ├── ExecutionTimeout        timeout             the cell ran longer than --timeout
        ├── ExecutionLost           lost                worker, host or gateway went away
        ├── GatewayUnreachable      unreachable         nothing answers at the address
        ├── SandboxUnavailable      no_sandbox          the asked isolation does not hold here
        └── InternalError           internal            a fault of ours; details are in the gateway's log

A message says what was expected, what came, and what to do.
"""

from __future__ import annotations

from typing import ClassVar


class KCoralError(Exception):
    """Base of all errors of kcoral-magic; ``code`` is stable across releases."""

    code: ClassVar[str] = "error"

    def _render_traceback_(self) -> list[str]:
        """IPython's protocol: our own frames say nothing to a user, the message has to."""
        return [f"{type(self).__name__}: {self}"]


class CallerError(KCoralError):
    """The request was wrong; doing it differently helps."""


class UsageError(CallerError):
    """An option, a name or a value that does not exist."""

    code = "usage"


class NotConnectedError(CallerError):
    """No gateway is configured, and none can be started here."""

    code = "not_connected"


class AuthenticationError(CallerError):
    """The gateway does not accept the credential, or none was given."""

    code = "unauthenticated"


class PlacementInfeasible(CallerError):
    """The gateway has fewer GPUs than asked for."""

    code = "infeasible"


class SessionShapeError(CallerError):
    """A session that holds state cannot change its GPUs."""

    code = "session_shape"


class CapacityExceeded(CallerError):
    """One principal may not have more sessions, or waiting cells, than this."""

    code = "capacity"


class NotFoundError(CallerError):
    """No session or execution of that name belongs to this principal."""

    code = "not_found"


class ValueRefused(CallerError):
    """A value that cannot travel as asked, or bytes from elsewhere that describe none."""

    code = "value"


class ProgramInvalid(CallerError):
    """A KCoral program that breaks a rule: nothing of it ran."""

    code = "program"


class ReportInvalid(CallerError):
    """A file that is no report of that tool, or one that was cut or damaged."""

    code = "report"


class ProtocolError(CallerError):
    """A frame or message that PROTOCOL.md does not allow."""

    code = "protocol"


class ToolFailed(KCoralError):
    """A tool could not do its work where the cell ran.

    Attributes:
        reason: A stable word: counters_forbidden, no_kernels, no_cuda, missing, timeout, …
    """

    code = "tool"

    def __init__(self, what: str, reason: str = "") -> None:
        super().__init__(what)
        self.reason = reason


class FaultsFound(KCoralError):
    """A checker found faults; what it found was shown."""

    code = "faults"


class ExpectationFailed(KCoralError):
    """What was measured is not what ``--expect`` demands; the report was shown and kept."""

    code = "expectation"


class RemoteError(KCoralError):
    """User code raised an exception whose type the caller has not loaded.

    Attributes:
        ename: The remote type's name.
        evalue: The remote ``str(exception)``.
    """

    code = "remote"

    def __init__(self, ename: str, evalue: str) -> None:
        super().__init__(f"{ename}: {evalue}" if evalue else ename)
        self.ename = ename
        self.evalue = evalue


class ExitStatusError(KCoralError):
    """A program ended with another status than 0.

    Attributes:
        status: 128 + N after signal N, 124 after the time limit, 127 if there was no such program.
    """

    code = "exit_status"

    def __init__(self, what: str, status: int = 1) -> None:
        super().__init__(what)
        self.status = status


class SystemFault(KCoralError):
    """Not the caller's fault and not the remote code's."""


class QueueTimeout(SystemFault):
    """The GPUs were not free within ``--queue-timeout``."""

    code = "queue_timeout"


class ExecutionTimeout(SystemFault):
    """The cell ran longer than ``--timeout``; its output was kept."""

    code = "timeout"


class ExecutionLost(SystemFault):
    """The worker, its host or the gateway went away in the middle of a cell."""

    code = "lost"


class GatewayUnreachable(SystemFault):
    """Nothing answers at the gateway's address."""

    code = "unreachable"


class SandboxUnavailable(SystemFault):
    """The isolation that was asked for does not hold on this machine."""

    code = "no_sandbox"


class InternalError(SystemFault):
    """A fault of ours. Details stay in the gateway's log, under the execution's id."""

    code = "internal"


def _leaves(base: type[KCoralError]) -> list[type[KCoralError]]:
    below = [leaf for child in base.__subclasses__() for leaf in _leaves(child)]
    return below or [base]


BY_CODE: dict[str, type[KCoralError]] = {leaf.code: leaf for leaf in _leaves(KCoralError)}


def from_code(code: str, message: str) -> KCoralError:
    """The exception for a wire code; a code of a newer peer becomes a plain ``KCoralError``."""
    cls = BY_CODE.get(code, KCoralError)
    if cls is RemoteError:
        return RemoteError(message, "")
    return cls(message)
