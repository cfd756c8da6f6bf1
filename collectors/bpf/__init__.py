"""The BPF programs that devices run for closloop: their C sources, compiled with clang and cached.

`compile` compiles a source and keeps the object file; `policy` describes the layout that congestion
controls as BPF programs share with the kernel module.
Must not import: collectors.readers, collectors.sinks, tuners.
"""

__all__ = ["compile", "policy"]
