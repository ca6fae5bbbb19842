import dataclasses
import json

import pytest
from report.run_folders import default_result

from secureafl.aggregators import Mean, Median
from secureafl.attacks import Dba, Gaussian, Pgd, Scaling
from secureafl.core.errors import ConfigError
from secureafl.defenses import SecureAfl
from secureafl.experiment import to_mapping
from secureafl.paper.tables import main_table
from secureafl.reproduce.artefacts import ARTEFACTS, ESTIMATION
from secureafl.reproduce.plan import Request, brief_for, grid_for, warnings_of
from secureafl.toml import write_toml


@pytest.mark.parametrize("name", [*ARTEFACTS, ESTIMATION])
@pytest.mark.parametrize("fast", [False, True])
def test_every_grid_gives_cells(name, fast):
    assert grid_for(Request(name, fast=fast)).axes["seed"] == ([0] if fast else [0, 1, 2, 3, 4])
    attacks = () if name == ESTIMATION else ("gaussian",)
    cells = grid_for(Request(name, seeds="0", fast=fast, attacks=attacks)).cells()
    assert cells
    assert (20_000 in {cell.rounds for cell in cells.values()}) == (not fast)


def test_main_is_eight_methods_and_our_own_under_eleven_attacks():
    cells = grid_for(Request("main", seeds="0-2")).cells()
    assert len(cells) == 9 * 11 * 3
    cell = cells["secure_afl-sign_flip-seed2"]
    assert (cell.clients, cell.malicious, cell.training.batch_size) == (50, 0.2, 32)
    assert cell.defense == SecureAfl()


def test_stated_attacks_stand_beside_the_papers_figures_by_their_names(tmp_path):
    request = Request("stated", seeds="0")
    cells = grid_for(request).cells()
    assert len(cells) == 2 * 11
    pgd, noise = cells["async_sgd-pgd+steps1-seed0"], cells["secure_afl-gaussian@stated-seed0"]
    assert (pgd.attack, noise.attack) == (Pgd(steps=1), Gaussian(std=200.0))
    (sheet,) = brief_for(request, tmp_path).sheets
    assert sheet.columns == list(main_table("fashion_mnist")["secure_afl"])
    assert sheet.cells["async_sgd", "pgd"].paper == {"ter": 0.28, "asr": 0.36}


def test_stated_attacks_are_asked_for_by_their_names(tmp_path):
    request = Request("stated", seeds="0", attacks=("pgd", "scaling@stealth", "dba"))
    attacks = [cell.attack for cell in grid_for(request).cells().values()]
    assert attacks[::2] == [Pgd(steps=1), Scaling(factor=1.0), Dba(factor=1.0)]
    (sheet,) = brief_for(request, tmp_path).sheets
    assert sheet.columns == ["pgd", "scaling@stealth", "dba"]


def test_stated_attacks_on_a_regression_are_those_the_paper_has():
    attacks = grid_for(Request("stated", task="udacity")).axes["attack"]
    assert attacks == ["none", "sign_flip@stated", "gaussian@stated", "min_max@std", "adaptive"]


def test_sweeps_cover_the_papers_ranges():
    def values(name, axis):
        found = grid_for(Request(name)).axes[axis]
        return min(found), max(found)

    assert values("malicious-fraction", "malicious") == (0.1, 0.4)
    assert values("delay", "arrivals.max_staleness") == (5, 50)
    assert values("non-iid", "partition.degree") == (0.1, 0.9)
    assert values("clients", "clients") == (50, 300)
    assert grid_for(Request("alpha")).axes["defense.alpha"] == [0.4, 0.6, 0.8]


def test_rows_of_the_variants_are_the_papers():
    grid = grid_for(Request("variants", methods=("I", "secure_afl"), attacks=("none",), seeds="0"))
    first, second = grid.cells().values()
    assert (first.defense, second.defense) == (SecureAfl(aggregator=Mean()), SecureAfl())
    assert second.defense.aggregator == Median()


def test_other_tasks_use_their_own_settings_and_cells():
    grid = grid_for(Request("main", task="udacity"))
    assert grid.base["task"] == {"kind": "udacity", "mirrored": True}
    assert (grid.base["clients"], grid.base["training"]["batch_size"]) == (10, 64)
    assert "sageflow" not in grid.axes["defense"]
    assert grid.axes["attack"] == ["none", "sign_flip", "gaussian", "min_max", "adaptive"]


def test_page_says_what_a_task_has_otherwise_than_the_paper():
    assert warnings_of(Request("main"), []) == []
    said = " ".join(warnings_of(Request("main", task="cifar10", rounds=5), []))
    assert "5 rounds instead of the paper's 30,000" in said
    assert "Learning rate 0.1 instead of 0.01" in said
    assert "mirrored" in said
    assert "bfloat16" not in said  # nothing has been run yet, perhaps it will be on a CPU


def made_of(folder, data="", devices=()):
    """A finished run that found this data, in a session on each of these devices."""
    folder.mkdir()
    provenance = {"data": data, "sessions": [{"device": device} for device in devices]}
    (folder / "provenance.json").write_text(json.dumps(provenance))
    (folder / "result.json").write_text(json.dumps(default_result(ter=0.2)))
    return folder


def test_precision_is_told_of_runs_on_a_gpu_only(tmp_path):
    cpu = made_of(tmp_path / "cpu", devices=["cpu"])
    gpu = made_of(tmp_path / "gpu", devices=["NVIDIA H200"])
    request, told = Request("main", task="cifar100"), "compute in bfloat16 (mixed precision)."
    assert not [line for line in warnings_of(request, [cpu]) if "bfloat16" in line]
    assert f"Layers {told}" in warnings_of(request, [gpu])
    assert f"Layers of runs on a GPU {told}" in warnings_of(request, [cpu, gpu])


@pytest.mark.parametrize(
    ("task", "data", "said"),
    [
        ("fashion_mnist", "data_dir (60,000 training, 10,000 test samples)", []),
        (
            "fashion_mnist",
            "embedded slice (10,000 training, 2,000 test samples)",
            ["10,000 of 60,000 training images, 2,000 of 10,000 test images."],
        ),
        ("cifar10", "data (100,000 training, 10,000 test samples)", []),  # with mirror images
        ("cifar100", "data (100,000 training, 9,000 test samples)", ["50,000 of 50,000 training"]),
        (
            "tiny_imagenet",
            "data (24,000 training, 2,000 test samples)",
            ["12,000 of 100,000 training images, 2,000 of 10,000 test images."],
        ),
        (
            "udacity",
            "data/udacity, 27 recordings (25,812 training, 3,227 test samples)",
            ["Other recordings than the paper's: 27, with 12,906 pictures for training and 3,227"],
        ),
    ],
)
@pytest.mark.parametrize("fast", [False, True])
def test_pages_on_a_part_of_the_data_say_so_first(task, data, said, fast, tmp_path):
    runs = [made_of(tmp_path / name, data) for name in ("one", "two")]
    request = Request("main", task, fast=fast)
    others = warnings_of(request, [])
    told = warnings_of(request, runs)
    assert told[len(told) - len(others) :] == others
    assert len(told) - len(others) == len(said)
    assert all(text in line for text, line in zip(said, told, strict=False))


def test_scaled_down_tasks_with_resnet_are_cheaper_and_keep_a_rate_they_stand():
    rounds = {"cifar10": 200, "cifar100": 200, "tiny_imagenet": 50, "udacity": 50}
    for task, number in rounds.items():
        for cell in grid_for(Request("main", task, fast=True)).cells().values():
            assert cell.evaluation.rounds(cell.rounds) == {0, number}
            assert cell.training.learning_rate == (0.001 if task == "udacity" else 0.05)


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        ({"name": "mian"}, "cannot reproduce 'mian'; did you mean 'main'?"),
        ({"name": "main", "task": "mnist"}, "the paper has no task 'mnist'; known: fashion_mnist"),
        ({"name": "alpha", "task": "cifar10"}, "has 'alpha' on fashion_mnist only, not on cifar10"),
        ({"name": "variants", "methods": ("V",)}, "no row 'V' in variants; "),
        ({"name": "main", "methods": ("kardan",)}, "unknown defense 'kardan'; did you mean"),
        ({"name": "main", "attacks": ("scale",)}, "unknown attack 'scale'"),
    ],
)
def test_what_the_paper_does_not_have_is_refused(request_, said):
    with pytest.raises(ConfigError, match=said.replace("?", r"\?")):
        grid_for(Request(**request_)).cells()


def test_command_asks_for_the_same_again():
    given = Request("main", "cifar10", "0-2", 100, ("kardam", "basgd"), ("none",), fast=True)
    assert given.command == (
        "secureafl reproduce main --task cifar10 --seeds 0-2 --rounds 100 "
        "--methods kardam,basgd --attacks none --fast"
    )
    assert Request("alpha").command == "secureafl reproduce alpha"


def test_page_knows_all_cells_before_anything_ran(tmp_path):
    brief = brief_for(Request("main"), tmp_path)
    (sheet,) = brief.sheets
    assert len(sheet.cells) == 9 * 11
    assert {cell.comparison for cell in sheet.cells.values()} == {"missing"}
    assert sheet.cells["secure_afl", "scaling"].paper == {"ter": 0.18, "asr": 0.07}
    assert sheet.cells["trust_clipping", "scaling"].paper == {"ter": 0.18, "asr": 0.07}
    assert brief.warnings == []


def test_scaled_down_pages_say_so(tmp_path):
    (warning,) = brief_for(Request("delay", fast=True), tmp_path).warnings
    assert "Scaled down (--fast): 200 rounds instead of 20,000, 10 clients" in warning
    assert "does not reproduce" in warning
    (warning,) = brief_for(Request("main", rounds=500), tmp_path).warnings
    assert warning == "500 rounds instead of the paper's 20,000."


def test_figures_show_the_main_tables_figure_at_its_own_setting_only(tmp_path):
    brief = brief_for(Request("delay"), tmp_path)
    assert [sheet.title for sheet in brief.sheets][:2] == ["label_flip", "sign_flip"]
    cells = brief.sheets[1].cells
    assert cells["secure_afl", "10"].paper == {"ter": 0.13}
    assert cells["secure_afl", "20"].paper == {}
    assert brief.curves


def test_page_says_which_runs_were_made_for_something_else(tmp_path):
    made = Request("main", seeds="0", rounds=5, device="cpu", attacks=("none",))
    for name, cell in grid_for(made).cells().items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").write_text(write_toml(to_mapping(cell)))
        (tmp_path / name / "provenance.json").write_text("{}")
        (tmp_path / name / "result.json").write_text(json.dumps(default_result(ter=0.2)))
    again = dataclasses.replace(made, device="")
    assert brief_for(again, tmp_path).warnings == ["5 rounds instead of the paper's 20,000."]
    (warning,) = brief_for(Request("main", seeds="0"), tmp_path).warnings
    assert warning == (
        "9 of 9 runs have other settings than this page says "
        "(async_sgd-none-seed0: rounds is 5 there and 20000 here)."
    )
