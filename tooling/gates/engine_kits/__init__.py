"""The engine's own sanity kits, which travel in its wheel, run inside the booted container."""

from tooling.gates.engine_kits.gate import GATE, Kit, engine_kits_gate, kits_of

__all__ = ["GATE", "Kit", "engine_kits_gate", "kits_of"]
