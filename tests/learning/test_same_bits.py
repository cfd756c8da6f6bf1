"""Decisions have the same bits on every x86-64 machine: variables stand in for other CPUs."""




# Each is one kind of CPU: OpenBLAS' kernels, NumPy's loops and the C library's versions for it.
NO_AVX = "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX2 FMA3"
OTHERS = [
    {
        "OPENBLAS_CORETYPE": "Prescott",
        "NPY_DISABLE_CPU_FEATURES": NO_AVX,
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA,-AVX",
    },
    {"OPENBLAS_CORETYPE": "Haswell"},
    {"OPENBLAS_CORETYPE": "SkylakeX"},
]
DECIDE = """
import hashlib
import numpy as np
from inventory.files import load_testbed
from orchestration.model.trial import TunerSpec
"""
