"""What is typed wrongly is told in one sentence, with exit code 2, and nothing is written."""

import shlex
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from azr.cli.main import dispatch
from tests import chat_tokenizers
from tests.conftest import byte_tokenizer
from tests.explorer.made_runs import small_run
from tests.tiny_models import save_run, save_tiny

NO_CONFIGS = ("{", "[]", "{}", '{"model_type": "nonesuch"}', '{"model_type": "qwen2"}')
OTHER_CONFIGS = {"mixtral": '{"model_type": "mixtral"}', "llama": '{"model_type": "llama", "hidden_size": 8}'}
SENTENCES = [
    ("", "azr needs a command: run, recipes, execute, "),
    ("exceute", "There is no command 'exceute'; did you mean execute? azr --help lists all."),
    ("--backend", "There is no command '--backend'"),
    ("run", "azr run needs a recipe or the folder of a run"),
    ("run azr_14m_mini --eval.suites exam --eval.suites mbpp+", "--eval.suites is given twice: give its values once"),
    ("run --run.steps 3", "azr run needs a recipe or the folder of a run"),
    ("doctor --jsom", "There is no option --jsom; did you mean --json?"),
    ("doctor all", "unrecognized arguments: all"),
    ("plan", "azr plan needs a recipe, such as"),
    ("plan azr_coder7b", "There is no recipe 'azr_coder7b'; did you mean azr_coder7b_ppo?"),
    ("plan base", "playground/base.py has no config"),
    ("plan nowhere.yaml", "There is no file nowhere.yaml."),
    ("plan azr_7b_ppo --gpu 8", "There is no option --gpu; did you mean --gpus?"),
    ("plan azr_7b_ppo --gpus none", "argument --gpus: must be a whole number"),
    ("plan azr_7b_ppo --nodes 1,2", "argument --nodes: must be a whole number from 1 to 1000, not '1,2'"),
    ("plan azr_7b_ppo --gpu-memory -1", "argument --gpu-memory: must be a number above 1"),
    ("plan azr_7b_ppo --train.rank 8", "There is no option --train.rank"),
    ("plan azr_7b_ppo --train.data-parallel 5", "A step has 384 trajectories, which train.data_parallel=5"),
    ("plan azr_7b_ppo --model-config README.md", "README.md is no model's config.json"),
    ("plan azr_7b_ppo --model.path Qwen/Qwen2.5-7", "The shape of 'Qwen/Qwen2.5-7' is not known here"),
    ("prompts azr_coder7b_pp", "There is no recipe 'azr_coder7b_pp'; did you mean azr_coder7b_ppo?"),
    ("prompts azr_14m_mini --kind deducton", "There is no task kind 'deducton'; did you mean deduction?"),
    ("prompts azr_14m_mini --role judge", "argument --role: invalid choice: 'judge'"),
    ("prompts azr_14m_mini --model.path docs", "model.path 'docs' holds no tokenizer (none of tokenizer.json"),
    ("prompts azr_14m_mini --model.template tokenizer", "model.template is tokenizer, but the compact format"),
    ("prompts", "the following arguments are required: RECIPE"),
    ("prompts --modle.path x azr_14m_mini", "There is no option --modle.path; did you mean --model.path?"),
    ("plan ..azr_7b_ppo", "There is no recipe module ..azr_7b_ppo"),
    ("execute", "the following arguments are required: FILE.jsonl; azr execute --help lists every option."),
    ("execute missing.jsonl", "missing.jsonl cannot be read: No such file or directory."),
    ("execute .", ". cannot be read: Is a directory."),
    ("execute - --backend chroot", "argument --backend: invalid choice: 'chroot' (choose from 'auto', "),
    ("execute - --wall soon", "argument --wall: must be a number of seconds from 0.01 to 3600, not 'soon'"),
    ("execute - --wall nan", "argument --wall: must be a number of seconds from 0.01 to 3600, not 'nan'"),
    ("execute - --workers 0", "argument --workers: must be a whole number from 1 to 256, not '0'"),
    ("execute - --memory-mb 1.5", "argument --memory-mb: must be a whole number from 32 to 1048576, not '1.5'"),
    ("execute - --repeats " + "9" * 5000, "argument --repeats: must be a whole number from 1 to 64, not '999"),
    ("execute a b", "unrecognized arguments: b"),
    ("--hlep", "There is no command '--hlep'; did you mean --help?"),
    ("version", "There is no command 'version'; did you mean --version?"),
    ("list", "There is no command 'list'; did you mean recipes?"),
    ("train", "There is no command 'train'; did you mean run?"),
    ("new", "the following arguments are required: kind, NAME, DIR"),
    ("eval nosuchmodel", "There is no model or run 'nosuchmodel'"),
    ("serve /nope", "There is no model or run '/nope'"),
    ("export orz_ckpt /nope/a/b", "There is no folder /nope/a: make it"),
    ("run README.md", "README.md is neither a run's folder nor a .py or .yaml file"),
    ("run orz_ckpt/nosuch", "orz_ckpt/nosuch is not there"),
    ("run playground/nosuch.py", "There is no file playground/nosuch.py"),
    ("serve {base} --step 3", "is one model and has no steps"),
    ("serve {chat} --template tokeniser", "did you mean tokenizer?"),
    ("serve {run} --step 7", "has no policy of step 7: there are steps 3 and 10"),
    ("serve {run} --template missing.jinja", "nor a file"),
    ("serve {run} --port 70000", "must be a whole number from 1 to 65535"),
    ("serve {run} --max-model-len 512", "There is no option --max-model-len"),
    ("eval", "needs a model or a run"),
    ("eval {model} --suite exma", "did you mean exam?"),
    ("eval {model} --suite gsm8k", "give their folder by --data"),
    ("eval {model} --suite gsm8k --data docs", "docs has no gsm8k.jsonl"),
    ("eval {model} --suite exam,", "must be names with commas"),
    ("eval {model} --k 8", "needs samples"),
    ("eval {model} --samples 4 --k 1,8", "--k 8 needs as many samples, and --samples is 4"),
    ("eval {model} --max-response-tokens 1000", "exceeds the context of"),
    ("eval {model} --template tokenizer", "leave out --template"),
    ("eval {model} --step 3", "leave out --step"),
    ("eval {model} --all-steps", "is no run: name a run directory"),
    ("eval {model} --all-steps --out x", "leave --step and --out out"),
    ("eval {model} --train.policy-lr 1", "azr eval has no use for train.policy_lr"),
    ("eval {model} --rollout.temperature 0.5", "given by --temperature"),
    ("eval {model} --rollout.max-response-tokens 9", "given by --max-response-tokens"),
    ("eval {model} --out README.md", "README.md is a file"),
    ("eval {model} --out README.md/x", "README.md is a file"),
    ("eval compare docs data", "There is no evaluation in docs"),
    ("eval --list --data none", "There is no folder none"),
    ("data", "the following arguments are required: ROWS, OUT, --against"),
    ("data {rows} rows.csv --against docs", "rows.csv is of no known form: its name must end with .jsonl or "),
    ("data {rows} gone/rows.jsonl --against docs", "There is no folder gone to write rows.jsonl into"),
    ("data {rows} {rows} --against docs", "is the file of rows itself: name another file to write."),
    ("data gone.jsonl {out}.jsonl --against docs", "docs holds no file of a suite"),
    ("data {rows} {out}.jsonl --against gone", "There is no folder gone: give the one"),
    ("view {small} --out ''", "'.' names no file: choose another --out."),
    ("export nowhere {out}", "nowhere is no run: name a run directory"),
    ("export {run} {out} --step 7", "has no policy of step 7: there are steps 3 and 10."),
    ("export {run}/checkpoints/step_000003/policy {out} --step 3", "is one model and has no steps"),
    ("export {run} {out} --adapter", "has whole weights and no adapters: leave out --adapter and --base."),
    ("export {run} {out} --base elsewhere", "has whole weights and no adapters"),
    ("export {run} {out} --adapter --merge", "argument --merge: not allowed with argument --adapter"),
    ("export {run}", "the following arguments are required: OUT"),
    ("export {run} {out} --think-tokens drop", "argument --think-tokens: invalid choice: 'drop'"),
    ("export {run} {out} --private", "add --push-to-hub OWNER/NAME"),
    ("export {run} {out} --push-to-hub a/b/c", "a/b/c cannot be pushed to"),
    ("export {run} {run}", "run is not empty: choose another folder"),
    ("export {run} {run}/config.yaml", "run/config.yaml is a file"),
    ("export {run} {run}/config.yaml/out", "run/config.yaml/out was not written: "),
    ("export {run} {run}/checkpoints/step_000010/policy/out", "lies inside {run}/checkpoints/step_000010/policy"),
    ("show {small} --step 7", "has no rollouts of step 7: it has steps 1 to 2."),
    ("show {small} --task 000002-deduction-9", "no task '000002-deduction-9'; did you mean 000002-deduction-0000?"),
    ("show {small} --kind deductio", "has no kind 'deductio'; its kinds are deduction, induction."),
    ("show {small} --verdict wrongg", "invalid choice: 'wrongg'"),
    ("view {small} --out /proc/self/report.html", "/proc/self/report.html cannot be written"),
    ("view {small} {small}", "A run is named twice"),
    ("view {small}/rollouts", "There is no run in {small}/rollouts: name a run directory, such as orz_ckpt/NAME."),
    ("view {small}/metrics.jsonl", "There is no run in"),
    ("view {small} --out {small}/none/a.html", "There is no folder {small}/none: make it, or choose another --out."),
    ("view {small} --out {small}/tasks.jsonl", "{small}/tasks.jsonl is there already and no report"),
    ("view {small} --out {chat}", "{chat} cannot be written (Is a directory): choose another --out."),
    ("view {small} --no-token --host 0.0.0.0 --port 0", "leave --no-token out"),
    ("view {small} --host 192.0.2.1 --port 0", "Port 0 of 192.0.2.1 cannot be used"),
    ("view {small} --port {taken}", "choose another --port or --host"),
    ("check-model {here}", "holds no model (no config.json there)"),
    *((f"check-model {{here}}/{i}", "holds no language model that transformers loads") for i in range(len(NO_CONFIGS))),
    ("check-model {model} --bound 0", "must be a number above 0"),
    ("check-model {here}/caps", "changes its logits by final_logit_softcapping=30.0"),
    ("check-model {here}/scores", "asks its attention for softcap=50.0"),
    ("check-model {here}/spoiled", "holds no tokenizer that can be loaded"),
    ("check-model {here}/mute", "holds no tokenizer (none of tokenizer.json, "),
    ("new kinds a b", "argument kind: invalid choice: 'kinds'"),
    ("new kind a", "azr new --help lists every option"),
    ("new kind Least {out}", "A kind cannot be called 'Least': take small letters, digits and '_'"),
    ("new kind class {out}", "A kind cannot be called 'class': take small letters"),
    ("new kind deduction {out}", "There is a kind deduction already: take another name."),
    ("new kind output {out}", "A kind cannot be called output, which prompts use for a part of a task"),
    ("new kind numbers {out}", "A kind cannot be called numbers, which prompts use"),
    ("new kind json {out}", "There is a module json already, which the package would hide"),
    ("new kind least_first {small}", "small is there already and not an empty folder: name a new one."),
    ("new kind least_first README.md", "README.md is there already and not an empty folder: name a new one."),
    ("new kind least_first no/such/folder", "no/such is no folder, so folder cannot be written there."),
    ("run {mini} --run.stepz 3", "There is no option --run.stepz; did you mean --run.steps?"),
    ("run {mini} --steps 3", "There is no option --steps; did you mean --run.steps?"),
    ("run {mini} --dry 3", "There is no option --dry; did you mean --dry-run?"),
    ("run {mini} --algorithm.estimator gea", "algorithm.estimator is 'gea'; it must be one of trrpp, gae"),
    ("run {mini} --run.steps x", "run.steps is 'x'; it must be a whole number of at least 1 and at most 1,000,000"),
    ("run {mini} --run.steps 0", "run.steps is '0'; it must be a whole number of at least 1 and"),
    (
        "run {mini} --run.steps",
        "--run.steps takes a whole number of at least 1 and at most 1,000,000,000, not nothing.",
    ),
    ("run {mini} --run.steps 3 4", "unrecognized arguments: 4"),
    ("run {mini} --selfplay.kinds", "--selfplay.kinds takes a list of names, not nothing."),
    ("run {mini} --run.no-deterministic true", "unrecognized arguments: true"),
    ("run {mini} --run.no-steps", "There is no option --run.no-steps"),
    ("run {mini} --no-run.deterministic", "did you mean --run.no-deterministic?"),
    ("run {mini} --run.steps 1" + 26 * "0", "it must be a whole number of at least 1 and at most 1,000,000,000."),
    ("run {mini} --run.seed " + str(2**64), "it must be a whole number of at least 0 and at most 4,294,967,295."),
    ("run {mini} --rollout.engines 1000000", "it must be a whole number of at least 1 and at most 4,096."),
    ("run {mini} --selfplay.kinds deduction magic", "There is no task kind 'magic'"),
    ("run {mini} --resume --verify all", "--verify: invalid choice: 'all'"),
    ("run {mini} --restart --resume", "--resume goes on with a run and --restart begins it again"),
    ("run {mini} --eval.path playground", "There is no exam in playground"),
    ("run {mini} --run.root README.md/runs", "Nothing can be written into"),
    ("run {mini} --run.root {here} --resume", "There is no run in"),
    ("run {mini} --resume nowhere/checkpoints/step_000003", "There is no run in"),
    ("run {mini} --model.path Qwen/Qwen2.5-14B", "The run does not fit on 1 node(s) of 1 GPU(s) with 80 GiB"),
    ("plan azr_7b_ppo --model.path {here}/mixtral", "describes a 'mixtral' model"),
    ("plan azr_7b_ppo --model.path {here}/llama", "lacks 'num_attention_heads'"),
    ("export {bare} {out}", "checkpoints holds no policy yet"),
    ("run azr_14m_mini --eval.suites exam nosuch --dry-run", "There is no suite 'nosuch'. azr eval --list names all."),
    ("run azr_14m_mini --eval.suites cruxeval-i:cot --dry-run", "'cruxeval-i:cot'; did you mean cruxeval-i?"),
]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, tiny_model_path: Path) -> Iterator[dict[str, object]]:
    """A model that chats, a run with the policies of two steps, one to be explored, rows, and a port that is taken."""
    here = tmp_path_factory.mktemp("mistakes")
    chat = save_tiny(here / "chat", "qwen2", chat_tokenizers.chatml(), max_position_embeddings=8192)
    run, bare = save_run(here, 3, 10), save_run(here / "bare")
    for name, text in [*((str(index), text) for index, text in enumerate(NO_CONFIGS)), *OTHER_CONFIGS.items()]:
        byte_tokenizer().save_pretrained(here / name)
        (here / name / "config.json").write_text(text)
    save_tiny(here / "caps", "gemma2", byte_tokenizer())
    save_tiny(here / "scores", "gemma2", byte_tokenizer(), final_logit_softcapping=None)
    for name, family in (("spoiled", "qwen2"), ("mute", "llama")):
        save_tiny(here / name, family, byte_tokenizer())
        (here / name / "tokenizer.json").write_text("{")
    (here / "mute" / "tokenizer.json").unlink()
    (here / "rows.jsonl").write_text('{"prompt": "How many legs has an ant?", "grader": "math", "answer": "6"}\n')
    small_run(here / "small")
    dispatch(["show", str(here / "small")])  # makes its index
    with socket.create_server(("127.0.0.1", 0)) as taken:
        files = {"chat": chat, "run": run.path, "bare": bare.path, "small": here / "small", "out": here / "out"}
        more = {"model": tiny_model_path, "base": "data/azr_14m_base", "mini": "azr_14m_three_kinds --dry-run"}
        yield {**files, **more, "taken": taken.getsockname()[1], "here": here, "rows": here / "rows.jsonl"}


@pytest.mark.parametrize("typed, said", SENTENCES, ids=lambda words: words[:60])
def test_a_mistake_is_one_sentence_and_nothing_is_written(typed, said, places, capsys):
    def there() -> list[Path]:
        return sorted([*Path(str(places["here"])).rglob("*"), *Path("orz_ckpt").glob("eval/*")])

    before = there()
    assert dispatch(shlex.split(typed.format(**places))) == 2
    written = capsys.readouterr()
    (line,) = (line for line in written.err.splitlines() if line and not line.startswith("Loading weights:"))
    assert line.startswith("error: ") and said.format(**places) in line and written.err.endswith(f"{line}\n")
    assert not written.out or typed.startswith("plan"), "a plan says what it was made for before it fails"
    assert there() == before
