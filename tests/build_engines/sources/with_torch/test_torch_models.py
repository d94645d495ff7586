from __future__ import annotations

import builtins
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build_engines.errors import SourceError
from build_engines.preprocessing import Normalisation, Preprocessing
from build_engines.sources import Wish, find_source
from tests.build_engines.sources.with_torch.conftest import assert_same, loaded, noise, shaken

torch = pytest.importorskip("torch", reason="torch is not installed (make test-torch)")
import timm  # noqa: E402
import torchvision  # noqa: E402

from build_engines.sources import dino, state_dicts, torch_models  # noqa: E402

SMALL_VIT = "vit_tiny_patch16_224"


def saved(state: Any, path: Path) -> str:
    """Writes a checkpoint and returns its path."""
    torch.save(state, path)
    return str(path)


def test_random_weights_are_the_same_every_time() -> None:
    """Without a file or a network there is a model to try things with, always the same, and without a hash."""
    source = find_source("resnet18", Wish(weights="random", classes=10))
    assert source.name == "torchvision/resnet18"
    assert source.identity()["weights"] == "random"
    assert "sha256" not in source.identity()
    torch.manual_seed(5)
    first, second = loaded(source), loaded(find_source("resnet18", Wish(weights="random", classes=10)))
    assert first.graph == second.graph
    assert (first.task, first.width, first.labels) == ("classify", 10, None)


def test_timms_resnet50_fits_torchvisions(tmp_path: Path) -> None:
    """The two libraries have the same network under the same names: either's weights fit, with all classes named."""
    state = shaken(timm.create_model("resnet50"))
    source = find_source("resnet50", Wish(saved(state, tmp_path / "weights.pth")))
    network = loaded(source)
    answers = assert_same(network, 224)
    original = timm.create_model("resnet50").eval()
    original.load_state_dict(state)
    mean, std = (torch.tensor(part).reshape(3, 1, 1) for part in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        pixels = torch.tensor(noise(5, 224)).permute(0, 3, 1, 2)
        np.testing.assert_allclose(answers, original((pixels / 255 - mean) / std).softmax(1), atol=1e-4)
    assert source.identity()["sha256"] == hashlib.sha256((tmp_path / "weights.pth").read_bytes()).hexdigest()
    assert network.labels is not None
    assert (network.labels[0], len(network.labels)) == ("tench", 1000)


def test_a_users_timm_classifier_has_its_own_classes(tmp_path: Path) -> None:
    """Seven classes, trained in parallel: found in the last layer, without a word from the user."""
    state = shaken(timm.create_model(SMALL_VIT, num_classes=7))
    checkpoint = {"epoch": 3, "model": {f"module.{name}": value for name, value in state.items()}}
    network = loaded(find_source(f"timm/{SMALL_VIT}", Wish(saved(checkpoint, tmp_path / "weights.pth"))))
    assert_same(network, 224)
    assert (network.width, network.labels) == (7, None)


def test_a_wrong_number_of_classes_is_refused(tmp_path: Path) -> None:
    """What the user says must be what the file has."""
    path = saved(torchvision.models.resnet18(num_classes=7).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(SourceError, match="have 7 classes, not 5"):
        loaded(find_source("resnet18", Wish(path, classes=5)))


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    """The first names that do not fit are in the error."""
    path = saved(torchvision.models.resnet18(num_classes=7).state_dict(), tmp_path / "weights.pth")
    with pytest.raises(SourceError, match=r"They lack layer1\.2\.conv1\.weight.* and \d+ more"):
        loaded(find_source("resnet34", Wish(path)))


def test_a_timm_classifier_gives_its_features(tmp_path: Path) -> None:
    """For the task embed the classifier's last layer is left out, and so are its weights."""
    state = shaken(timm.create_model("resnet18", num_classes=7))
    network = loaded(
        find_source("timm/resnet18", Wish(saved(state, tmp_path / "weights.pth"), task="embed", normalise="none"))
    )
    assert_same(network, 224)
    assert (network.task, network.width) == ("embed", 512)


@pytest.mark.parametrize(
    ("name", "layer", "width"),
    [("resnet18", "fc", 512), ("mobilenet_v3_small", "classifier.3", 1024), ("googlenet", "fc", 1024)],
)
def test_a_torchvision_classifier_gives_its_features(tmp_path: Path, name: str, layer: str, width: int) -> None:
    """What its last layer is given, whatever it is called and however many classes the weights have."""
    state = shaken(
        torchvision.models.get_model(name, num_classes=7, **({"init_weights": False} if name == "googlenet" else {}))
    )
    wish = Wish(saved(state, tmp_path / "weights.pth"), task="embed", normalise="none")
    source = find_source(name, wish)
    network = loaded(source)
    features = torch.tensor(assert_same(network, 224))
    assert (source.name, network.width) == (f"torchvision/{name}", width)
    logits = features @ state[f"{layer}.weight"].T + state[f"{layer}.bias"]
    classifier = loaded(find_source(name, Wish(str(tmp_path / "weights.pth"))))
    np.testing.assert_allclose(logits.softmax(1), classifier.reference(noise(5, 224)), atol=1e-4)


def test_a_vision_transformer_is_made_for_the_wished_size(tmp_path: Path) -> None:
    """Position embeddings are stretched when weights for 224 pixels are loaded for 96."""
    path = saved(shaken(timm.create_model(SMALL_VIT, num_classes=3)), tmp_path / "weights.pth")
    source = find_source(SMALL_VIT, Wish(path, size=96))
    recipe = source.preprocess()
    assert recipe is not None
    assert (source.name, recipe["size"], recipe["resize_to"]) == (f"timm/{SMALL_VIT}", 96, 106)
    assert_same(loaded(source), 96)


def test_a_recipe_of_another_size_is_refused() -> None:
    """A preprocess.json for pictures that the network does not take: the error names the way out."""
    source = find_source(SMALL_VIT, Wish("random", classes=3))
    with pytest.raises(SourceError, match=r"192 × 192 .*--size"):
        source.load(Normalisation(192, "RGB", (127.5, 127.5, 127.5), (127.5, 127.5, 127.5)))


@pytest.mark.parametrize(
    ("name", "expected"),
    [  # resize, resize_to, interpolation, crop, size, red of mean and std
        ("torchvision/resnet50", ("shorter", 232, "bilinear", "center", 224, 123.675, 58.395)),
        ("torchvision/efficientnet_b1", ("shorter", 255, "bilinear", "center", 240, 123.675, 58.395)),
        ("torchvision/vit_b_16", ("shorter", 256, "bilinear", "center", 224, 123.675, 58.395)),
        ("timm/resnet50.a1_in1k", ("shorter", 235, "bicubic", "center", 224, 123.675, 58.395)),
        ("timm/vit_base_patch16_224.augreg_in21k", ("shorter", 248, "bicubic", "center", 224, 127.5, 127.5)),
        ("timm/vit_base_patch16_clip_384.openai_ft_in1k", ("squash", 384, "bicubic", "none", 384, 122.771, 68.501)),
        (
            "timm/vit_base_patch32_clip_384.openai_ft_in12k_in1k",
            ("squash", 404, "bicubic", "center", 384, 122.771, 68.501),
        ),
        ("timm/swinv2_base_window12to16_192to256", ("shorter", 284, "bicubic", "center", 256, 123.675, 58.395)),
        ("dinov2_vits14", ("shorter", 256, "bicubic", "center", 224, 123.675, 58.395)),
        ("dino_vitb8", ("shorter", 256, "bicubic", "center", 224, 123.675, 58.395)),
    ],
)
def test_the_recipe_is_the_librarys(name: str, expected: tuple[Any, ...]) -> None:
    """Resize, crop, interpolation, mean and std are those of the library's own evaluation."""
    recipe = find_source(name, Wish("random")).preprocess()
    assert recipe is not None
    keys = ("resize", "resize_to", "interpolation", "crop", "size")
    mean, std = round(recipe["mean"][0], 3), round(recipe["std"][0], 3)
    assert (*(recipe[key] for key in keys), mean, std) == expected
    assert recipe["color"] == "RGB"
    Preprocessing.of(recipe)


def test_every_torchvision_classifier_has_a_recipe() -> None:
    """Nothing that torchvision wants is beyond what a preprocess.json can say."""
    for name in torchvision.models.list_models(module=torchvision.models):
        recipe = find_source(f"torchvision/{name}", Wish("random")).preprocess()
        assert recipe is not None
        Preprocessing.of(recipe)


def test_the_recipe_belongs_to_the_published_weights(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file with the hash of an older release of weights gets that release's recipe, not the newest one's."""
    path = saved({}, tmp_path / "resnet50.pth")
    old = "0676ba61" + "0" * 56
    monkeypatch.setattr("build_engines.sources.torch_models.sha256", lambda file: old)
    recipe = find_source("torchvision/resnet50", Wish(path)).preprocess()
    assert recipe is not None
    assert recipe["resize_to"] == 256


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"interpolation": "nearest"}, "nearest interpolation"),
        ({"crop_mode": "border"}, "crop mode border"),
        ({"input_size": (3, 256, 128)}, "not square RGB"),
        ({"input_size": (1, 64, 64)}, "not square RGB"),
    ],
)
def test_what_a_recipe_cannot_say_is_refused(
    monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str
) -> None:
    """Other interpolations, borders and shapes are named, not approximated."""
    config = timm.get_pretrained_cfg("resnet18")
    for key, value in change.items():
        monkeypatch.setattr(config, key, value)
    monkeypatch.setattr(timm, "get_pretrained_cfg", lambda name: config)
    with pytest.raises(SourceError, match=words):
        find_source("timm/resnet18", Wish("random")).preprocess()


@pytest.mark.parametrize(
    ("name", "wish", "words"),
    [
        ("resnet19", Wish(), r"no network resnet19\. Did you mean resnet"),
        ("torchvision/vit_tiny_patch16_224", Wish(), "no network torchvision/vit_tiny_patch16_224"),
        ("timm/resnet50.a9_in1k", Wish(), r"Invalid pretrained tag .*There are: a1_in1k"),
        ("resnet18", Wish("no-such-file.pth"), r"no file no-such-file\.pth"),
        ("resnet18", Wish("random", classes=1), "at least 2 classes"),
        ("resnet18", Wish("random", size=0), "cannot be 0"),
        ("resnet18", Wish("random", task="detect"), "no task detect"),
        ("dinov2_vits14", Wish("random", classes=10), "no classes"),
        ("dinov2_vitg14", Wish(), "more than 2 GB of weights"),
        ("dinov2_vitg14", Wish("random"), "more than 2 GB of weights"),
        ("dino_resnet50", Wish(), "give the file of DINO's authors"),
        ("torchvision/squeezenet1_1", Wish("random", task="embed"), "has no last layer to leave out"),
        ("timm/vit_small_patch14_dinov2", Wish("pretrained", task="classify"), "could not be downloaded"),
        ("torchvision/resnet18", Wish(), r"could not be downloaded .*--weights FILE"),
        ("timm/resnet18.a1_in1k", Wish(), r"could not be downloaded .*--weights FILE"),
    ],
)
def test_what_cannot_be_had_is_refused(
    name: str, wish: Wish, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Unknown names, tags and files, wishes that contradict, and weights that cannot be downloaded."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(SourceError, match=words):
        loaded(find_source(name, wish))


def test_torchvisions_weights_come_from_torchs_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Pretrained weights that were downloaded before need no network; the identity has their hash."""
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    path = tmp_path / "checkpoints" / "resnet18-f37072fd.pth"
    path.parent.mkdir()
    state = shaken(torchvision.models.resnet18())
    torch.save(state, path)
    source = find_source("torchvision/resnet18")
    assert source.identity()["weights"] == "pretrained"
    assert source.identity()["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    network = loaded(source)
    assert network.labels is not None
    assert network.labels[999] == "toilet tissue"
    torch.testing.assert_close(network.module.network.state_dict()["fc.weight"], state["fc.weight"])


def test_timms_weights_come_from_its_hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The file is the one that timm asks for; it is hashed and loaded as timm does it."""
    state = shaken(timm.create_model("resnet18"))
    path = tmp_path / "model.safetensors"
    pytest.importorskip("safetensors.torch").save_file(state, path)
    asked: list[tuple[str, str]] = []

    def download(repository: str, name: str, revision: str | None) -> str:
        asked.append((repository, name))
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    source = find_source("timm/resnet18.a1_in1k", Wish(task="embed"))
    assert source.identity()["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert asked == [("timm/resnet18.a1_in1k", "model.safetensors")]
    found = loaded(source).module.served.network.state_dict()
    torch.testing.assert_close(found["layer4.1.conv2.weight"], state["layer4.1.conv2.weight"])


def test_a_torchvision_that_does_not_fit_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two builds that were not made for each other fail with a word about the pair."""
    real = builtins.__import__

    def broken(name: str, *arguments: Any, **keywords: Any) -> Any:
        if name == "torchvision":
            raise RuntimeError("operator torchvision::nms does not exist")
        return real(name, *arguments, **keywords)

    monkeypatch.setattr(builtins, "__import__", broken)
    with pytest.raises(SourceError, match=r"torch .* and torchvision .* do not fit together"):
        find_source("resnet18")


def dinov2(state: dict[str, Any], pixels: Any, *, registers: bool) -> Any:
    """The tokens of DINOv2 ViT-S/14 at 224 pixels, that of the class first, written down after the paper and its
    repository."""
    functional = torch.nn.functional
    mean, std = (torch.tensor(part).reshape(3, 1, 1) for part in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    x = (torch.tensor(pixels).permute(0, 3, 1, 2) / 255 - mean) / std
    x = functional.conv2d(x, state["patch_embed.proj.weight"], state["patch_embed.proj.bias"], stride=14)
    x = x.flatten(2).transpose(1, 2)
    grid = state["pos_embed"][:, 1:].reshape(1, 37, 37, 384).permute(0, 3, 1, 2)
    if registers:
        grid = functional.interpolate(grid, size=(16, 16), mode="bicubic", antialias=True)
    else:
        grid = functional.interpolate(grid, scale_factor=(16.1 / 37, 16.1 / 37), mode="bicubic")
    tokens = [state["cls_token"] + state["pos_embed"][:, :1], x + grid.flatten(2).transpose(1, 2)]
    if registers:
        tokens.insert(1, state["register_tokens"])
    x = torch.cat([token.expand(len(x), -1, -1) for token in tokens], dim=1)
    for index in range(12):
        block = {name.removeprefix(f"blocks.{index}."): value for name, value in state.items()}

        def linear(x: Any, name: str, block: dict[str, Any] = block) -> Any:
            return functional.linear(x, block[f"{name}.weight"], block[f"{name}.bias"])

        def norm(x: Any, name: str, block: dict[str, Any] = block) -> Any:
            return functional.layer_norm(x, (384,), block[f"{name}.weight"], block[f"{name}.bias"], 1e-6)

        q, k, v = linear(norm(x, "norm1"), "attn.qkv").unflatten(2, (3, 6, 64)).permute(2, 0, 3, 1, 4)
        attention = ((q / 8) @ k.transpose(2, 3)).softmax(3) @ v
        x = x + block["ls1.gamma"] * linear(attention.transpose(1, 2).flatten(2), "attn.proj")
        x = x + block["ls2.gamma"] * linear(functional.gelu(linear(norm(x, "norm2"), "mlp.fc1")), "mlp.fc2")
    return functional.layer_norm(x, (384,), state["norm.weight"], state["norm.bias"], 1e-6)


def unit(features: Any) -> Any:
    """Each feature with length 1."""
    return features / features.norm(dim=1, keepdim=True)


def test_dinov2_gives_its_authors_class_token(tmp_path: Path) -> None:
    """A file of the original repository, for 518 pixels, gives at 224 what the original forward() gives."""
    state = {**shaken(timm.create_model("vit_small_patch14_dinov2")), "mask_token": torch.zeros(1, 384)}
    network = loaded(find_source("dinov2_vits14", Wish(saved(state, tmp_path / "weights.pth"))))
    answers = assert_same(network, 224)
    assert (network.task, network.width, network.shown) == ("embed", 384, {"normalised": "l2"})
    token = dinov2(state, noise(5, 224), registers=False)[:, 0]
    np.testing.assert_allclose(answers, unit(token), atol=1e-4)


@pytest.mark.parametrize(("pool", "width"), [("patches", 384), ("class+patches", 768)])
def test_dinov2_gives_the_mean_of_its_patches(tmp_path: Path, pool: str, width: int) -> None:
    """Alone, or behind the class token, as its authors' linear classifiers take them; the identity says which."""
    state = {**shaken(timm.create_model("vit_small_patch14_dinov2")), "mask_token": torch.zeros(1, 384)}
    weights = saved(state, tmp_path / "weights.pth")
    source = find_source("dinov2_vits14", Wish(weights, pool=pool, normalise="none"))
    network = loaded(source)
    answers = assert_same(network, 224)
    assert (network.task, network.width, network.shown) == ("embed", width, {})
    tokens = dinov2(state, noise(5, 224), registers=False)
    mean = tokens[:, 1:].mean(1)
    expected = mean if pool == "patches" else torch.cat([tokens[:, 0], mean], 1)
    np.testing.assert_allclose(answers, expected, atol=1e-3)
    assert source.identity()["pool"] == pool
    assert "pool" not in find_source("dinov2_vits14", Wish(weights, pool="class")).identity()


@pytest.mark.parametrize("name", ["dinov2_vits14_reg", "dinov3_vits16"])
def test_registers_are_no_patches(name: str) -> None:
    """The mean is over the tokens of the picture only: those behind the class token and the registers."""
    source = find_source(name, Wish("random", pool="patches", normalise="none"))
    network = loaded(source)
    recipe = source.preprocess()
    assert recipe is not None
    size = recipe["size"]
    pixels = noise(2, size)
    mean, std = (torch.tensor(recipe[key]).reshape(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        images = (torch.tensor(pixels).permute(0, 3, 1, 2) - mean) / std
        tokens = network.module.network.network.forward_features(images)
    patches = (size // (14 if "v2" in name else 16)) ** 2
    assert tokens.shape[1] == 1 + 4 + patches
    np.testing.assert_allclose(network.reference(pixels), tokens[:, -patches:].mean(1), atol=1e-4)


def test_a_network_without_patches_has_no_choice() -> None:
    """A ResNet of DINO's pools in one way, and so does every other network; the error says so."""
    for name in ("dino_resnet50", "resnet18", "timm/resnet18"):
        with pytest.raises(SourceError, match="pools its features in its own way: leave --pool out"):
            find_source(name, Wish("random", pool="patches"))


@pytest.mark.parametrize("normalised", [True, False])
def test_a_head_is_part_of_the_module(tmp_path: Path, normalised: bool) -> None:
    """What is traced for TorchScript gives the same as the graph and the reference, head and length included."""
    state = shaken(timm.create_model("resnet18"))
    backbone = timm.create_model("resnet18", num_classes=0).eval()
    backbone.load_state_dict({name: value for name, value in state.items() if not name.startswith("fc.")})
    mean, std = (torch.tensor(part).reshape(3, 1, 1) for part in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        features = backbone((torch.tensor(noise(5, 224)).permute(0, 3, 1, 2) / 255 - mean) / std)
    features = (unit(features) if normalised else features).numpy()
    weight = np.random.default_rng(0).normal(0, 1 / features.std(axis=0).mean(), (3, 512)) / 20
    head = {"weight": weight, "bias": -weight @ features.mean(axis=0), "labels": np.array(["a", "b", "c"])}
    np.savez(tmp_path / "head.npz", normalised=normalised, **head)
    wish = Wish(saved(state, tmp_path / "weights.pth"), head=tmp_path / "head.npz")
    network = loaded(find_source("timm/resnet18", wish))
    answers = assert_same(network, 224)
    expected = torch.tensor(features @ weight.T + head["bias"]).softmax(1)
    np.testing.assert_allclose(answers, expected, atol=1e-4)
    assert (network.task, network.width, network.labels) == ("classify", 3, ("a", "b", "c"))
    with torch.no_grad():
        np.testing.assert_allclose(network.module(torch.tensor(noise(5, 224))), answers, atol=1e-4)


def test_features_of_length_1_are_part_of_the_module() -> None:
    """For TorchScript, too, the division is inside."""
    network = loaded(find_source("timm/resnet18", Wish("random", task="embed")))
    pixels = noise(3, 224)
    with torch.no_grad():
        found = network.module(torch.tensor(pixels))
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(found, network.reference(pixels), atol=1e-5)


def test_dinov2_with_registers_gives_its_authors_class_token() -> None:
    """The variant with registers stretches its positions in another way, as its authors do."""
    state = {**shaken(timm.create_model("vit_small_patch14_dinov2")), "mask_token": torch.zeros(1, 384)}
    state["register_tokens"] = torch.randn(1, 4, 384, generator=torch.Generator().manual_seed(2))
    backbone = dino.BACKBONES["dinov2_vits14_reg"]
    network = backbone.create(0, None).eval()
    state_dicts.fit(network, backbone.convert(state, network))
    pixels = noise(2, 224)
    mean, std = (torch.tensor(part).reshape(3, 1, 1) for part in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    with torch.no_grad():
        answers = network((torch.tensor(pixels).permute(0, 3, 1, 2) / 255 - mean) / std)
    np.testing.assert_allclose(answers, dinov2(state, pixels, registers=True)[:, 0], atol=1e-3)


def test_a_training_checkpoint_gives_its_backbone(tmp_path: Path) -> None:
    """The teacher's backbone is loaded, and the head of the training is left out."""
    state = shaken(torchvision.models.resnet18())
    backbone = {f"module.backbone.{name}": value for name, value in state.items() if not name.startswith("fc.")}
    head = {"module.head.mlp.0.weight": torch.zeros(8, 512)}
    path = saved({"teacher": {**backbone, **head}, "epoch": 99}, tmp_path / "checkpoint.pth")
    network = loaded(torch_models.source("small", dino.Dino("resnet18"), Wish(path)))
    assert_same(network, 224)
    assert (network.task, network.width) == ("embed", 512)


def test_every_dino_backbone_is_known_to_timm() -> None:
    """Each name of the original repositories leads to a network, with the tag of its weights."""
    for name, backbone in dino.BACKBONES.items():
        assert backbone.config is not None, name
    sizes = [f"dinov2_vit{size}14{registers}" for size in "sblg" for registers in ("", "_reg")]
    assert set(sizes) | {"dino_vits16", "dino_vits8", "dino_vitb16", "dino_vitb8"} < dino.BACKBONES.keys()


def test_positions_are_stretched_only_when_they_must_be() -> None:
    """At their own size they stay what they are; the class token's position always does."""
    positions = torch.randn(1, 1 + 9, 4)
    assert dino.stretched(positions, 3) is positions
    larger = dino.stretched(positions, 5)
    assert larger.shape == (1, 26, 4)
    assert torch.equal(larger[:, 0], positions[:, 0])


def test_weights_of_a_file_may_have_been_trained_otherwise(tmp_path: Path) -> None:
    """With a recipe of the user's, mean, std and order of channels are the checkpoint's, for graph and reference."""
    torch.save(shaken(torchvision.models.resnet18(num_classes=5)), tmp_path / "own.pth")
    mean, std = [100.0, 110.0, 120.0], [50.0, 60.0, 70.0]
    recipe = {
        "resize": "squash",
        "resize_to": 96,
        "interpolation": "bilinear",
        "crop": "none",
        "size": 96,
        "color": "BGR",
        "mean": mean,
        "std": std,
    }
    source = find_source("resnet18", Wish(weights=str(tmp_path / "own.pth"), recipe=recipe))
    assert source.preprocess() == recipe
    network = loaded(source)
    assert_same(network, 96)
    library = loaded(find_source("resnet18", Wish(weights=str(tmp_path / "own.pth"))))
    pixels = noise(3, 96)
    as_the_library = (pixels - np.array(mean, np.float32)) / np.array(std, np.float32)
    with torch.inference_mode():
        net = torchvision.models.resnet18(num_classes=5).eval()
        net.load_state_dict(torch.load(tmp_path / "own.pth", weights_only=True))
        expected = net(torch.tensor(as_the_library).permute(0, 3, 1, 2)).softmax(1).numpy()
    np.testing.assert_allclose(network.reference(pixels), expected, atol=1e-4)
    assert library.width == network.width == 5
    random = find_source("resnet18", Wish(weights="random", classes=5, recipe=recipe))
    assert random.preprocess() != recipe, "what the library knows is not overruled"
