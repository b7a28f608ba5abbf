import pytest

from azr.tasks.prompts import ChatFormat, CompactFormat, Section
from azr.tasks.registry import KINDS


@pytest.mark.parametrize(
    "text", ["", "x", "<|program|>a<|answer|>b", "x<|output|>1", "<|other|>1", "x<|other|>1", "x<|end|><|output|>1"]
)
def test_compact_refuses_other_forms(text):
    assert CompactFormat().parse(text) is None


def test_every_compact_tag_is_a_special_token():
    style, tokens = CompactFormat(), CompactFormat.special_tokens(list(KINDS))
    for kind in KINDS.values():
        seed = kind.seed()
        texts = (
            style.propose(kind.name, kind.instructions, [kind.reference(seed)]),
            style.solve(kind.name, kind.instructions, kind.solver_view(seed)),
            style.response(kind.proposal(seed)),
        )
        for text in texts:
            assert set(CompactFormat._tag.findall(text)) <= {token[2:-2] for token in tokens}


@pytest.mark.parametrize(
    "text, sections",
    [
        ("thinking</think>\n<answer>```output\n3\n```</answer>", (Section("output", "3"),)),
        ("<think>a</think><answer>```output\n3\n```</answer>\n", (Section("output", "3"),)),
        ("</think><answer>```output\n3\n```</answer> and more", None),
        ("<answer>```output\n3\n```</answer>", None),
        ("a</think><answer>3</answer>", None),
        ("a</think>```output\n3\n```", None),
        (
            "a</think><answer>```output\n0\n```</answer></think><answer>```output\n3\n```</answer>",
            (Section("output", "3"),),
        ),
    ],
)
def test_chat_reads_the_last_answer_after_thinking(text, sections):
    assert ChatFormat().parse(text) == sections


def test_chat_is_not_confused_by_conversation_marks_in_programs():
    program = 'def f(a):\n    return "Assistant: <think>" + a'
    style = ChatFormat()
    response = style.response([Section("program", program), Section("input", "'User:'")])
    assert style.parse(response) == (Section("program", program), Section("input", "'User:'"))


@pytest.mark.parametrize("kind", KINDS.values(), ids=list(KINDS))
def test_chat_prompts_name_the_blocks_they_want(kind):
    style = ChatFormat()
    proposal = style.propose(kind.name, kind.instructions, [kind.reference(kind.seed())])
    assert all(
        f"```{'python' if label == 'program' else label}```" in proposal for label in kind.instructions.propose_answer
    )
    assert proposal.endswith("<think>")
