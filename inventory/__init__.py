"""What there is: testbeds (devices, ports, links, rates) and the racks that they stand for.

`files` loads a testbed file and `generators` makes regular fabrics; `routing` and `addressing`
derive routes, ideal times and addresses, and `unused_settings` what a trial sets to no effect;
`ansible` reads a rack from an Ansible inventory, `rack` is the result, and `cabling` compares it
with what devices report. `strictyaml` is the loader of every file that a user writes.
Must not import: collectors, traffic, tuners, orchestration.campaign, orchestration.backends.
"""

__all__ = [
    "addressing",
    "ansible",
    "ansible_schema",
    "ansible_text",
    "cabling",
    "files",
    "generators",
    "rack",
    "routing",
    "schema",
    "strictyaml",
    "summary",
    "testbed_json",
    "unused_settings",
    "variant",
    "yamltree",
]
