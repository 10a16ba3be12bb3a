# SPDX-License-Identifier: LGPL-2.1-or-later
"""The XML in dbus/, and what a live object says of itself, in a form that can be compared."""

import xml.etree.ElementTree as ElementTree
from pathlib import Path

XML = Path(__file__).resolve().parent.parent.parent / "dbus"
EMITS = "org.freedesktop.DBus.Property.EmitsChangedSignal"


def annotations(element):
    found = {a.get("name"): a.get("value") for a in element.findall("annotation")}
    if element.tag == "property":
        found.setdefault(EMITS, "true")
    return found


def arguments(element, default):
    return [(a.get("name"), a.get("type"), a.get("direction", default)) for a in element.findall("arg")]


def normalise(interface):
    """Everything that a client could see: member → what it is. Order of members says nothing."""
    members = {}
    for element in interface:
        if element.tag is ElementTree.Comment:
            continue
        name = element.get("name")
        key = (element.tag, name)
        assert key not in members, f"{key} is there twice"
        if element.tag == "method":
            members[key] = (arguments(element, "in"), annotations(element))
        elif element.tag == "signal":
            members[key] = (arguments(element, "out"), annotations(element))
        elif element.tag == "property":
            members[key] = (element.get("type"), element.get("access"), annotations(element))
        else:
            members[key] = annotations(element) or element.get("value")
    return members


def contract():
    """All interfaces that are written down: name → normalised."""
    found = {}
    for path in XML.glob("*.xml"):
        for interface in ElementTree.parse(path).getroot().findall("interface"):
            assert interface.get("name") == path.stem
            found[interface.get("name")] = normalise(interface)
    return found


def methods():
    """(interface, method, arguments in) of every method that is written down."""
    return [(interface, name, [(n, t) for n, t, direction in members[kind, name][0] if direction == "in"])
            for interface, members in sorted(contract().items())
            for kind, name in sorted(members) if kind == "method"]


def of_live(xml):
    """Our interfaces in an introspection reply, and all names."""
    interfaces = ElementTree.fromstring(xml).findall("interface")
    ours = {i.get("name"): normalise(i) for i in interfaces if i.get("name").startswith("org.sandboxd1.")}
    return ours, {i.get("name") for i in interfaces}
