"""`explain`, `tools`, `config`: what this environment comes to, told without opening the store."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING

from app.entrypoints.escaping import fitted, one_line
from app.entrypoints.exits import DONE
from app.entrypoints.output import Line, Output
from app.session.values import display, encode

if TYPE_CHECKING:
    from app.tools.tool_set import ToolSet
    from containers.settings import Settings
    from containers.shown import Shown


def explain(settings: Settings, output: Output) -> int:
    """The ordered lists of the built services, and where the checkpoint stands in them."""
    from containers.application import build
    from containers.explain import explain_json, explain_text

    application = build(settings)
    if output.is_json:
        output.record(encode(explain_json(application)))
    else:
        output.lines(((one_line(line), ""),) for line in explain_text(application).splitlines())
    return DONE


def tools(settings: Settings, output: Output) -> int:
    """The enabled tools, as the model is told of them."""
    from containers.application import build
    from containers.tool_settings import BUILT_IN_TOOLS

    tool_set = build(settings).tools.tool_set
    asyncio.run(_open_and_close(tool_set))
    for spec in tool_set.specs:
        tool = tool_set.tools[spec.name]
        source = getattr(tool, "source", "builtin" if spec.name in BUILT_IN_TOOLS else "extra")
        if output.is_json:
            told = {"name": spec.name, "effects": tool.effects, "source": source, "description": spec.description}
            output.record(f'{encode(told)[:-1]},"schema":{spec.input_schema}}}')
            continue
        head = ((f"{spec.name:<16}", "bold"), (f" {tool.effects:<12}", ""), (f"{one_line(source):<9}", "cyan"))
        first_line = spec.description.strip().partition("\n")[0]
        output.lines([(*head, (f" {fitted(first_line, 90)}".rstrip(), ""))])
        output.lines([((f"{'':17}{fitted(spec.input_schema, output.width - 17)}", "dim"),)])
    return DONE


async def _open_and_close(tool_set: ToolSet) -> None:
    """Let the tools come in that are known only to those who have them."""
    try:
        await tool_set.open()
    finally:
        await tool_set.close()


def show_settings(settings: Settings, output: Output) -> int:
    """Every setting, its value in force and its source."""
    from containers.shown import settings_with_sources

    shown = settings_with_sources(settings)
    if output.is_json:
        for setting in shown:
            output.record(encode({"name": setting.name, "value": setting.value, "source": setting.source}))
    else:
        output.lines(_setting_lines(shown, output.width))
    return DONE


def _setting_lines(shown: list[Shown], width: int) -> Iterator[Line]:
    name_width = max(len(setting.name) for setting in shown)
    for setting in shown:
        value = fitted(display(setting.value), max(width - name_width - 40, 20))
        is_default = setting.source == "default"
        yield (
            (f"{one_line(setting.name):<{name_width}}  ", "dim" if is_default else "bold"),
            (f"{value:<36}  ", ""),
            (one_line(setting.source), "dim" if is_default else "cyan"),
        )


def check(settings: Settings, output: Output) -> int:
    """Build everything; what is wrong comes as the error it would be at any start."""
    from containers.application import build

    application = build(settings)
    if output.is_json:
        output.record(encode({"ok": True, "profile": settings.profile, "backend": application.persistence.kind}))
    else:
        output.lines([((f"the settings are good: profile {settings.profile}, {application.persistence.kind}", ""),)])
    return DONE
