"""Renders a network as the C source of a policy: the model that `policy_rlcc.h` includes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from numpy.typing import NDArray

from tuners.nic.fixed_point import SPAN_Q16, TANH_STEPS, TANH_TABLE, quantised
from tuners.nic.networks import FIRST, ONE, SECOND, STATE, Architecture

_MLP = """\
CL_INLINE s32 rlcc_infer(const s32 *window)
{
	s32 inputs[2 * RLCC_HISTORY], hidden[HIDDEN];

	rlcc_inputs(window, inputs, RLCC_HISTORY);
	RLCC_UNROLL
	for (u32 i = 0; i < HIDDEN; i++) {
		s32 sum = rlcc_neuron(inputs, 2 * RLCC_HISTORY, &hidden_weight[i], HIDDEN, 0);

		hidden[i] = rlcc_positive(sum);
	}
	return rlcc_action(rlcc_neuron(hidden, HIDDEN, out_weight, 1, 0));
}
"""
_LSTM = """\
CL_INLINE s32 rlcc_infer(const s32 *window, s32 *memory)
{
	s32 inputs[2], x[SECOND + STATE], gates[4 * STATE];
	s32 *first = gates; /* which come later: a BPF program's variables have 512 bytes */

	rlcc_inputs(window, inputs, 1);
	RLCC_UNROLL
	for (u32 i = 0; i < FIRST; i++) {
		s32 sum = rlcc_neuron(inputs, 2, &first_weight[i], FIRST, first_bias[i]);

		first[i] = rlcc_positive(sum);
	}
	RLCC_UNROLL
	for (u32 i = 0; i < SECOND; i++) {
		s32 sum = rlcc_neuron(first, FIRST, &second_weight[i], SECOND, second_bias[i]);

		x[i] = rlcc_positive(sum);
	}
	for (u32 i = 0; i < STATE; i++)
		x[SECOND + i] = memory[i];
	RLCC_UNROLL
	for (u32 i = 0; i < 4 * STATE; i++)
		gates[i] = rlcc_neuron(x, SECOND + STATE, &lstm_weight[i], 4 * STATE, lstm_bias[i]);
	for (u32 i = 0; i < STATE; i++) {
		s32 *kept = &memory[STATE + i];
		s64 keep = (s64)rlcc_sigmoid(gates[STATE + i]) * *kept >> 16;
		s64 take = (s64)rlcc_sigmoid(gates[i]) * rlcc_tanh(gates[2 * STATE + i]) >> 16;

		*kept = rlcc_within(keep + take, RLCC_MOST_MEMORY);
		memory[i] = (s64)rlcc_sigmoid(gates[3 * STATE + i]) * rlcc_tanh(*kept) >> 16;
	}
	return rlcc_action(rlcc_neuron(memory, STATE, out_weight, 1, out_bias[0]));
}
"""


def network_source(
    architecture: Architecture, arrays: Mapping[str, NDArray[Any]], name: str, about: str
) -> str:
    """Return policy `name` (a C identifier) in C. `about` says where the network is from."""
    if architecture.kind == "mlp":
        sizes, infer = {"HIDDEN": architecture.hidden}, _MLP
    else:
        sizes, infer = {"FIRST": FIRST, "SECOND": SECOND, "STATE": STATE}, _LSTM
    macros = {
        "RLCC_HISTORY": architecture.history,
        "RLCC_LEAST_ACTION": ONE - SPAN_Q16,
        "RLCC_MOST_ACTION": ONE + SPAN_Q16,
        "RLCC_SPAN": SPAN_Q16,
        **({"RLCC_MEMORY_WORDS": 2 * STATE} if architecture.kind == "lstm" else {}),
        **sizes,
    }
    tables = [
        _array("s16", array.replace(".", "_"), values.ravel().tolist(), "RLCC_TABLE")
        for array, values in quantised(architecture, arrays).items()
    ]
    table_list = " ".join(f"X({array.replace('.', '_')})" for array in architecture.shapes)
    return "\n".join(
        [
            "// SPDX-License-Identifier: GPL-2.0-only",
            f"/* RL-CC's {architecture.kind.upper()}. {about} */",
            *(f"#define {key} {value}" for key, value in macros.items()),
            '#include "policy_rlcc.h"',
            '#include "policy_rlcc_network.h"',
            "",
            *tables,
            f"#define RLCC_TABLES(X) {table_list}\n",
            infer,
            f"CL_POLICY({name}, RLCC_PARAMETERS, 0);\n",
        ]
    )


def weights_bytes(architecture: Architecture, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Return the weights as in the tables of `network_source`: little-endian 16-bit integers."""
    return b"".join(
        values.astype("<i2").tobytes() for values in quantised(architecture, arrays).values()
    )


def tanh_source() -> str:
    """Return the content of policy_rlcc_tanh.h."""
    return "\n".join(
        [
            "/* SPDX-License-Identifier: GPL-2.0-only */",
            "/* tanh in 2^-16 at 0, 1/32, 2/32, ... 8; written by tuners/nic/sources.py. */",
            f"#define RLCC_TANH_STEPS {TANH_STEPS}",
            _array("s32", "rlcc_tanh_table", TANH_TABLE.tolist()),
        ]
    )


def _array(kind: str, name: str, values: list[int], storage: str = "static const") -> str:
    rows = (values[at : at + 12] for at in range(0, len(values), 12))
    body = "\n".join(f"\t{_joined(row)}," for row in rows)
    return f"{storage} {kind} {name}[] = {{\n{body}\n}};\n"


def _joined(row: Iterable[int]) -> str:
    return ", ".join(str(value) for value in row)
