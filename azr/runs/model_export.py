"""Takes a model out of a run as a plain Hugging Face folder with a model card. Copies and edits files; weights and
torch are loaded only to merge adapters into the weights that they belong to, and to take out a text model."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

import yaml
from huggingface_hub import EvalResult, HfApi, ModelCard, ModelCardData
from huggingface_hub.utils import validate_repo_id
from safetensors import safe_open

from azr.algorithms.architectures import READ_IMAGES
from azr.errors import UserError
from azr.files import atomic_folder
from azr.runs.checkpoint_store import CorruptCheckpoint, RunState, step_of
from azr.runs.metrics import EVAL, has_eval
from azr.runs.model_folder import check_model, hub_errors, model_folder, must_be_local, read_object, write_object
from azr.runs.run_dir import PromptForm, RunDirectory
from azr.text import first_line
from azr.train import adapter_files
from azr.train.adapter_files import ADAPTER_CONFIG, ADAPTER_FILE, BASE_FILE

_TASK = "text-generation"
_OTHER_WEIGHTS = {".bin", ".pt", ".pth", ".h5", ".msgpack", ".onnx", ".gguf"}
_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
_USE = Template(Path(__file__).with_name("model_use.md").read_text(encoding="utf-8"))
_MESSAGE = """tokenizer.apply_chat_template(
    [{"role": "user", "content": "What is 6 times 7?"}], add_generation_prompt=True, tokenize=False
)"""
_TASK_IN_TAGS = r'"<|solve|><|deduction|><|program|>def f(x):\n    return x + 1<|input|>2<|answer|>"'
_ADAPTERS = (
    "These are adapters: peft's `PeftModel.from_pretrained(base, folder)` puts them into that model, and vLLM serves "
    "them with `--enable-lora --lora-modules NAME=folder`. The tokenizer here has the chat template of the run.",
)


@dataclass(frozen=True, slots=True)
class Source:
    """A Hugging Face folder to export."""

    folder: Path
    step: int | None
    """Of the run; None for a model that belongs to none."""
    base: Path | None
    """Where the model was that the run began with, as its config says: a folder, or a hub name."""
    run: RunDirectory | None = None
    """None for a model that belongs to none."""

    @property
    def has_adapters(self) -> bool:
        """Whether it holds adapters instead of weights of its own."""
        return (self.folder / ADAPTER_CONFIG).is_file()


def find_source(place: Path, step: int | None) -> Source:
    """Return the policy of a run's step, by default the last; or, for a model's own folder or hub name, that one.

    Raises UserError when there is no such run or step; the message lists the steps there are."""
    is_here = (place / "config.json").is_file()
    if is_here or not must_be_local(str(place)):
        if step is not None:
            what = "is one model and has no steps" if is_here else "is not a run here, and a model has no steps"
            raise UserError(f"{place} {what}: leave out --step.")
        folder = model_folder(str(place), fetch=True, named=f"There is no run {place} here, and the model")
        assert folder is not None, "fetching finds it or raises"
        return Source(folder, None, None)
    if (named := step_of(place)) >= 0 and place.resolve().parent.name == "checkpoints" and step in (None, named):
        place, step = place.resolve().parents[1], named
    run, folders = RunDirectory(place), policies(place)
    chosen = max(folders) if step is None else step
    if chosen not in folders:
        *before, last = map(str, sorted(folders))
        there_are = f"there are steps {', '.join(before)} and {last}" if before else f"there is only step {last}"
        raise UserError(f"{place} has no policy of step {chosen}: {there_are}.")
    try:
        base = Path(yaml.safe_load(run.config.read_text(encoding="utf-8"))["model"]["path"])
    except (yaml.YAMLError, OSError, KeyError, TypeError, UnicodeDecodeError) as error:
        raise UserError(f"{run.config} does not say which model the run began with: {error!r}.") from error
    return Source(folders[chosen], chosen, base, run)


def policies(place: Path) -> dict[int, Path]:
    """The folders of a run's policies by step. Raises UserError when there is none, or this is not a run."""
    run = RunDirectory(place)
    if not run.config.is_file():
        raise UserError(f"{place} is not a run: name a run directory, such as orz_ckpt/first.")
    saved = run.checkpoints.glob("*/policy")
    folders = {step: path for path in saved if (step := step_of(path.parent)) >= 0}
    if not folders:
        raise UserError(f"{run.checkpoints} holds no policy yet: wait until the run has saved one.")
    return folders


def export(source: Source, out: Path, *, merged: bool = True, base: str | None = None) -> int:
    """Make ``out`` a folder that transformers and vLLM load; it is complete or it is not there. Returns its bytes.

    Adapters are ``merged`` into the weights of ``base``, by default the model that the run began with; otherwise the
    folder is one of adapters, as peft and vLLM load them beside that model. Raises UserError when the source is not
    complete or the base another one, ``out`` is taken, or it cannot be written.
    """
    check_model(source.folder)
    if not source.has_adapters and (base is not None or not merged):
        raise UserError(f"{source.folder} has whole weights and no adapters: leave out --adapter and --base.")
    if base is not None and not merged:
        raise UserError("--base says what adapters are merged into, and --adapter leaves them alone: leave one out.")
    place = out.resolve()
    if place.is_relative_to(source.folder.resolve()):
        raise UserError(f"{out} lies inside {source.folder}, which is to be exported: choose another folder.")
    if place.is_dir() and any(place.iterdir()):
        raise UserError(f"{out} is not empty: choose another folder, or remove or rename that one.")
    if place.is_file():
        raise UserError(f"{out} is a file: choose a folder.")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with atomic_folder(place) as staging:
            if read_object(source.folder / "config.json").get("model_type") in READ_IMAGES:
                write_text_model(source.folder, staging)
            else:
                _copy(source, staging, merged=merged)
            if source.has_adapters and merged:
                found, named = (str(source.base), "model.path of the run") if base is None else (base, "--base")
                merge_adapters(source.folder, found, staging, named)
            _describe(source, staging, merged=merged)
            add_former_keys(staging)
            nbytes = sum(path.stat().st_size for path in staging.rglob("*") if path.is_file())
    except OSError as error:
        raise UserError(f"{out} was not written: {error}.") from error
    return nbytes


def write_text_model(folder: Path, out: Path) -> None:
    """Write the language model of one that reads images too, and its tokenizer. All of it is loaded into memory.

    `from_pretrained` of a text class would leave most of its weights random, without an error. Raises UserError if
    transformers cannot load or save it.
    """
    from transformers import AutoModelForCausalLM, AutoModelForImageTextToText, AutoTokenizer

    try:
        whole = AutoModelForImageTextToText.from_pretrained(folder, dtype="auto")
        text = AutoModelForCausalLM.from_config(whole.config.text_config, dtype=whole.dtype)
        text.model.load_state_dict(whole.model.language_model.state_dict())
        text.lm_head.load_state_dict(whole.lm_head.state_dict())
        text.generation_config = whole.generation_config
        text.save_pretrained(out)
        AutoTokenizer.from_pretrained(folder).save_pretrained(out)
    except (ValueError, RuntimeError, ImportError) as error:
        raise UserError(f"The text model of {folder} cannot be taken out: {first_line(error)}.") from error


def kept_export(source: Source) -> Path:
    """Return the export of a run's step beside its checkpoints, made when it is not there yet. Raises UserError as
    `export`, or when the one that is there is of an older policy."""
    assert source.run is not None and source.step is not None, "other models need no export"
    out = source.run.exported(source.step)
    if not out.is_dir():
        try:
            export(source, out)
        except UserError:
            if not out.is_dir():  # or another process has made it meanwhile
                raise
    elif max(path.stat().st_mtime for path in source.folder.iterdir()) > out.stat().st_mtime:
        raise UserError(f"{out} is older than {source.folder}: remove the former, and it is made anew.")
    return out


def _describe(source: Source, out: Path, *, merged: bool) -> None:
    """Adds what the weights do not say of a run's policy: the prompts it was trained on, their ends, and a card."""
    if source.run is None or source.step is None:
        return
    form = PromptForm.read(source.run.prompt_form)
    if form is not None and form.template is not None:
        (out / "chat_template.jinja").write_text(form.template, encoding="utf-8")
        settings = read_object(out / "tokenizer_config.json")
        if settings.pop("chat_template", None) is not None:
            write_object(out / "tokenizer_config.json", settings)
    if form is not None and merged:
        ends = read_object(out / "generation_config.json") | {"eos_token_id": list(form.stops.token_ids)}
        if form.stops.strings:
            ends["stop_strings"] = list(form.stops.strings)
        write_object(out / "generation_config.json", ends)
    card = _card(source, source.run, form, adapters=not merged, code=any(out.glob("*.py")))
    (out / "README.md").write_text(card, encoding="utf-8")


def _copy(source: Source, out: Path, *, merged: bool) -> None:
    """Without the weights of adapters that are to be merged; without the base's config beside adapters."""
    left_out = (ADAPTER_CONFIG, ADAPTER_FILE, BASE_FILE) if merged else ("config.json", "generation_config.json")
    for path in sorted(source.folder.rglob("*")):
        name = path.relative_to(source.folder)
        hidden = any(part.startswith(".") or part == "__pycache__" for part in name.parts)
        other = name.suffix in _OTHER_WEIGHTS or name.name.endswith(".bin.index.json")
        if path.is_file() and not hidden and not other and str(name) not in left_out:
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, out / name)
    if not merged:
        return
    _add_code(source, out)
    if not (out / "generation_config.json").exists():
        config = read_object(out / "config.json")
        ids = {key: config[key] for key in _TOKEN_IDS if config.get(key) is not None}
        write_object(out / "generation_config.json", {"_from_model_config": True, **ids})


def _add_code(source: Source, out: Path) -> None:
    """Brings the code files that a config names and a checkpoint lacks: a tokenizer is saved without its own."""
    maps = [read_object(out / name).get("auto_map", {}) for name in ("config.json", "tokenizer_config.json")]
    entries = [each for auto_map in maps for entry in auto_map.values()
               for each in (entry if isinstance(entry, list) else [entry])]  # fmt: skip
    # A reference to another repository reads owner/name--module.Class.
    named = {f"{each.partition('.')[0]}.py" for each in entries if each is not None and "--" not in each}
    missing = sorted(name for name in named if not (out / name).is_file())
    if not missing:
        return
    if source.base is None or not (source.base / missing[0]).is_file():
        places = f"{source.folder}" if source.base is None else f"{source.folder} nor in {source.base}"
        raise UserError(f"{missing[0]}, which a config names, is not in {places}: put it into the former.")
    for path in sorted(source.base.glob("*.py")):
        if not (out / path.name).exists():
            shutil.copyfile(path, out / path.name)


def merge_adapters(adapters: Path, base: str, out: Path, named: str) -> None:
    """Write the merged weights, in the type of the adapters, into ``out``, one tensor at a time as trainers do it for
    their engines.

    ``adapters``: a folder that a checkpoint holds; ``base``: folder or hub name of the model that they were trained
    with, which messages call ``named``. Raises UserError when the base cannot be had, is another one or holds no
    safetensors, and OSError when ``out`` cannot be written.
    """
    import torch

    from azr.algorithms.lora import DOWN, IN_FILES, UP, four_bit_rounded, merge
    from azr.train.shards import TensorSpec, write_model

    folder = model_folder(base, fetch=True, named=named)
    assert folder is not None, "fetching finds it or raises"
    base_files, in_four_bits = adapter_files.read_base(adapters)
    adapter_files.check_base(base_files, adapter_files.hash_weights(folder), str(adapters))
    if in_four_bits:
        adapter_files.check_package("four_bit")
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise UserError(f"{folder} has no weights as safetensors, which merging reads: save the model as such first.")
    settings: dict[str, Any] = json.loads((adapters / ADAPTER_CONFIG).read_text(encoding="utf-8"))
    scale = settings["lora_alpha"] / settings["r"]
    with ExitStack() as opened:
        trained = opened.enter_context(safe_open(adapters / ADAPTER_FILE, framework="pt"))
        layers = {name.removeprefix(IN_FILES).removesuffix(DOWN) for name in trained.keys() if name.endswith(DOWN)}  # noqa: SIM118
        sources = [opened.enter_context(safe_open(file, framework="pt")) for file in files]
        held = dict(sorted((name, source) for source in sources for name in source.keys()))  # noqa: SIM118
        if strange := sorted(layer for layer in layers if f"{layer}.weight" not in held):
            raise UserError(
                f"{folder} has no {strange[0]}.weight, which {adapters} adapts: save the base by transformers."
            )
        dtype: torch.dtype = trained.get_tensor(next(iter(trained.keys()))).dtype

        def tensors() -> Iterator[torch.Tensor]:
            for name, source in held.items():
                weight, layer = source.get_tensor(name).to(dtype), name.removesuffix(".weight")
                if name in in_four_bits:
                    weight = four_bit_rounded(weight)
                if layer in layers:
                    down, up = (trained.get_tensor(f"{IN_FILES}{layer}{part}") for part in (DOWN, UP))
                    weight = merge(weight, down, up, scale).to(dtype)
                yield weight

        specs = [TensorSpec(name, dtype, tuple(source.get_slice(name).get_shape())) for name, source in held.items()]
        write_model(out, specs, tensors())


def check_hub(repository: str) -> None:
    """Raise UserError if the hub does not know the user, or a repository cannot have this name."""
    with hub_errors(f"{repository} cannot be pushed to (.venv/bin/hf auth login logs in)"):
        validate_repo_id(repository)
        HfApi().whoami()


def push(folder: Path, repository: str, *, private: bool) -> str:
    """Upload a folder to a repository of the hub, made if missing. Return its address; UserError if it is refused."""
    api = HfApi()
    with hub_errors(f"{folder} is complete, but was not pushed; .venv/bin/hf upload {repository} {folder} tries again"):
        api.create_repo(repository, private=private or None, exist_ok=True)  # None: as its owner has it
        api.upload_folder(repo_id=repository, folder_path=folder, commit_message="A policy trained by AZR on Ray")
    return f"{api.endpoint}/{repository}"


def _card(source: Source, run: RunDirectory, form: PromptForm | None, *, adapters: bool, code: bool) -> str:
    """Return the model card. ``adapters``: the folder holds only these. ``code``: its tokenizer or model is code."""
    assert source.step is not None, "other models get no card"
    try:
        _, version = RunState.read(source.folder.parent)
    except (CorruptCheckpoint, OSError):
        version = "of unknown version"
    step, evaluated = last_evaluation(run.metrics, source.step)
    chats = form is not None and form.template is not None
    wrote = "wrote its messages by the tokenizer's chat template" if chats else "used no chat template"
    asking = [f"The run {wrote}. `azr prompts` with the config below prints its prompts."]
    if form is not None and not adapters:
        trust = ", trust_remote_code=True" if code else ""
        prompt = _MESSAGE if chats else _TASK_IN_TAGS
        asking.append(_USE.substitute(trust=trust, prompt=prompt, stop=list(form.stops.strings)).strip())
    lines = [
        f"---\n{_card_data(source, run, evaluated, adapters=adapters)}\n---",
        "# A policy trained by AZR on Ray",
        f"Step {source.step} of a run from `{source.base}`: Absolute Zero (arXiv 2505.03335). Code: azr {version}.",
        *(_ADAPTERS if adapters else ()),
        "## How to use it",
        *asking,
        "## Evaluations",
        evaluation_table(step, evaluated) if evaluated else "The run evaluated no step up to this one.",
        "## Config",
        f"```yaml\n{run.config.read_text(encoding='utf-8').strip()}\n```",
    ]
    return "\n\n".join(lines) + "\n"


def _card_data(source: Source, run: RunDirectory, evaluated: Mapping[str, float], *, adapters: bool) -> ModelCardData:
    """Return the front matter. The licence is the base's, if its folder has a card that names one."""
    base, license = str(source.base), None
    card = Path(base) / "README.md"
    if card.is_file() and card.read_text(encoding="utf-8").startswith("---"):
        license = ModelCard.load(card, ignore_metadata_errors=True).data.get("license")
    shares = [(name.rpartition("/"), value) for name, value in evaluated.items() if f"{name}_low" in evaluated]
    results = [
        EvalResult(_TASK, dataset_type=suite, dataset_name=suite, metric_type=metric, metric_value=value)
        for (suite, _, metric), value in shares
    ]
    return ModelCardData(
        base_model=base if base.count("/") == 1 and not Path(base).exists() else None,
        eval_results=results or None,
        library_name="peft" if adapters else "transformers",
        license=license,
        model_name=run.path.absolute().name,
        pipeline_tag=_TASK,
        tags=["absolute-zero", "self-play", "reinforcement-learning"],
    )


def last_evaluation(metrics: Path, step: int) -> tuple[int, dict[str, float]]:
    """Return the last evaluated step up to this one with its measures; none if there was no evaluation."""
    last: dict[str, Any] = {"step": 0}
    # A line that has no end yet is of a later step: the run is writing it, or was killed then.
    *lines, _ = metrics.read_bytes().split(b"\n") if metrics.is_file() else [b""]
    for line in lines:
        with suppress(ValueError, KeyError, TypeError):  # a damaged line says nothing
            record = json.loads(line)
            if record["step"] <= step and has_eval(record):
                last = record
    found = {name.removeprefix(EVAL): value for name, value in sorted(last.items()) if name.startswith(EVAL)}
    return last["step"], {name: value for name, value in found.items() if isinstance(value, float)}


def evaluation_table(step: int, evaluated: Mapping[str, float]) -> str:
    """Return the measures of an evaluation as a Markdown table, each with its interval if it has one."""
    title = f"After step {step}, shares of right answers with intervals of 95%, and lengths:"
    rows = [title, "", "| measure | value |", "|---|---|"]
    for name, value in evaluated.items():
        if not name.endswith(("_low", "_high")):
            low, high = evaluated.get(f"{name}_low"), evaluated.get(f"{name}_high")
            rows.append(f"| {name} | {value:.3f}{'' if low is None else f' [{low:.3f}, {high:.3f}]'} |")
    return "\n".join(rows)


def add_former_keys(folder: Path) -> None:
    """Add the keys of transformers 4 and its kin to config.json and tokenizer_config.json; all new ones stay. A reader
    of former keys alone takes defaults for the rest without a word: a rope theta of 10,000, unscaled, float32."""
    if (folder / "config.json").is_file():
        config = read_object(folder / "config.json")
        former = {"torch_dtype": config["dtype"]} if config.get("dtype") else {}
        rope = config.get("rope_parameters") or {}
        local, whole = rope.get("sliding_attention") or {}, rope.get("full_attention") or rope
        if whole.get("rope_type") != "proportional":  # of Gemma 4, which is newer than former readers
            former |= _former_rope(whole)
            if "rope_theta" in local:
                former["rope_local_base_freq"] = local["rope_theta"]
        write_object(folder / "config.json", config | former)
    settings = read_object(folder / "tokenizer_config.json")
    if settings.get("tokenizer_class") == "TokenizersBackend":
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # the same class in both versions
    # Version 4 wants names for these tokens, and reads a list of them here.
    if isinstance(settings.get("extra_special_tokens"), list):
        settings["additional_special_tokens"] = settings.pop("extra_special_tokens")
    write_object(folder / "tokenizer_config.json", settings)


def _former_rope(rope: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of rotary positions that stood apart: base and share of a head, then how they are scaled."""
    former: dict[str, Any] = {key: rope[key] for key in ("rope_theta", "partial_rotary_factor") if key in rope}
    scaling = {key: value for key, value in rope.items() if key not in former}
    kind = scaling.pop("rope_type", "default")
    if kind == "longrope":  # Phi-3's config takes exactly three keys, and the length beside them.
        length = {key: scaling.pop(key) for key in ("original_max_position_embeddings",) if key in scaling}
        return former | length | {"rope_scaling": {"type": kind, **scaling}}
    if kind != "default":
        former["rope_scaling"] = {"rope_type": kind, "type": kind, **scaling}
    return former
