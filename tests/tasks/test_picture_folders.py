import math
import os
import sys

import numpy as np
import pytest
import torch
from data_files import (
    unpacker,
    with_real_data,
    write_image,
    write_recording,
    write_tiny_imagenet,
    write_udacity,
)

from secureafl.core.errors import DataError
from secureafl.tasks import TinyImagenet, Udacity


def refusal(task):
    with pytest.raises(DataError) as caught:
        task.load()
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory):
    home = tmp_path_factory.mktemp("data")
    write_tiny_imagenet(home)
    return home


def test_tiny_imagenet_is_read_with_classes_in_the_order_of_their_names(tiny_folder):
    data = TinyImagenet(str(tiny_folder)).load()
    assert data.train_inputs.shape == (200, 3, 64, 64)
    assert data.train_labels.tolist() == list(range(200))
    assert data.test_labels.tolist() == [3, 199, 0]  # as val_annotations.txt has them
    brightness = data.train_inputs.float().mean(dim=(1, 2, 3))
    assert (brightness - torch.arange(200)).abs().max() <= 2
    assert (data.test_inputs.float().mean(dim=(1, 2, 3)) - data.test_labels).abs().max() <= 2


def test_mirror_images_of_tiny_imagenet_follow_the_images(tiny_folder):
    plain, mirrored = (TinyImagenet(str(tiny_folder), mirrored=m).load() for m in (False, True))
    assert torch.equal(mirrored.train_inputs[:200], plain.train_inputs)
    assert torch.equal(mirrored.train_inputs[200:].flip(-1), plain.train_inputs)
    assert torch.equal(mirrored.train_labels, torch.cat([plain.train_labels] * 2))


def test_pictures_are_decoded_once_and_anew_when_they_change(tmp_path):
    folder = write_udacity(tmp_path)
    first = Udacity(str(tmp_path)).load()
    (kept,) = folder.glob("decoded-*.npy")
    stamp = kept.stat().st_mtime_ns
    assert Udacity(str(tmp_path)).load().fingerprint == first.fingerprint
    assert kept.stat().st_mtime_ns == stamp
    path = folder / "recording_00" / "IMG" / "center_0.jpg"
    write_image(path, (255, 0, 0), (320, 160))
    os.utime(path, ns=(1, 1))
    assert Udacity(str(tmp_path)).load().fingerprint != first.fingerprint


@pytest.mark.parametrize("spoil", [lambda raw: raw[:500], lambda raw: raw[:-1] + b"\0\1"[-1:]])
def test_damaged_decoded_pictures_are_not_used(tmp_path, spoil):
    folder = write_udacity(tmp_path)
    write_image(folder / "recording_00" / "IMG" / "center_9.jpg", (7, 7, 7))
    first = Udacity(str(tmp_path)).load()
    (kept,) = folder.glob("decoded-*.npy")
    kept.write_bytes(spoil(kept.read_bytes()))
    assert Udacity(str(tmp_path)).load().fingerprint == first.fingerprint


def test_missing_or_damaged_picture_is_named(tmp_path):
    folder = write_tiny_imagenet(tmp_path)
    path = folder / "train" / "n00000007" / "images" / "n00000007_0.JPEG"
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "n00000007_0.JPEG: no image or a damaged one" in refusal(TinyImagenet(str(tmp_path)))
    write_image(path, (7, 7, 7), (65, 64))
    assert "65 x 64" in refusal(TinyImagenet(str(tmp_path)))
    write_image(path, (7, 7, 7))
    (folder / "val" / "images" / "val_3.JPEG").unlink()
    assert "val_3.JPEG: no such file" in refusal(TinyImagenet(str(tmp_path)))


def test_damaged_list_of_tiny_imagenet_is_named(tmp_path):
    folder = write_tiny_imagenet(tmp_path)
    notes = folder / "val" / "val_annotations.txt"
    notes.write_text("../../secret\tn00000001\n")
    assert "val_annotations.txt, line 1" in refusal(TinyImagenet(str(tmp_path)))
    notes.write_text("")
    assert "no test images" in refusal(TinyImagenet(str(tmp_path)))
    (folder / "wnids.txt").write_text("n1\nn2\n")
    assert "2 classes, not 200" in refusal(TinyImagenet(str(tmp_path)))


def test_missing_data_sets_are_told_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv("SECUREAFL_DATA", str(tmp_path))
    assert "secureafl data tiny_imagenet" in refusal(TinyImagenet())
    assert "secureafl data udacity" in refusal(Udacity())
    assert "no such folder; 'secureafl data' says" in refusal(Udacity(str(tmp_path / "nowhere")))


def test_without_pillow_the_extra_is_named(tiny_folder, tmp_path, monkeypatch):
    write_udacity(tmp_path)
    monkeypatch.setitem(sys.modules, "PIL", None)
    assert "secureafl[images]" in refusal(Udacity(str(tmp_path)))


@pytest.mark.parametrize("header", [True, False])
def test_last_fifth_of_each_recording_is_test_data(tmp_path, header):
    write_udacity(tmp_path, header=header)
    data = Udacity(str(tmp_path)).load()
    assert data.train_labels.tolist() == pytest.approx([k / 10 for k in range(8)] * 3)
    assert data.test_labels.tolist() == pytest.approx([0.8, 0.9] * 3)
    assert data.train_origin.tolist() == [0] * 8 + [1] * 8 + [2] * 8
    brightness = data.train_inputs.float().mean(dim=(1, 2, 3))
    assert (brightness - 100 * data.train_labels).abs().max() <= 2
    assert "3 recordings" in data.source


def test_mirror_images_of_a_road_are_steered_the_other_way(tmp_path):
    write_udacity(tmp_path)
    plain, mirrored = (Udacity(str(tmp_path), mirrored=m).load() for m in (False, True))
    assert torch.equal(mirrored.train_inputs[:24], plain.train_inputs)
    assert torch.equal(mirrored.train_inputs[24:].flip(-1), plain.train_inputs)
    assert torch.equal(mirrored.train_labels, torch.cat([plain.train_labels, -plain.train_labels]))
    assert torch.equal(mirrored.train_origin, plain.train_origin.repeat(2))
    assert torch.equal(mirrored.test_labels, plain.test_labels)


def test_one_recording_alone_will_do(tmp_path):
    write_recording(tmp_path / "mine", frames=5)
    assert len(Udacity(str(tmp_path / "mine")).load().train_labels) == 4


def test_sky_and_bonnet_are_cut_off(tmp_path):
    write_recording(tmp_path, frames=2)
    from PIL import Image

    pixels = np.full((160, 320, 3), 255, np.uint8)
    pixels[64:131] = 0
    Image.fromarray(pixels).save(tmp_path / "IMG" / "center_0.jpg", quality=95)
    assert Udacity(str(tmp_path)).load().train_inputs[0, :, 6:58].max() < 30


@pytest.mark.parametrize("row", ["center_0.jpg,,,", "center_0.jpg", ",,,0.1", "center_0.jpg,,,nan"])
def test_damaged_row_is_shown(tmp_path, row):
    write_recording(tmp_path)
    with (tmp_path / "driving_log.csv").open("a") as file:
        file.write(row + "\n")
    assert f"{row!r} has no picture and angle" in refusal(Udacity(str(tmp_path)))


def test_recording_of_one_frame_is_refused(tmp_path):
    write_recording(tmp_path, frames=1)
    assert "1 frames, too few" in refusal(Udacity(str(tmp_path)))


def test_steering_is_measured_by_the_root_of_the_mean_square():
    task, zeros = Udacity(), torch.zeros(4)
    assert task.metrics(zeros, torch.tensor([1.0, -1, 3, 1])) == {"rmse": math.sqrt(3)}
    loss = float(task.loss(zeros, torch.tensor([1.0, -1, 3, 1])))
    assert loss == pytest.approx(3 / 0.3**2)  # of angles whose deviation is 0.3 it is 1


@with_real_data
def test_real_recordings_have_their_counts_and_a_known_sample(tmp_path):
    unpacker().udacity(tmp_path)
    for late in sorted((tmp_path / "udacity").glob("recording_*"))[3:]:
        (late / "driving_log.csv").unlink()  # three recordings are enough to decode
    data = Udacity(str(tmp_path)).load()
    assert data.train_origin.bincount().tolist() == [480] * 3
    assert data.test_labels.shape == (360,)
    assert data.train_labels[:2].tolist() == pytest.approx([-0.05, -0.5354305])
    assert float(data.train_labels.abs().max()) <= 1
    assert data.pixel_mean.tolist() == pytest.approx([0.52, 0.51, 0.43], abs=0.1)


@pytest.mark.slow
@with_real_data
def test_real_tiny_imagenet_has_its_counts(tmp_path):
    unpacker().tiny_imagenet(tmp_path)
    data = TinyImagenet(str(tmp_path)).load()
    assert data.train_labels.bincount().tolist() == [60] * 200
    assert data.test_labels.bincount().tolist() == [10] * 200
    assert data.pixel_mean.tolist() == pytest.approx([0.482, 0.450, 0.399], abs=1e-3)
