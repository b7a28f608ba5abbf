"""A model on disk and how it is asked: a run's policy as it was trained, or any model by a template of one's choice."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from azr.config import TEMPLATES, Config, ModelConfig
from azr.config_tree import from_tree, parse_yaml
from azr.errors import UserError, did_you_mean
from azr.prompts.chat_template import choose_template, own_template
from azr.prompts.codec import PromptCodec, load_tokenizer
from azr.runs.model_export import check_model, find_source, kept_export
from azr.runs.model_folder import check_weights, model_folder, text_setting, tokenizer_errors
from azr.runs.run_dir import PromptForm, RunDirectory
from azr.tasks.prompts import CompactFormat

TRAIN = "train"
"""The template that the model was trained with."""
CHOICES = (TRAIN, *(name for name in TEMPLATES if name != "auto"))
"""Templates by name; anything else names a Jinja file."""


@dataclass(frozen=True, slots=True)
class AskedModel:
    """A model that can be started and asked."""

    place: str
    """Name that the user gave: a run, a folder or a model of the hub."""
    folder: Path
    """Hugging Face folder."""
    step: int | None
    """Step of the run; None for a model that belongs to none."""
    config: Config | None
    """Config of the run."""
    template: str
    """Which was asked for."""
    codec: PromptCodec
    context: int | None
    """Most tokens that it reads; None when its config does not tell."""

    @property
    def label(self) -> str:
        name = Path(self.place).resolve().name if Path(self.place).exists() else self.place
        return name if self.step is None else f"{name} step {self.step}"


def open_model(place: str, step: int | None = None, template: str = TRAIN) -> AskedModel:
    """Finds a model and reads its tokenizer; loads no weights, but where a run has adapters: these are merged first.

    ``place``: a run directory, a Hugging Face folder or a hub name; ``step``: of the run, by default its last policy.
    ``template``: `TRAIN`, ``conversation``, ``tokenizer`` or the name of a Jinja file. The last two are taken as they
    are: nothing opens the thinking where they do not, and only end tokens end a response.

    Raises UserError when there is no such model, step or template.
    """
    if template not in CHOICES and not Path(template).is_file():
        hint = did_you_mean(template, CHOICES)
        raise UserError(f"The template {template!r} is neither {', '.join(CHOICES)} nor a file{hint}")
    config, form = None, None
    if RunDirectory(Path(place)).config.is_file():
        source = find_source(Path(place), step)
        assert source.run is not None
        check_model(source.folder)
        tree = parse_yaml(source.run.config.read_text(encoding="utf-8"))
        tree.pop("algorithm", None)  # whose estimator may be a plug-in's, which need not be installed here
        config, form = from_tree(tree, Config()), PromptForm.read(source.run.prompt_form)
        folder = kept_export(source) if source.has_adapters else source.folder
        place, step = str(source.run.path), source.step
    elif step is not None:
        raise UserError(f"{place} is one model and has no steps: leave out --step.")
    else:
        fetched = model_folder(place, fetch=True, named="MODEL")
        assert fetched is not None, "fetching finds it or raises"
        check_weights(folder := fetched)
    with tokenizer_errors(place, folder, named="MODEL"):
        codec = _codec(folder, template, config, form)
        codec.check_vocabulary(text_setting(folder, "vocab_size"), place)
    return AskedModel(place, folder, step, config, template, codec, text_setting(folder, "max_position_embeddings"))


def _codec(folder: Path, template: str, config: Config | None, form: PromptForm | None) -> PromptCodec:
    tokenizer = load_tokenizer(str(folder))
    compact = CompactFormat.answer in tokenizer.get_vocab()
    if compact and template != TRAIN:
        raise UserError(f"{folder} has the compact format, which has no template: leave out --template.")
    if compact:
        # Some models work their answers out before the first tag, whatever run they come from.
        return PromptCodec(tokenizer, CompactFormat("answer"), end_ids=form.stops.token_ids if form else ())
    asking = partial(PromptCodec.with_template, str(folder), tokenizer=tokenizer)
    model = config.model if config is not None else ModelConfig()
    if template == TRAIN:
        # A base model is asked by examples: it was never trained on a template.
        is_base = config is None and own_template(tokenizer) is None
        asking = partial(asking, prompt_format="completion" if is_base else model.prompt_format)
        if form is not None and form.template is not None:
            return asking(form.template, stops=form.stops)
        return asking(choose_template(model.template, tokenizer, model.thinking))
    chosen = choose_template(template, tokenizer)
    return asking(chosen) if template == "conversation" else asking(chosen, stop_strings=())
