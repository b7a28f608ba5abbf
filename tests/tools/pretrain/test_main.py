from pathlib import Path

from tools.pretrain import __main__ as command
from tools.pretrain.corpus import CORPORA
from tools.pretrain.loop import OptimConfig


def test_the_defaults_are_those_of_the_committed_model_and_options_replace_them(monkeypatch, capsys):
    calls: list[tuple[object, ...]] = []
    monkeypatch.setattr(command, "run", lambda *arguments: calls.append(arguments))
    command.main([])
    given = "--out elsewhere --start model --minutes 1 --stop-at 1 --seed 2 --corpus worked"
    command.main(given.split())
    half_way = OptimConfig(minutes=32, stop_at=0.47)
    assert calls == [
        (Path("data/azr_14m_base"), None, half_way, 1, 2, CORPORA["all"]),
        (Path("elsewhere"), "model", OptimConfig(minutes=1, stop_at=1), 2, 2, CORPORA["worked"]),
    ]
    assert capsys.readouterr().out.endswith("azr eval --model elsewhere\n")
