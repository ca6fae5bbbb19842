"""Names of code in the docs exist: commands, options, settings, files, classes; so do links."""

import ast
import itertools
import re
import shlex
import shutil
import tomllib

import docs_names
import pytest
from docs_names import KINDS, ROOT

from secureafl.deployment.options import read_file
from secureafl.sweep.grid import read_grid

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
    *sorted(ROOT.glob("examples/**/*.md")),
]
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))

# Names of other programs and formats, and a folder of raw results.
FOREIGN = {
    "SBATCH_ACCOUNT", "SBATCH_MEM_PER_CPU", "SBATCH_PARTITION", "SBATCH_TIMELIMIT", "chromium",
    "flock", "localhost", "null", "rates",
}  # fmt: skip
# Where the repository is on the web.
WEB = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Homepage"]
RAW = WEB.replace("github.com", "raw.githubusercontent.com") + "/main"
WORD = r"[A-Za-z_]\w*"
DOTTED = rf"{WORD}(\.{WORD})+"
FILE = (
    r"[\w./*-]*\.(py|md|toml|jsonl?|cff|cu|css|html|svg|png|parquet|gz|bin|txt|crt|key|pub|csv|pt2?|onnx|safetensors)"
    r"|[\w./-]+/"
)
KIND = rf"({WORD})(@{WORD})?"


def blocks(page):
    """The fenced blocks of a page: language and content."""
    return re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)


def spans(page):
    """What stands between backticks outside of blocks, on one line each."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"(?<!`)`([^`]+)`(?!`)", text)
    return [" ".join(span.split()) for span in found]


def wrong_command(line):
    """What is wrong with a command line, or None; only our own commands are looked at."""
    words = shlex.split(line.replace("…", " ").replace("`", ""), comments=True)
    if words[:1] == ["make"]:
        unknown = [word for word in words[1:] if re.fullmatch(r"[a-z-]+", word)]
        return next((w for w in unknown if w not in docs_names.make_targets()), None)
    if words[:1] == ["python"] and len(words) > 1 and words[1].startswith("scripts/"):
        return wrong_script(words)
    if words[:2] == ["pip", "install"]:
        named = [extra for word in words for extra in re.findall(r"\[([\w,]+)\]", word)]
        named = [extra for some in named for extra in some.split(",")]
        return next((extra for extra in named if extra not in docs_names.extras()), None)
    return wrong_words(words[1:]) if words[:1] == ["secureafl"] else None


def wrong_script(words):
    if words[1] not in docs_names.files():
        return words[1]
    text = (ROOT / words[1]).read_text()
    return next((word for word in words[2:] if word[:2] == "--" and word not in text), None)


def wrong_words(words):
    """An unknown command or option of `secureafl`."""
    known = docs_names.commands()
    if not words:
        return None
    group = any(name.startswith(f"{words[0]} ") for name in known)
    two = len(words) > 1 and words[1].islower() and "-" not in words[1]
    name = " ".join(words[: 2 if group and two else 1])
    if name.startswith("-"):
        return None if name in known[""] else name
    if name not in known:
        return name
    wanted = [word.partition("=")[0] for word in words if re.match(r"--\w", word)]
    options = known[name] | {o for n in known if n.startswith(f"{name} ") for o in known[n]}
    options |= {"--help"}
    return next((option for option in wanted if option not in options), None) or wrong_set(words)


def wrong_set(words):
    """An unknown setting after `--set`."""
    plug_in = any(":" in word for word in words)  # its settings are in a file of the user's own
    for before, word in itertools.pairwise(words):
        if (
            before == "--set"
            and not plug_in
            and word.partition("=")[0] not in docs_names.settings()
        ):
            return word
    return None


def is_file(name, page):
    """A file or folder of the repository, or one that the package writes."""
    path = name.rstrip("/")
    if re.search("ANY|NAME", path):
        return True
    pattern = re.escape(path).replace(r"\*", '[^/"]*')
    bases = ["", "src/secureafl/", "tests/", f"{page.parent.relative_to(ROOT)}/"]
    found = (file.removeprefix(base) for file in docs_names.files() for base in bases)
    names = (file.rpartition("/")[2] for file in docs_names.files())  # `server.py` in a table
    if any(re.fullmatch(pattern, file) for file in (*found, *names)):
        return True
    ours = re.match(r"(src|tests|docs|scripts|examples|experiments)/", path) or path[-3:] == ".py"
    written = re.escape(path.rpartition("/")[2]).replace(r"\*", '[^/"]*')
    written = written if "." in path else f"[\"'/ ]{written}[\"'/]"
    return not ours and bool(re.search(written, docs_names.package_text()))


def wrong_toml(text):
    """An unknown setting or kind in a line of TOML, or None; None too if it is none."""
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None
    return next(wrong_values(values), None)


def wrong_values(values):
    own = ":" in str(values.get("kind", ""))
    for key, value in values.items():
        if not own and key not in docs_names.words() and key not in docs_names.settings():
            yield key
        if key in KINDS and isinstance(value, str) and ":" not in value:
            match = re.fullmatch(KIND, value)
            if not match or match[1] not in KINDS[key]:
                yield value
        if isinstance(value, dict):
            yield from wrong_values(value)


def wrong_span(span, page):
    """What is wrong with the code between two backticks, or None."""
    if span.startswith(("secureafl ", "make ", "python ", "pip ")):
        return wrong_command(span)
    if span in FOREIGN or "//" in span or "…" in span or "::" in span:
        return None
    if re.fullmatch(r"--[a-z-]+( .*)?", span):
        option = span.split()[0]
        known = {o for options in docs_names.commands().values() for o in options}
        return None if option in known or option in all_scripts() else option
    if re.fullmatch(FILE, span):
        return None if is_file(span, page) else span
    if call := re.fullmatch(rf"({WORD}(\.{WORD})*)\(.*\)", span):
        span = call[1]
    if re.fullmatch(DOTTED, span):
        known = span in docs_names.settings() or docs_names.is_code_object(span)
        return None if known else span
    if re.fullmatch(KIND, span):
        return None if span.partition("@")[0] in docs_names.words() else span
    return wrong_toml(span)


def all_scripts():
    return "".join(path.read_text() for path in (ROOT / "scripts").glob("*.py"))


@every_page
def test_names_between_backticks_exist(page):
    found = {span: wrong_span(span, page) for span in spans(page)}
    assert {span: wrong for span, wrong in found.items() if wrong} == {}


@every_page
def test_commands_in_blocks_exist_with_their_options(page):
    lines = [
        line.strip()
        for language, block in blocks(page)
        if language in ("", "sh", "bash")
        for line in block.replace("\\\n", " ").splitlines()
    ]
    found = {
        line: wrong_command(line)
        for line in lines
        if re.match(r"(secureafl|make|python|pip) ", line)
    }
    assert {line: wrong for line, wrong in found.items() if wrong} == {}


@every_page
def test_toml_in_blocks_is_an_experiment_or_a_grid(page, tmp_path):
    shutil.copy(ROOT / "experiments/quick.toml", tmp_path)  # which a grid may start from
    for number, (language, block) in enumerate(blocks(page)):
        if language != "toml" or "superlink" in block:  # Flower's own settings
            continue
        path = tmp_path / f"{number}.toml"
        path.write_text(block)
        if "[axes]" in block:
            assert len(read_grid(path).cells()) > 1
        else:
            assert read_file(path)[0].rounds > 0


@every_page
def test_python_in_blocks_imports_what_there_is(page):
    for language, block in blocks(page):
        if language != "python" or ">>>" in block:
            continue
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("secureafl"):
                for alias in node.names:
                    assert docs_names.is_code_object(f"{node.module}.{alias.name}"), alias.name


def anchors(page):
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.replace(" ", "-") for title in plain}


def links(page):
    """Where the links and pictures of a page lead, as they are written."""
    text = page.read_text()
    yield from re.findall(r"\]\(([^)]+)\)", text)
    yield from re.findall(r"^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    yield from re.findall(r'(?:href|src|srcset)="([^"]+)"', text)


def local(target):
    """A link into this repository as a path from its root, others as they are."""
    return re.sub(rf"^({WEB}/(blob|tree)/main|{RAW})/", f"{ROOT}/", target)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in map(local, links(page)):
        if target.startswith("http"):
            continue
        file, _, anchor = target.partition("#")
        place = page.parent / file if file else page
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), target


def test_every_page_of_the_docs_is_linked_from_another():
    linked = {
        (page.parent / local(target).partition("#")[0]).resolve()
        for page in PAGES
        for target in links(page)
    }
    assert set(ROOT.glob("docs/**/*.md")) - linked == set()


def test_links_of_the_readme_work_on_a_package_index_too():
    page = ROOT / "README.md"
    assert [target for target in links(page) if not target.startswith("https://")] == []
    assert sum(local(target).startswith(str(ROOT)) for target in links(page)) > 20
    used = set(re.findall(r"\]\[([^\]]+)\]", page.read_text()))
    assert used == set(re.findall(r"^\[([^\]]+)\]: ", page.read_text(), re.MULTILINE))


def test_what_does_not_exist_is_told():
    page = ROOT / "docs" / "tasks.md"
    for span in (
        "secureafl jump", "secureafl run --jump", "secureafl run --set defense.jump=1", "make jump",
        "python scripts/jump.py", "pip install 'secureafl[jump]'", "--jumping", "core/jump.py",
        "docs/jump.md", "Server.jump", "core.server.Jump", "secureafl.core.jump", "Jumper",
        "arrival.jump", 'defense = "jump"', "jumping = 3", "training.jump_rate", "jump_over(state)",
    ):  # fmt: skip
        assert wrong_span(span, page), span
    for span in (
        "secureafl run --attack scaling", "make test", "core/server.py", "Server.receive", "krum",
        "arrival.client",
        "training.privacy", 'attack = "scaling@stealth"', "events.jsonl", "--data-dir",
    ):  # fmt: skip
        assert wrong_span(span, page) is None, span
