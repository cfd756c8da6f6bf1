"""Each package's `__init__` says what it is for, what it offers, and what it must not import.

`__all__` has modules and names: what other packages may import. The docstring's last sentence,
`Must not import: …`, has packages of ours and libraries.
"""

import ast
import re

import pytest
from imports import ROOT, Sources

MAX_LINES = 20
NO_OTHER = "any other package of ours"


@pytest.fixture(scope="module")
def sources():
    return Sources(ROOT)


def packages(sources):
    return [module for module in sources.paths if sources.is_front_door(module)]


def offered(sources, package):
    for node in sources.tree(package).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            return ast.literal_eval(node.value)
    return None


def forbidden(sources, package):
    text = " ".join((ast.get_docstring(sources.tree(package)) or "").split())
    named = re.search(r"Must not import: (.+)\.$", text)
    return named[1].split(", ") if named else []


def is_within(module, package):
    return module == package or module.startswith(f"{package}.")


def past_front_doors(imports, offers):
    """Yield each import of what the front door of a package does not offer."""
    for one in imports:
        parts = one.imported.split(".")
        for count in range(1, len(parts)):
            package, inner = ".".join(parts[:count]), parts[count]
            if is_within(one.importer, package) or package not in offers:
                continue
            if inner not in offers[package]:
                yield f"{one}: {package} does not offer {inner}: see its __init__"


def test_every_package_has_a_front_door(sources):
    lacking = []
    for package in packages(sources):
        doc = ast.get_docstring(sources.tree(package)) or ""
        if not doc or len(doc.splitlines()) > MAX_LINES:
            lacking.append(f"{package}: say what it is for, in about ten lines")
        if offered(sources, package) is None:
            lacking.append(f"{package}: say what it offers, in __all__")
        if not forbidden(sources, package):
            lacking.append(f"{package}: end the docstring with `Must not import: …`")
    assert not lacking, "\n".join(lacking)


def test_folders_of_python_are_packages_with_front_doors(sources):
    folders = {path.parent for path in sources.paths.values()}
    without = sorted(
        folder.relative_to(ROOT).as_posix()
        for folder in folders
        if not (folder / "__init__.py").is_file() and "playbooks" not in folder.parts
    )
    assert not without


def test_nobody_imports_past_a_front_door(sources):
    offers = {package: offered(sources, package) or [] for package in packages(sources)}
    assert len(sources.imports) > 3000
    past = list(past_front_doors(sources.imports, offers))
    assert not past, "\n".join(past)


def test_what_is_offered_is_there(sources):
    wrong = [
        f"{package}: __all__ has {name!r}, and there is no such module or name"
        for package in packages(sources)
        for name in offered(sources, package) or []
        if f"{package}.{name}" not in sources.paths
        and not sources.defines(package, name)
        and not sources.defines(package, "__getattr__")
    ]
    assert not wrong, "\n".join(wrong)


def test_what_is_offered_is_used(sources):
    """A module that only its own package imports is no part of what that offers."""
    users = {}
    for one in sources.imports:
        users.setdefault(one.imported, set()).add(one.importer)
    unused = [
        f"{package}: nobody outside imports {name}: take it out of __all__"
        for package in packages(sources)
        for name in offered(sources, package) or []
        if f"{package}.{name}" in sources.paths
        and not any(
            not is_within(importer, package)
            for module, importers in users.items()
            if is_within(module, f"{package}.{name}")
            for importer in importers
        )
    ]
    assert not unused, "\n".join(unused)


def test_a_package_imports_nothing_that_its_front_door_rules_out(sources):
    broken = []
    libraries = {
        module: set(re.findall(r"^ *(?:import|from) (\w+)", path.read_text(), re.MULTILINE))
        for module, path in sources.paths.items()
    }
    for package in packages(sources):
        for name in forbidden(sources, package):
            if name != NO_OTHER and name.split(".")[0] in sources.paths:
                assert name in sources.paths, f"{package}: there is no package {name}"
            for module in sources.paths:
                if is_within(module, package) and name in libraries[module]:
                    broken.append(f"{module} imports {name}")
            broken += [
                f"{one}: {package} must not import {name}"
                for one in sources.imports
                if is_within(one.importer, package)
                and not is_within(one.imported, package)
                and (name == NO_OTHER or is_within(one.imported, name))
                and not is_within(one.importer, name)
            ]
    assert not broken, "\n".join(broken)


def test_an_import_past_a_front_door_is_found(sources):
    offers = {package: offered(sources, package) or [] for package in packages(sources)}
    offers["orchestration.results"] = []
    past = list(past_front_doors(sources.imports, offers))
    assert len(past) > 20
    assert all("orchestration.results does not offer" in line for line in past)
