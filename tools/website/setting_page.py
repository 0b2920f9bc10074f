"""The page of settings: each row of the table of tfdist/config.py, and the variables of Horovod that have no effect."""

from __future__ import annotations

from typing import Any

HEAD = """# Every setting

Made from the table in `tfdist/config.py`, the only file that reads settings from environment variables. A `TFDIST_`
variable wins over its `HOROVOD_` name, and an empty one counts as unset. `tfdist doctor --env` prints the current
values, `tfdistrun --help` the options that set some of them. A value that cannot be used is an error that names the
variable; a misspelled name is reported.
"""
IDLE = """
## Variables of Horovod that have no effect

Each is reported with its reason when a job starts with it.

| variable | why |
| --- | --- |
"""
# As a path in place of a home folder, whosever builds the page.
_HOME = {"XDG_CACHE_HOME": "/~/.cache"}


def page(config: Any) -> str:
    """Takes the module `tfdist.config`."""
    sections = []
    for setting in config.SETTINGS:
        default = setting.default(_HOME) if callable(setting.default) else setting.default
        facts = [f"Default: {shown(default)}", f"accepts: {accepts(setting.parse)}"]
        facts += [f"Horovod's name: `{setting.horovod_variable}`"] if setting.horovod_variable else []
        meaning = setting.meaning[0].upper() + setting.meaning[1:]
        title = setting.variable.replace("_", "\\_<wbr>")  # a narrow page breaks it there
        sections.append(f"\n## {title}\n\n{meaning}.\n\n{'; '.join(facts)}.\n")
    idle = [f"| `{name}` | {why} |" for name, why in config.IDLE_OF_HOROVOD.items()]
    return HEAD + "".join(sections) + IDLE + "\n".join(idle) + "\n"


def shown(default: Any) -> str:
    """As it is written in the variable; nothing if there is none."""
    if default is None or default == "":
        return "unset"
    if isinstance(default, bool):
        return f"`{int(default)}`"
    text = f"{default:g}" if isinstance(default, float) else str(default)
    return f"`{text.removeprefix('/') if text.startswith('/~') else text}`"


def accepts(parse: Any) -> str:
    """What the parser says that it expects, about a value that few accept."""
    for text in ("0", "-1", "?"):
        try:
            parse(text)
        except ValueError as error:
            return str(error).removeprefix("must be ")
    return "text"
