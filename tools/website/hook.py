"""What mkdocs calls while it builds the site (mkdocs.yml): pages that are made at build, links and the navigation.

The pages that it makes are not in the repository: the reference, the settings, the errors, and a page for each README
and source that pages link to.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

from tfdist import config as settings  # noqa: E402
from website import error_page, navigation, place, reference_page, setting_page  # noqa: E402

_LANGUAGES = {".py": "python", ".sh": "bash", ".yaml": "yaml", ".json": "json", ".toml": "toml", ".cc": "cpp"}


def on_config(config: Any) -> Any:
    guides = (ROOT / "docs" / "README.md").read_text()
    reference = [{package: f"reference/{package}.md"} for package in reference_page.PACKAGES]
    config.nav = [
        {"Overview": place.uri_of("README.md")},
        {"Guides": place.uri_of("docs/README.md")},
        *navigation.navigation(guides, lambda target: place.uri_of(place.joined("docs/README.md", target))),
        {"Reference": [{"Settings": "settings.md"}, {"Errors": "errors.md"}, *reference]},
    ]
    return config


def on_files(files: Files, config: Any) -> Files:
    made = {"settings.md": setting_page.page(settings), "errors.md": error_page.page()}
    made |= {f"reference/{package}.md": reference_page.page(package) for package in reference_page.PACKAGES}
    for uri, text in made.items():
        files.append(File.generated(config, uri, content=text))
    guides = files.get_file_from_path("README.md")
    assert guides is not None
    files.remove(guides)
    for path in _linked():
        files.append(File.generated(config, place.uri_of(path), content=_text(path)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    if page.file.src_uri in ("settings.md", "errors.md") or page.file.src_uri.startswith("reference/"):
        return markdown
    return place.moved(place.path_of(page.file.src_uri), markdown, _uri)


def _linked() -> list[str]:
    """The two READMEs, and each file outside of docs/ that can be reached by links from a page."""
    waiting = [str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")] + ["README.md"]
    seen: set[str] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        if path.endswith(".md"):
            targets = map(_file, place.targets(path, (ROOT / path).read_text()))
            waiting += [target for target in targets if (ROOT / target).is_file()]  # mkdocs reports the others
    return sorted(path for path in seen if not path.startswith("docs/") or path == "docs/README.md")


def _file(target: str) -> str:
    """What stands for the target of a link: of a folder, its README."""
    return f"{target}/README.md" if (ROOT / target).is_dir() else target


def _uri(path: str) -> str:
    return place.uri_of(_file(path))


def _text(path: str) -> str:
    """A page of Markdown, or a page that shows a source."""
    text = (ROOT / path).read_text()
    if path.endswith(".md"):
        return text
    return f"# {path}\n\n````{_LANGUAGES.get(Path(path).suffix, 'text')}\n{text}````\n"
