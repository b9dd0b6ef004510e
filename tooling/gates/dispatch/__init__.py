"""Dispatch gate: do the kernels that really run belong to what the stack requests?"""

from tooling.gates.dispatch.gate import dispatch_gate
from tooling.gates.dispatch.profile import profile_engine
from tooling.gates.dispatch.trace import Kernel, Trace, parse_trace, read_traces

__all__ = ["Kernel", "Trace", "dispatch_gate", "parse_trace", "profile_engine", "read_traces"]
