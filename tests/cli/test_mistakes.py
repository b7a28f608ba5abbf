"""What is typed wrongly is told in one sentence, with exit code 2."""

import shlex

import pytest

from azr.cli.main import dispatch

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
    ("plan azr_7b_ppo --nodes 2,1", "argument --nodes: must be numbers that rise, not '2,1'"),
    ("plan azr_7b_ppo --nodes 1,x", "argument --nodes: must be a whole number from 1 to 1000, not 'x'"),
    ("plan azr_7b_ppo --gpus 5 --nodes 8,9", "9 node(s) of 5 GPU(s) are no multiple of the 8 GPU(s)"),
    ("plan azr_7b_ppo --gpu-memory -1", "argument --gpu-memory: must be a number above 1"),
    ("plan azr_7b_ppo --train.rank 8", "There is no option --train.rank"),
    ("plan azr_7b_ppo --train.data-parallel 5", "A step has 384 trajectories, which train.data_parallel=5"),
    ("plan azr_7b_ppo --model-config README.md", "README.md is no model's config.json"),
    ("plan azr_7b_ppo --model.path Qwen/Qwen2.5-7", "The shape of 'Qwen/Qwen2.5-7' is not known here"),
    ("prompts azr_coder7b_pp", "There is no recipe 'azr_coder7b_pp'; did you mean azr_coder7b_ppo?"),
    ("prompts azr_14m_mini --kind deducton", "There is no task kind 'deducton'; did you mean deduction?"),
    ("prompts azr_14m_mini --role judge", "argument --role: invalid choice: 'judge'"),
    ("prompts azr_14m_mini --id", "There is no option --id; did you mean --ids?"),
    ("prompts azr_14m_mini --model.path docs", "model.path 'docs' holds no tokenizer (none of tokenizer.json"),
    ("prompts azr_14m_mini --model.template tokenizer", "model.template is tokenizer, but the compact format"),
    ("prompts", "the following arguments are required: RECIPE"),
    ("cluster kuberay azr_7b_ppo --run.root runs", "run.root runs is not on the volume claim"),
    ("cluster kuberay azr_7b_ppo --run.root orz_ckpt/../runs", "run.root orz_ckpt/../runs is not on"),
    ("cluster", "the following arguments are required: slurm|kuberay, RECIPE"),
    ("cluster pbs azr_7b_ppo", "argument slurm|kuberay: invalid choice: 'pbs'"),
    ("cluster slurm azr_7b", "There is no recipe 'azr_7b'; did you mean azr_7b_ppo?"),
    ("cluster slurm azr_7b_ppo --gpu-memory 20", "azr_7b_ppo does not fit on 1 node(s) of 8 GPU(s): "),
    ("cluster slurm azr_7b_ppo --cluster.address auto", "azr cluster starts the cluster itself"),
    ("cluster kuberay azr_7b_ppo --image 'a b; rm -rf /'", "argument --image: must be an image such as"),
    ("cluster kuberay azr_7b_ppo --claim 'a: b'", "argument --claim: must be a name of Kubernetes"),
    ("cluster kuberay azr_7b_ppo --run.step 3", "There is no option --run.step; did you mean --run.steps?"),
    ("doctor --train.device cpu", "--train.device is an option of a recipe: name one with --recipe."),
    ("doctor --recipe azr_8b", "There is no recipe 'azr_8b'"),
    ("doctor --recipe azr_14m_mini --train.devise cpu", "There is no option --train.devise"),
    ("execute", "the following arguments are required: FILE.jsonl; azr execute --help lists every option."),
    ("execute missing.jsonl", "missing.jsonl cannot be read: No such file or directory."),
    ("execute .", ". cannot be read: Is a directory."),
    ("execute - --backend chroot", "argument --backend: invalid choice: 'chroot' (choose from 'auto', "),
    ("execute - --wall soon", "argument --wall: must be a number of seconds from 0.01 to 3600, not 'soon'"),
    ("execute - --wall nan", "argument --wall: must be a number of seconds from 0.01 to 3600, not 'nan'"),
    ("execute - --workers 0", "argument --workers: must be a whole number from 1 to 256, not '0'"),
    ("execute - --memory-mb 1.5", "argument --memory-mb: must be a whole number from 32 to 1048576, not '1.5'"),
    ("execute - --repeats " + "9" * 5000, "argument --repeats: must be a whole number from 1 to 64, not '999"),
    ("execute - --time 3", "There is no option --time."),
    ("execute a b", "unrecognized arguments: b"),
    ("cluster slurm nosuch", "There is no recipe 'nosuch'. azr recipes lists all."),
    ("--hlep", "There is no command '--hlep'; did you mean --help?"),
    ("-v", "There is no command '-v'; did you mean --version?"),
    ("version", "There is no command 'version'; did you mean --version?"),
    ("list", "There is no command 'list'; did you mean recipes?"),
    ("train", "There is no command 'train'; did you mean run?"),
    ("new", "the following arguments are required: kind, NAME, DIR"),
    ("completion", "the following arguments are required: bash|zsh|fish"),
    ("eval nosuchmodel", "There is no model or run 'nosuchmodel'"),
    ("chat /nope", "There is no model or run '/nope'"),
    ("serve /nope", "There is no model or run '/nope'"),
    ("seeds --convert nofile --out /tmp/no.jsonl", "nofile cannot be read"),
    ("export orz_ckpt /nope/a/b", "There is no folder /nope/a: make it"),
    ("run README.md", "README.md is neither a run's folder nor a .py or .yaml file"),
    ("run orz_ckpt/nosuch", "orz_ckpt/nosuch is not there"),
    ("run playground/nosuch.py", "There is no file playground/nosuch.py"),
    ("plan nosuch", "There is no recipe 'nosuch'. azr recipes lists all."),
    ("doctor --recipe nosuch", "There is no recipe 'nosuch'. azr recipes lists all."),
    ("run azr_14m_mini --eval.suites exam nosuch --dry-run", "There is no suite 'nosuch'. azr eval --list names all."),
]


@pytest.mark.parametrize("typed, said", SENTENCES, ids=lambda words: words[:60])
def test_a_mistake_is_one_sentence(typed: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert dispatch(shlex.split(typed)) == 2
    written = capsys.readouterr()
    assert written.err.startswith("error: ") and said in written.err and written.err.count("\n") == 1
    assert not written.out or typed.startswith("plan"), "a plan says what it was made for before it fails"
