"""BPF objects: what is read out of them, and how they come about."""

import json
import shutil
import struct

import pytest

from collectors.bpf import compile as compiler
from orchestration.agent.bpf.congestion import read_control
from orchestration.agent.bpf.elf import ObjectError, Program, read_program
from orchestration.agent.linux_switch.flow_layout import ENTRY_BYTES, HEAD_BYTES, SLOT_BYTES
from orchestration.agent.linux_switch.paths import TABLES_AT
from orchestration.core.errors import NotReadyError

LOAD_64 = struct.pack("<BBhi", 0x18, 0x01, 0, 8) + struct.pack("<BBhi", 0, 0, 0, 0)
EXIT = struct.pack("<BBhi", 0x95, 0, 0, 0)
CODE = EXIT + LOAD_64 + EXIT
REL, RELA = 9, 4


def elf(*, code=CODE, relocation=(8, 1), kind=REL, addend=0, symbol=32, home=".bss", machine=247):
    """A relocatable object: `tc`, `.bss` of 64 bytes, a symbol `symbol` bytes into `home`."""
    names = ["", "tc", ".bss", ".rel", ".symtab", ".strtab"]
    strings = b"\0".join(name.encode() for name in names) + b"\0"
    where = names.index(home)
    symbols = bytes(24) + struct.pack("<IBBHQQ", 0, 0, 0, where, symbol, 8)
    entry = struct.pack("<QQ", relocation[0], 1 << 32 | relocation[1])
    if kind == RELA:
        entry += struct.pack("<q", addend)
    bodies = [b"", code, b"", entry, symbols, strings]
    kinds, sizes = [0, 1, 8, kind, 2, 3], [0, 0, 0, len(entry), 24, 0]
    data = bytearray(64)
    headers = b""
    for number, body in enumerate(bodies):
        name = strings.index(b"\0" + names[number].encode() + b"\0") + 1 if number else 0
        link, info = (4, 1) if number == 3 else (0, 0)
        length = 64 if number == 2 else len(body)
        headers += struct.pack(
            "<IIQQQQIIQQ", name, kinds[number], 0, 0, len(data), length, link, info, 8,
            sizes[number],
        )  # fmt: skip
        data += body
    data[:6] = b"\x7fELF\x02\x01"
    struct.pack_into("<H", data, 18, machine)
    struct.pack_into("<Q", data, 40, len(data))
    struct.pack_into("<HHH", data, 58, 64, len(bodies), 5)
    return bytes(data) + headers


@pytest.mark.parametrize(("kind", "offset"), [(REL, 40), (RELA, 36)])
def test_data_is_linked_by_map_and_offset(kind, offset):
    program = read_program(elf(kind=kind, addend=4))
    assert program.code == CODE
    assert program.data_bytes == 64
    assert program.references == ((8, offset),)
    linked = program.linked(7)
    assert linked[:8] == EXIT
    # register 1, an address in a map's value: the map's descriptor, then the offset
    assert struct.unpack("<BBhiBBhi", linked[8:24]) == (0x18, 0x21, 0, 7, 0, 0, 0, offset)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (b"", "not a little-endian BPF"),
        (elf(machine=62), "not a little-endian BPF"),
        (elf()[:200], "cut short"),
        (elf(code=b""), "whole number of instructions"),
        (elf(code=CODE + b"\0"), "whole number of instructions"),
        (elf(relocation=(8, 10)), "only data is linked"),
        (elf(relocation=(0, 1)), "only data is linked"),
        (elf(relocation=(800, 1)), "cut short"),
        (elf(symbol=60), "offset 68 of 64"),
        (elf(home="tc"), "refers to 'tc'"),
    ],
)
def test_other_files_are_refused(wrong, message):
    with pytest.raises(ObjectError, match=message):
        read_program(wrong)


def test_a_section_must_be_there():
    with pytest.raises(ObjectError, match="0 sections are called 'xdp'"):
        read_program(elf(), "xdp")


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "closloop" / "bpf"


@pytest.mark.skipif(not shutil.which(compiler.COMPILER), reason=f"no {compiler.COMPILER}")
def test_the_flow_table_compiles_once_for_each_size(cache):
    sizes = {}
    for bits in (6, 12):
        made = compiler.flow_table_object(bits)
        before = made.stat().st_mtime_ns
        assert compiler.flow_table_object(bits) == made
        assert made.stat().st_mtime_ns == before
        program = read_program(made.read_bytes())
        assert program.references
        sizes[bits] = program.data_bytes
    assert sizes == {bits: HEAD_BYTES + (SLOT_BYTES + ENTRY_BYTES << bits) for bits in (6, 12)}
    assert len(list(cache.iterdir())) == 2


def test_a_missing_compiler_is_named_with_its_package(cache, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NotReadyError, match="bpf-gcc") as caught:
        compiler.flow_table_object()
    assert caught.value.remedy == "apt-get install --no-install-recommends gcc-bpf"
    assert not cache.exists()


def test_what_the_compiler_says_is_passed_on(cache, monkeypatch, tmp_path):
    fake = tmp_path / compiler.COMPILER
    fake.write_text("#!/bin/sh\necho 'unknown option' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(NotReadyError, match="unknown option"):
        compiler.flow_table_object()
    assert list(cache.iterdir()) == []


@pytest.mark.skipif(not shutil.which(compiler.COMPILER), reason=f"no {compiler.COMPILER}")
@pytest.mark.parametrize("bits", [2, 16, 20])
def test_the_choice_of_paths_has_the_agents_layout_and_survives_the_way_to_it(bits):
    made = read_program(compiler.path_choice_object(bits).read_bytes(), maps=("prefixes",))
    # a time, and an entry of 16 bytes
    assert made.data_bytes == TABLES_AT + 24 * 2**bits
    assert {name for _, name in made.maps} == {"prefixes"}
    assert Program.from_json(json.loads(json.dumps(made.to_json()))) == made


@pytest.mark.skipif(not shutil.which(compiler.COMPILER), reason=f"no {compiler.COMPILER}")
def test_the_kernel_s_numbers_and_functions_are_put_into_a_congestion_control():
    programs = read_control(compiler.compiled(compiler.DCTCP).read_bytes())
    assert {"init", "ssthresh", "undo_cwnd", "cong_avoid", "cwnd_event"} < set(programs)
    program = programs["cong_avoid"]
    ((at, name),) = program.calls
    assert name == "tcp_reno_cong_avoid"
    linked = program.linked(0, kernel={name: 4711})
    # a call (0x85) of a function of the kernel (2), by its type's number
    assert linked[at] == 0x85
    assert linked[at + 1] >> 4 == 2
    assert struct.unpack_from("<i", linked, at + 4) == (4711,)
    program = programs["undo_cwnd"]
    kernel = {name: 1000 + number for number, (_, name) in enumerate(program.numbers)}
    linked = program.linked(0, kernel=kernel)
    for at, name in program.numbers:
        assert linked[at : at + 2] == bytes([0x18, program.code[at + 1]])
        assert struct.unpack_from("<i", linked, at + 4) == (kernel[name],)
    assert Program.from_json(json.loads(json.dumps(program.to_json()))) == program
    with pytest.raises(ObjectError, match=r"only data is linked"):
        read_program(compiler.compiled(compiler.DCTCP).read_bytes(), "struct_ops/cong_avoid")
