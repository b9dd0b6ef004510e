"""JIT gate: does an engine that says it is ready still compile, and does a second boot compile again?"""

from tooling.gates.jit.records import CacheChange, CompilerRun, JitObservation, Phase
from tooling.gates.jit.rules import jit_gate
from tooling.gates.jit.watch import JitWatch, cache_folders

__all__ = ["CacheChange", "CompilerRun", "JitObservation", "JitWatch", "Phase", "cache_folders", "jit_gate"]
