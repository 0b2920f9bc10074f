"""tools/website: where files are on the site, links, and the navigation."""

from __future__ import annotations

import pytest

from website import navigation, place

PATHS = {
    "README.md": "index.md",
    "docs/README.md": "guides.md",
    "docs/gpu.md": "gpu.md",
    "docs/performance.svg": "performance.svg",
    "SECURITY.md": "repository/SECURITY.md",
    "compose/README.md": "repository/compose/README.md",
    "examples/digits.py": "repository/examples/digits.py.md",
    "LICENSE": "repository/LICENSE.md",
}


@pytest.mark.parametrize("path", PATHS)
def test_uri(path: str) -> None:
    assert place.uri_of(path) == PATHS[path]


@pytest.mark.parametrize("path", [path for path in PATHS if path.endswith(".md")])
def test_path_of_a_page(path: str) -> None:
    assert place.path_of(place.uri_of(path)) == path


@pytest.mark.parametrize(
    ("page", "link", "moved"),
    [
        ("docs/gpu.md", "../compose/README.md#a", "repository/compose/README.md#a"),
        ("docs/gpu.md", "elastic.md", "elastic.md"),
        ("docs/gpu.md", "#here", "#here"),
        ("docs/gpu.md", "https://keras.io", "https://keras.io"),
        ("docs/install.md", "../examples/digits.py", "repository/examples/digits.py.md"),
        ("README.md", "docs/performance.svg", "performance.svg"),
        ("README.md", "docs/README.md", "guides.md"),
        ("compose/README.md", "../docs/elastic.md#b", "../../elastic.md#b"),
        ("compose/README.md", "../README.md", "../../index.md"),
    ],
)
def test_link(page: str, link: str, moved: str) -> None:
    assert place.moved(page, f"[x]({link})", place.uri_of) == f"[x]({moved})"


def test_code_is_left_alone() -> None:
    text = "[a](../LICENSE)\n```python\nx = [y](z)\n```\n"
    assert place.targets("docs/a.md", text) == {"LICENSE"}
    assert place.moved("docs/a.md", text, place.uri_of) == text.replace("../LICENSE", "repository/LICENSE.md")


def test_navigation_has_each_page_once() -> None:
    guides = (
        "# Guides\n\n## Start\n\n| question | page |\n| --- | --- |\n"
        "| How `a`? | [one](one.md) |\n| And b? | [one](one.md#part), [two](two.md), [three](../three.md) |\n"
        "\n## Inside\n\n| question | page |\n| --- | --- |\n| Again? | [two](two.md) |\n| Last? | [four](four.md) |\n"
    )
    assert navigation.navigation(guides, lambda target: f"x/{target}") == [
        {"Start": [{"How a?": "x/one.md"}, {"And b?": [{"two": "x/two.md"}, {"three": "x/../three.md"}]}]},
        {"Inside": [{"Last?": "x/four.md"}]},
    ]
