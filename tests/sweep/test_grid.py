import math
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secureafl.attacks import Gaussian, Scaling, SignFlip
from secureafl.core.errors import ConfigError
from secureafl.defenses import AsyncSgd, Kardam, SecureAfl, TrustClipping
from secureafl.estimators import LastUpdate
from secureafl.sweep.grid import Grid, cross, parse_seeds, read_grid


def test_every_defence_meets_every_attack():
    cells = cross({"rounds": 3}, ["async_sgd", "secure_afl"], ["none", "gaussian"], {})
    assert list(cells) == [
        "async_sgd-none",
        "secure_afl-none",
        "async_sgd-gaussian",
        "secure_afl-gaussian",
    ]
    assert isinstance(cells["async_sgd-gaussian"].defense, AsyncSgd)
    assert isinstance(cells["async_sgd-gaussian"].attack, Gaussian)
    assert {cell.rounds for cell in cells.values()} == {3}


def test_without_lists_the_files_own_is_the_only_cell():
    assert cross({"attack": "sign_flip"}, [], [], {})["run"].attack == SignFlip()


def test_settings_of_the_file_stay_with_the_kind_they_belong_to():
    values = {"attack": {"kind": "sign_flip", "factor": 10.0}}
    cells = cross(values, [], ["sign_flip", "scaling"], {})
    assert cells["sign_flip"].attack == SignFlip(factor=10.0)
    assert cells["scaling"].attack == Scaling()


def test_presets_are_cells_of_their_own():
    cells = cross({}, ["async_sgd"], ["scaling", "scaling@stealth"], {"attack.target_class": 1})
    assert list(cells) == ["async_sgd-scaling", "async_sgd-scaling@stealth"]
    assert cells["async_sgd-scaling"].attack == Scaling(target_class=1)
    assert cells["async_sgd-scaling@stealth"].attack == Scaling(target_class=1, factor=1.0)


def test_preset_does_not_take_over_the_files_settings_for_its_kind():
    values = {"attack": {"kind": "scaling", "factor": 10.0}}
    cells = cross(values, [], ["scaling", "scaling@paper"], {})
    assert cells["scaling"].attack == Scaling(factor=10.0)
    assert cells["scaling@paper"].attack == Scaling()


def test_changed_settings_go_to_the_cells_that_have_them():
    changes = {"defense.alpha": 0.7, "defense.estimator": "last_update", "attack.factor": 3.0}
    cells = cross({}, ["async_sgd", "secure_afl"], ["sign_flip", "gaussian"], changes)
    changed = SecureAfl(alpha=0.7, estimator=LastUpdate())
    assert cells["secure_afl-sign_flip"].defense == changed
    assert cells["secure_afl-gaussian"].defense == changed
    assert cells["async_sgd-sign_flip"].defense == AsyncSgd()
    assert cells["async_sgd-sign_flip"].attack == SignFlip(factor=3.0)
    assert cells["async_sgd-gaussian"].attack == Gaussian()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"defense.alhpa": 0.7}, "unknown setting 'defense.alhpa': none of the cells has it"),
        ({"rouns": 7}, "unknown setting 'rouns'; did you mean 'rounds'"),
        ({"attack.std": 1.0}, "none of the cells has it"),
    ],
)
def test_setting_that_no_cell_has_is_refused(changes, said):
    with pytest.raises(ConfigError, match=said):
        cross({}, ["async_sgd", "secure_afl"], ["sign_flip"], changes)


def test_cell_named_twice_is_refused():
    with pytest.raises(ConfigError, match="named twice"):
        cross({}, ["async_sgd", "async_sgd"], [], {})


SAFE = set(string.ascii_letters + string.digits + "_.@+=-")


@pytest.fixture
def grid_file(tmp_path):
    def write(text):
        (tmp_path / "grid.toml").write_text(text)
        return tmp_path / "grid.toml"

    return write


def test_grid_file_makes_a_cell_of_every_combination(grid_file):
    path = grid_file(
        """
        title = "Two defences"
        [base]
        rounds = 70
        [axes]
        seed = [3, 4]
        defense = ["async_sgd", { kind = "secure_afl", alpha = 0.7 }]
        training.batch_size = [8]
        "attack" = ["scaling@stealth"]
        """
    )
    grid = read_grid(path)
    assert grid.title == "Two defences"
    assert list(grid.cells()) == [
        "async_sgd-batch_size8-scaling@stealth-seed3",
        "secure_afl+alpha0.7-batch_size8-scaling@stealth-seed3",
        "async_sgd-batch_size8-scaling@stealth-seed4",
        "secure_afl+alpha0.7-batch_size8-scaling@stealth-seed4",
    ]
    cell = grid.cells()["secure_afl+alpha0.7-batch_size8-scaling@stealth-seed4"]
    assert (cell.defense, cell.attack) == (SecureAfl(alpha=0.7), Scaling(factor=1.0))
    assert (cell.seed, cell.rounds, cell.training.batch_size) == (4, 70, 8)


def test_base_can_be_an_experiment_file_with_settings_beside_it(grid_file, tmp_path):
    (tmp_path / "other.toml").write_text("rounds = 11\nclients = 5\nseed = 8\n")
    grid = read_grid(grid_file('[base]\nfile = "other.toml"\nrounds = 12\n'))
    assert grid.title == "grid"
    cells = grid.cells()
    assert list(cells) == ["seed8"]
    assert (cells["seed8"].rounds, cells["seed8"].clients) == (12, 5)


def test_tables_beside_the_file_change_single_settings_of_the_same_kind(grid_file, tmp_path):
    (tmp_path / "other.toml").write_text(
        "training = { batch_size = 7, learning_rate = 0.5 }\n"
        'defense = { kind = "secure_afl", alpha = 0.6, clip_norm = 3.0 }\n'
        'attack = { kind = "scaling", factor = 2.0 }\n'
    )
    beside = "training = { learning_rate = 0.1 }\ndefense = { alpha = 0.7 }\nattack = 'sign_flip'\n"
    (cell,) = read_grid(grid_file(f'[base]\nfile = "other.toml"\n{beside}')).cells().values()
    assert (cell.training.batch_size, cell.training.learning_rate) == (7, 0.1)
    assert cell.defense == SecureAfl(alpha=0.7, clip_norm=3.0)
    assert cell.attack == SignFlip()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[axis]\nseed = [1]", "unknown 'axis'; did you mean 'axes'"),
        ("base = 3", r"base = 3: give a table, \[base\]"),
        ("[axes]\nseed = 1", "axes.seed = 1: give a list"),
        ("[axes]\nseed = []", "give a list of one value or more"),
        ("[axes]\ndefense = ['kardan']", "unknown defense 'kardan'; did you mean 'kardam'"),
        ("[axes]\ndefence = ['kardam']", "unknown setting 'defence'; did you mean 'defense'"),
        ("[axes]\ndefense.momentun = [0.5]", "did you mean 'momentum'"),
        ("[base]\nfile = 'none.toml'", "none.toml: no such file"),
        ("[axes]\nclients = [5, 5]", "'clients5-seed0' is named twice"),
    ],
)
def test_faulty_grid_is_refused_with_a_remedy(grid_file, text, said):
    with pytest.raises(ConfigError, match=said):
        read_grid(grid_file(text)).cells()


def test_setting_that_is_an_axis_cannot_be_changed():
    grid = Grid("", {}, {"defense.alpha": [0.5, 0.7], "seed": [1]})
    for key in ("defense.alpha", "defense", "seed"):
        with pytest.raises(ConfigError, match=f"'{key}' takes several values"):
            grid.cells({key: 0})


def test_tables_without_another_kind_change_the_base_and_do_not_replace_it():
    base = {"training": {"learning_rate": 0.5}, "defense": {"momentum": 0.9}}
    axes = {
        "training": [{"batch_size": 4}],
        "defense": [{"kind": "trust_clipping", "sketch_size": 64}, "kardam"],
    }
    changed, other = Grid("", base, axes).cells().values()
    assert (changed.training.learning_rate, changed.training.batch_size) == (0.5, 4)
    assert changed.defense == TrustClipping(momentum=0.9, sketch_size=64)
    assert other.defense == Kardam()


def test_order_of_the_axes_does_not_matter_for_what_is_inside_what():
    axes = {"defense.alpha": [0.5], "defense": ["secure_afl"]}
    (cell,) = Grid("", {"defense": "async_sgd"}, axes).cells().values()
    assert cell.defense == SecureAfl(alpha=0.5)


VALUES = {
    "seed": st.integers(0, 2**62),
    "malicious": st.floats(0, 1) | st.integers(0, 50),
    "placement": st.sampled_from(["random", "grouped"]),
    "task.data_dir": st.text(
        st.characters(exclude_categories=["Cs"], exclude_characters=":"), max_size=300
    ),
    "defense.momentum": st.floats(0, 0.99),
}
AXES = {
    key: st.lists(values, min_size=1, max_size=3, unique_by=repr) for key, values in VALUES.items()
}


@given(st.fixed_dictionaries({}, optional=AXES))
def test_names_are_safe_and_stay_when_values_are_added(axes):
    cells = Grid("", {}, axes).cells()
    assert len(cells) == math.prod(map(len, axes.values()))
    for name in cells:
        assert set(name) <= SAFE
        assert len(name) < 250
        assert name[0] != "."
    fewer = Grid("", {}, {key: values[:1] for key, values in axes.items()}).cells()
    assert fewer.items() <= cells.items()


@pytest.mark.parametrize(
    ("text", "seeds"), [("0-4", [0, 1, 2, 3, 4]), ("0,1,2", [0, 1, 2]), ("7, 1-2", [7, 1, 2])]
)
def test_seeds_are_ranges_and_lists(text, seeds):
    assert parse_seeds(text) == seeds


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,,2", "-1", "0-99999999"])
def test_faulty_seeds_are_refused(text):
    with pytest.raises(ConfigError, match="give them as 0-4"):
        parse_seeds(text)


@pytest.mark.parametrize("text", ["1,1", "0-2,2"])
def test_seeds_given_twice_are_refused(text):
    with pytest.raises(ConfigError, match="give each of them once"):
        parse_seeds(text)
