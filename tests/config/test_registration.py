"""Names of run folders."""

from poslab.config.registration import run_name


def test_folder_names_are_portable_short_and_never_the_same():
    names = {run_name("poslab.tasks.copy.CopyTask", "poslab.positions.rope.Rope", 32, 4, 0) for _ in range(50)}
    assert len(names) == 50
    for name in names:
        assert name.startswith("copy-rope-d32-h4-s0_")
        assert len(name) < 60
        assert not set(name) & set('=, :/\\"*?<>|')
