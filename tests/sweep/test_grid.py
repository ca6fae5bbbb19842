import pytest

from secureafl.attacks import Gaussian, Scaling, SignFlip
from secureafl.core.errors import ConfigError
from secureafl.defenses import AsyncSgd, SecureAfl
from secureafl.estimators import LastUpdate
from secureafl.sweep.grid import cross


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
