"""Prompts of the shipped recipes as text and ids, where responses end, and what never becomes a control token."""

import hashlib
import json
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from azr.config import Config
from azr.config_tree import override
from azr.errors import UserError
from azr.prompts.codec import PromptCodec
from azr.records import Completion, FinishReason
from azr.tasks.prompts import CompactFormat, CompletionFormat, Section
from azr.tasks.registry import KINDS
from tests import chat_tokenizers
from tests.conftest import byte_tokenizer
from tests.recipes import recipes
from tests.runs import factory

GOLDEN = Path(__file__).with_name("golden_prompts")
"""Made anew by running this file with ``AZR_WRITE_GOLDEN=1``; read the difference before you commit it."""
CHAT = [name for name, config in recipes().items() if config.model.prompt_format in ("auto", "chat") and config.kinds]
COMPACT = [name for name, config in recipes().items() if config.model.prompt_format == "compact"]
IN_FULL = ("azr_coder7b_ppo", "azr_14m_mini")
TOKENIZERS = {
    "chatml": (chat_tokenizers.chatml(), ["<|im_end|>", "<|endoftext|>"]),
    "llama": (chat_tokenizers.llama(), ["<|end_of_text|>", "<|eot_id|>"]),
    "plain": (chat_tokenizers.plain(), None),
}
TEMPLATES = {f"{made}-conversation": (made, "auto") for made in TOKENIZERS}
TEMPLATES |= {"chatml-tokenizer": ("chatml", "tokenizer")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("tokenizers")
    return {name: chat_tokenizers.save(made, root / name, ends) for name, (made, ends) in TOKENIZERS.items()}


def load(folder: Path, config: Config | None = None, **values) -> PromptCodec:
    config = config or Config()
    asked = config.model.prompt_format.replace("auto", "chat")
    return PromptCodec.load(override(config, {"model.path": str(folder), "model.prompt_format": asked, **values}))


def completion(codec: PromptCodec, text: str, reason: FinishReason = "stop") -> Completion:
    return factory.completion(codec.encode(text), finish=reason)


def prompts(codec: PromptCodec) -> dict[str, list[int]]:
    by_name = {}
    for name in ("deduction", "abduction", "induction", "error"):
        kind = KINDS[name]
        by_name[f"{name}.proposer"] = codec.proposal_ids(kind, [kind.seed()]).tolist()
        by_name[f"{name}.solver"] = codec.solver_prompt(kind, kind.seed()).tolist()
    return by_name


@pytest.mark.parametrize(
    "recipe, template",
    [(recipe, template) for recipe in CHAT for template in TEMPLATES] + [(recipe, "compact") for recipe in COMPACT],
)
def test_prompts_of_every_recipe_are_the_golden_ones(recipe, template, folders):
    """Their ids by hash, all texts of one recipe in full."""
    config = recipes()[recipe]
    folder, choice = TEMPLATES.get(template, (None, "auto"))
    codec = load(Path(config.model.path) if folder is None else folders[folder], config, **{"model.template": choice})
    made = prompts(codec)
    digests = {name: hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16] for name, ids in made.items()}
    text = "".join(f"======== {name}, {len(ids)} tokens\n{codec.decode(ids)}\n" for name, ids in made.items())
    index, whole, key = GOLDEN / "digests.json", GOLDEN / f"{template}.txt", f"{recipe}, {template}"
    if os.environ.get("AZR_WRITE_GOLDEN") == "1":
        GOLDEN.mkdir(exist_ok=True)
        known = json.loads(index.read_text()) if index.exists() else {}
        index.write_text(json.dumps(known | {key: digests}, indent=1, sort_keys=True) + "\n")
        if recipe in IN_FULL:
            whole.write_text(text)
    if recipe in IN_FULL:
        assert text == whole.read_text()
    assert digests == json.loads(index.read_text())[key]


@pytest.mark.parametrize(
    "made, choice, end, ends",
    [
        (chat_tokenizers.chatml(), "auto", "\nAssistant: <think>", {"<|endoftext|>"}),
        (chat_tokenizers.chatml(instruct=True), "auto", "<|im_start|>assistant\n", {"<|im_end|>"}),
        (chat_tokenizers.chatml(), "tokenizer", "assistant\n", {"<|endoftext|>", "<|im_end|>"}),
        (chat_tokenizers.chatml(instruct=True), "conversation", "\nAssistant: <think>", {"<|im_end|>"}),
        (chat_tokenizers.llama(), "auto", "\nAssistant: <think>", {"<|end_of_text|>"}),
        (chat_tokenizers.llama(instruct=True), "auto", "<|end_header_id|>\n\n", {"<|eot_id|>"}),
        (chat_tokenizers.plain(), "auto", "\nAssistant: <think>", {"</s>"}),
    ],
)
def test_a_template_is_chosen_by_what_the_model_was_trained_on(made, choice, end, ends, tmp_path):
    codec = load(chat_tokenizers.save(made, tmp_path), **{"model.template": choice})
    seed = KINDS["deduction"].seed()
    ids = codec.solver_prompt(KINDS["deduction"], seed).tolist()
    text = codec.decode(ids)
    assert text.endswith(end) and "between <answer> and </answer>" in text
    assert codec.stops.strings == ("</answer>",)
    assert set(codec.stops.token_ids) == {made.convert_tokens_to_ids(token) for token in ends}
    if made.bos_token_id is not None:
        assert ids[0] == made.bos_token_id and ids.count(made.bos_token_id) == 1
    # A reader of an exported model gets the same ids by the usual way.
    question = text.removeprefix(made.bos_token or "").partition("User: ")[2].partition("\nAssistant: ")[0]
    if end.startswith("\nAssistant"):
        made.chat_template = codec.template
        turns = [{"role": "user", "content": question}]
        assert made.apply_chat_template(turns, add_generation_prompt=True, return_dict=False) == ids


@pytest.mark.parametrize(
    "made, choice, thinking, end",
    [
        (chat_tokenizers.chatml(instruct=True), "auto", "open", "<|im_start|>assistant\n<think>"),
        (chat_tokenizers.chatml(instruct=True), "auto", "none", "<|im_start|>assistant\n"),
        (chat_tokenizers.plain(), "auto", "open", "\nAssistant: <think>"),
        (chat_tokenizers.plain(), "auto", "none", "\nAssistant:"),
    ],
)
def test_thinking_is_opened_and_asked_for_only_where_it_is_wanted(made, choice, thinking, end, tmp_path):
    """Strict then takes what the prompt shows as a whole response."""
    codec = load(chat_tokenizers.save(made, tmp_path), **{"model.template": choice, "model.thinking": thinking})
    text = codec.decode(codec.solver_prompt(KINDS["deduction"], KINDS["deduction"].seed()))
    assert text.endswith(end) and ("think" in text) == codec.opens_thinking == (thinking == "open")
    shown = text.partition("whole response could be:")[2].partition("Your question")[0].removeprefix("\n<think>")
    assert codec.parse_response(completion(codec, shown)) == (Section("output", "'anetPL'"),)


@pytest.mark.parametrize("name", chat_tokenizers.LIKE)
def test_templates_of_newer_families_are_taken_and_their_thinking_can_be_closed(name, tmp_path):
    made, (_, _, prompt, ends) = chat_tokenizers.like(name), chat_tokenizers.LIKE[name]
    folder = chat_tokenizers.save(made, tmp_path, [made.eos_token, *ends])
    auto = load(folder)
    assert auto.auto_template().startswith("conversation" if name == "glm4" else "tokenizer")
    codec = load(folder, **{"model.template": "tokenizer"})
    assert codec.stops.token_ids == tuple(sorted({made.convert_tokens_to_ids(end) for end in (made.eos_token, *ends)}))
    text = codec.decode(codec.solver_prompt(KINDS["deduction"], KINDS["deduction"].seed()))
    assert text.endswith(prompt if "{%" not in prompt else "<think>\n")
    assert codec.opens_thinking == ("think" in prompt)
    if name == "olmo3-think":
        with pytest.raises(UserError, match=r"opens the thinking itself, but model\.thinking is none"):
            load(folder, **{"model.template": "tokenizer", "model.thinking": "none"})
    else:
        silent = load(folder, **{"model.template": "tokenizer", "model.thinking": "none"})
        assert not silent.opens_thinking
        assert silent.decode(silent.ask("why?")).endswith("<think>\n\n</think>\n\n") == codec.opens_thinking


@pytest.mark.parametrize("prompt_format", ["completion", "worked"])
@pytest.mark.parametrize("name", list(KINDS))
def test_a_response_is_read_with_the_block_that_its_prompt_opened(name, prompt_format, folders):
    """Of a proposal and of an answer, by examples, whatever reward.format says."""
    codec = load(folders["chatml"], **{"model.prompt_format": prompt_format})
    kind, style = KINDS[name], CompletionFormat(str.encode)
    task = kind.examples(10)[0]
    working = kind.working(task) if prompt_format == "worked" else ()
    assert codec.prompt_format == prompt_format and codec.continues_examples
    for prompt, before, sections in (
        (codec.proposal_ids(kind, [kind.seed()]), (), kind.proposal(task)),
        (codec.solver_prompt(kind, kind.seed()), working, kind.solution(task)),
    ):
        assert codec.decode(prompt).endswith("```trace\n") == bool(before)
        said = completion(codec, style.response([*before, *sections]) + "\nExercise ")
        assert codec.parse_response(replace(said, prompt_ids=prompt), kind.labels) == sections
        assert codec.parse_response(said, kind.labels) != sections
        cut_off = replace(said, prompt_ids=prompt, finish_reason="length")
        assert codec.parse_response(cut_off, kind.labels) is None
    assert codec.stops.strings == ("```\n\n", "\nExercise ")


def test_every_end_token_of_the_model_ends_a_response(folders):
    codec = load(folders["chatml"])
    made = TOKENIZERS["chatml"][0]
    answer = "</think><answer>\n```output\n3\n```\n</answer>"
    ends = [made.convert_tokens_to_ids(token) for token in ("<|endoftext|>", "<|im_end|>")]
    assert codec.stops.token_ids == tuple(sorted(ends))
    for token in ("<|endoftext|>", "<|im_end|>", "", ">\n\nUser: thanks"):
        assert codec.parse_response(completion(codec, answer + token)) == (Section("output", "3"),)
    assert codec.parse_response(completion(codec, answer, "length")) is None


def test_the_format_reward_is_the_configured_one(folders):
    text = "<answer>\n```output\n3\n```\n</answer>"
    for wanted, sections in (("strict", None), ("answer", (Section("output", "3"),))):
        codec = load(folders["plain"], **{"reward.format": wanted})
        assert codec.parse_response(completion(codec, text)) == sections


@given(token=st.sampled_from(["<|im_end|>", "<|im_start|>", "<|endoftext|>"]), before=st.text(), after=st.text())
@settings(max_examples=60, deadline=None)
@pytest.mark.parametrize("place", ["program", "inputs", "outputs", "message"])
def test_no_text_of_an_accepted_task_becomes_a_control_token(place, token, before, after, folders):
    """What is accepted has as many control tokens in its prompts as a harmless task; what has more is refused."""
    codec, kind = _CODECS.setdefault("chatml", load(folders["chatml"])), KINDS["induction"]
    control = set(TOKENIZERS["chatml"][0].all_special_ids) | {
        TOKENIZERS["chatml"][0].convert_tokens_to_ids(text) for text in ("<|im_start|>", "<|im_end|>")
    }
    harmless = kind.seed()
    for text in (before + token + after, before + after):
        written = (text,) * len(harmless.inputs) if place.endswith("puts") else text
        task = replace(harmless, **{place: written})
        shown = replace(task, kind="deduction")
        ids = [*codec.solver_prompt(kind, task), *codec.proposal_ids(KINDS["deduction"], [shown])]
        usual = [*codec.solver_prompt(kind, harmless), *codec.proposal_ids(KINDS["deduction"], [harmless])]
        smuggled = sum(i in control for i in ids) != sum(i in control for i in usual)
        assert codec.has_control_tokens(kind, task) or not smuggled
    assert codec.has_control_tokens(kind, replace(harmless, program=token))
    assert not codec.has_control_tokens(kind, harmless)


def test_rows_with_control_tokens_are_refused_and_those_that_name_tags_are_not(folders):
    made = chat_tokenizers.chatml()
    made.add_special_tokens({"additional_special_tokens": ["<think>"]})
    codec = PromptCodec.with_template(str(folders["chatml"]), made.chat_template, made)
    for turns in ([("user", "a<|im_end|>")], [("user", "?"), ("assistant", "<|endoftext|>"), ("user", "?")]):
        row = [{"role": role, "content": text} for role, text in turns]
        for ask in (codec.converse, partial(codec.turns_fit, max_tokens=99)):
            with pytest.raises(UserError, match=r"its prompt holds <\|\w+\|>, which is a control token of this model"):
                ask(row)
    assert codec.turns_fit([{"role": "user", "content": "Think in <think> and </think>, <|im_en"}], 99)


_CODECS: dict[str, PromptCodec] = {}


def test_compact_tags_and_added_tokens_that_are_written_like_control_tokens_are_such():
    """Qwen's tokenizers add tokens without calling them special."""
    made = chat_tokenizers.chatml()
    made.add_tokens(["<|fim_middle|>", "<tool_call>", "blank", "<b>"])
    compact, added = PromptCodec.load(recipes()["azr_14m_mini"]), PromptCodec(made, CompactFormat())
    kind, seed = KINDS["deduction"], KINDS["deduction"].seed()
    for codec, text, refused in (
        (compact, "<|answer|><|input|>7", True), (compact, "<|answer|", False), (added, "<|fim_middle|>", True),
        (added, "<tool_call>", True), (added, "blank", False), (added, "<b>", False),
    ):  # fmt: skip
        assert codec.has_control_tokens(kind, replace(seed, outputs=(repr(text),))) is refused, text


@pytest.mark.parametrize("made, values, chosen", [
    ("plain", {}, "completion"), ("llama", {}, "completion"), ("chatml", {}, "chat"),
    *(("plain", values, "chat") for values in (
        {"model.template": "conversation"}, {"model.thinking": "none"}, {"data.path": "rows.jsonl"},
        {"selfplay.induction_inputs": 11},
    )),
])  # fmt: skip
def test_auto_continues_examples_where_the_model_has_no_template_and_nothing_needs_words(made, values, chosen, folders):
    config = override(Config(), {"model.path": str(folders[made]), **values})
    assert PromptCodec.load(config).prompt_format == chosen


NOT_ONCE = "does not write the user's message once"
REFUSED = {
    "{% if %}": r"template.jinja does not parse: line 1: ", "hello": NOT_ONCE,
    "{{ raise_exception('no users') }}": "cannot write a user's message: no users; correct it",
    **{f"{{{{ messages[0]['content'] | {name} }}}}": NOT_ONCE for name in ("upper", "e", "tojson")},
    "{{ 1 / 0 }}": "cannot write a user's message: division by zero; correct it",
    "{{ range(10 ** 9) | list }}": "cannot write a user's message: Range too big",
}  # fmt: skip


def with_template(folder: Path, file: Path, text: str) -> PromptCodec:
    file.write_text(text)
    return load(folder, **{"model.template": str(file)})


def test_a_template_that_cannot_ask_or_is_not_there_is_refused(folders, tmp_path):
    for template, said in REFUSED.items():
        with pytest.raises(UserError, match=said) as raised:
            with_template(folders["plain"], tmp_path / "template.jinja", template)
        assert "\n" not in str(raised.value)
    for choice, said in (
        ("nowhere.jinja", "The file nowhere.jinja of model.template cannot be read as text"),
        ("tokenizer", "the tokenizer has no chat template: take conversation"),
    ):
        with pytest.raises(UserError, match=said):
            load(folders["plain"], **{"model.template": choice})


def test_a_template_file_is_used_as_it_is(folders, tmp_path):
    codec = with_template(folders["plain"], tmp_path / "t.jinja", "[{{ messages[0]['content'] }}]<think>\n")
    text = codec.decode(codec.solver_prompt(KINDS["deduction"], KINDS["deduction"].seed()))
    assert text.startswith("[Here are a Python program") and text.endswith("```]<think>"), "Jinja drops a last newline"


def test_the_text_of_a_template_says_that_prompts_begin_with_a_bos(folders, tmp_path):
    """So that a reader of an exported model has it too, whatever file the run took its template from."""
    codec = with_template(folders["llama"], tmp_path / "t.jinja", "[{{ messages[0]['content'] }}]")
    made = TOKENIZERS["llama"][0]
    turns = [{"role": "user", "content": "why?"}]
    read = made.apply_chat_template(turns, chat_template=codec.template, add_generation_prompt=True, return_dict=False)
    assert read == codec.encode("[why?]") and read.count(made.bos_token_id) == 1


@pytest.mark.parametrize("templates", [{"rag": chat_tokenizers.CHATML}, "{{ 1 / 0 }}"])
def test_a_tokenizer_whose_own_template_is_of_no_use_gets_the_conversation(templates, tmp_path):
    made = chat_tokenizers.chatml()
    made.chat_template = templates
    codec = load(chat_tokenizers.save(made, tmp_path))
    assert codec.template is not None and "A conversation between a User" in codec.template


@pytest.mark.parametrize("choice", ["conversation", "tokenizer"])
def test_a_model_that_was_exported_is_asked_as_it_was_trained(choice, folders, tmp_path):
    """Nobody has to remember with which template: whatever it was, `auto` finds it in the tokenizer."""
    trained = load(folders["chatml"], **{"model.template": choice})
    made = chat_tokenizers.chatml()
    made.chat_template = trained.template
    assert load(chat_tokenizers.save(made, tmp_path)).template == trained.template


def test_a_generation_config_that_cannot_be_read_and_tags_that_a_model_lacks_are_named(tmp_path, folders):
    with pytest.raises(UserError, match=r"the tokenizer of .* has no tags: take completion or chat"):
        load(folders["chatml"], **{"model.prompt_format": "compact"})
    folder = chat_tokenizers.save(chat_tokenizers.plain(), tmp_path)
    for text, said in (("{nope", "is not JSON: correct or remove it"), ('{"eos_token_id": "</s>"}', "ids of tokens")):
        (folder / "generation_config.json").write_text(text)
        with pytest.raises(UserError, match=said):
            load(folder)


@pytest.mark.parametrize("message", ["", "é漢" * 40, "plain words " * 9])
def test_whether_a_prompt_fits_is_what_its_ids_say(message: str) -> None:
    """Also where the text's length decides and nothing is encoded."""
    kind, codec = KINDS["induction"], PromptCodec(byte_tokenizer(), CompactFormat())
    task = replace(kind.seed(), message=message)
    length, shown = len(codec.solver_prompt(kind, task)), len(codec.proposal_ids(kind, [task]))
    fits = [codec.solver_prompt_fits(kind, task, length + more) for more in (-1, 0, 1, 900)]
    assert fits == [False, True, True, True]
    assert [codec.proposal_fits(kind, [task], shown + more) for more in (-1, 0, 900)] == [False, True, True]
    # Ids of a prompt that was encoded before are not those that somebody changed.
    first = codec.encode("the same text")
    first.append(0)
    assert codec.encode("the same text") == first[:-1]


def test_a_conversation_is_written_by_the_same_template(folders):
    said = (("user", "One?"), ("assistant", "<think>I see.</think><answer>1</answer>"), ("user", "Two?"))
    turns = [{"role": role, "content": content} for role, content in said]
    codec = load(folders["chatml"])
    ids, opened = codec.converse(turns)
    said = "User: One?\nAssistant: <think>I see.</think><answer>1</answer><|endoftext|>\nUser: Two?\nAssistant: <think>"
    assert codec.decode(ids).endswith(f"\n\n{said}") and opened == "<think>"
    assert codec.converse(turns[:1])[0] == codec.ask("One?")
    codec = PromptCodec.with_template(str(folders["llama"]), chat_tokenizers.HEADERS)
    ids, opened = codec.converse(turns)
    assert codec.decode(ids).count("<|begin_of_text|>") == 1 and codec.decode(ids).count("<|eot_id|>") == 3
    assert opened == ""


def looped(turn: str) -> str:
    end = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    return "{% for m in messages %}" + turn + "{% endfor %}" + end


TURN = "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
LOSING = {
    looped("{% if m.role != '" + role + "' or loop.last %}" + TURN + "{% endif %}"): f"loses the {role} message "
    for role in ("system", "assistant", "user")
}
LOSING |= {"{{ messages[0]['content'] }}": "chat template loses the"}
LOSING |= {"{{ 1 // (4 - messages | length) }}": "cannot write this conversation"}


def test_a_template_that_loses_a_message_is_refused(folders):
    said = [("system", "Sum?"), ("user", "One?"), ("assistant", "<think>so</think>1"), ("user", "Sum? Two?")]
    turns = [{"role": role, "content": content} for role, content in said]
    for template, sentence in LOSING.items():
        with pytest.raises(UserError, match=sentence):
            PromptCodec.with_template(str(folders["chatml"]), template).converse(turns)
    # What an earlier response thought may be left out.
    for template in (looped(TURN), looped(TURN.replace("m.content", "m.content.split('</think>')[-1]"))):
        assert PromptCodec.with_template(str(folders["chatml"]), template).converse(turns)
