"""The variables of torchtitan's scripts: the command line takes precedence, and no variable is ignored silently."""

from dataclasses import replace

import pytest

from workbench.command_options.options import Scheduler
from workbench.errors import UsageProblem
from workbench.launch.environment import for_command, from_environment
from workbench.launch.plan import Request, plan
from workbench.launch.run import run


def test_variables_say_what_the_command_line_leaves_open() -> None:
    variables = {"NGPU": "8", "CONFIG_FILE": "x.toml", "COMM_MODE": "fake_backend", "HOME": "/root"}
    request, notes = from_environment(Request(), variables)
    assert (request.nproc, request.config, request.overrides) == (8, "x.toml", ("--comm.mode", "fake_backend"))
    assert sorted(notes) == sorted(f"{name}={variables[name]} from the environment" for name in list(variables)[:3])


def test_a_module_needs_its_configuration() -> None:
    request, notes = from_environment(Request(), {"MODULE": "llama3", "CONFIG": "llama3_debugmodel"})
    assert (request.module, request.config) == ("llama3", "llama3_debugmodel")
    assert len(notes) == 2
    request, notes = from_environment(Request(), {"CONFIG": "something else"})
    assert request == Request()
    assert notes == ["CONFIG=something else has no effect without MODULE, the model whose registry has it"]
    asked = Request(config="x.toml")
    assert from_environment(asked, {"CONFIG": "something else"}) == (asked, [])
    with pytest.raises(UsageProblem, match="without CONFIG"):
        from_environment(Request(), {"MODULE": "llama3"})
    with pytest.raises(UsageProblem, match="both set"):
        from_environment(Request(), {"MODULE": "llama3", "CONFIG": "c", "CONFIG_FILE": "x.toml"})


def test_the_command_line_wins_and_says_so() -> None:
    asked = Request(config="mine.toml", nproc=2, overrides=("--comm.mode=default",))
    variables = {"NGPU": "8", "CONFIG_FILE": "x.toml", "COMM_MODE": "fake_backend"}
    request, notes = from_environment(asked, variables)
    assert request == asked
    assert len(notes) == 3
    assert all(note.endswith("from the environment: the command line wins") for note in notes)


def test_variables_without_effect_are_named() -> None:
    _, notes = from_environment(Request(), {"LOG_RANK": "0,1", "TRAIN_FILE": "mine.train"})
    assert [note.split()[0] for note in notes] == ["LOG_RANK", "TRAIN_FILE"]
    assert "--trainer MODULE" in notes[1]


def test_another_trainer_keeps_its_mode_of_communication() -> None:
    request, notes = from_environment(Request(trainer="torchtitan"), {"COMM_MODE": "fake_backend", "NGPU": "4"})
    assert (request.nproc, request.overrides) == (4, ())
    assert "COMM_MODE has no effect on torchtitan: give it its own option" in notes


def test_a_dry_run_needs_no_scheduler() -> None:
    asked = Request(module="llama3", config="llama3_debugmodel", nproc=8, overrides=("--comm.mode", "fake_backend"))
    with pytest.raises(UsageProblem, match="needs no scheduler"):
        run(replace(asked, scheduler=Scheduler.SLURM))


def test_a_command_after_dashes_keeps_its_own_variables() -> None:
    asked = Request(command=("python", "train.py"))
    assert from_environment(asked, {"NGPU": "8"}) == (asked, [])


@pytest.mark.parametrize("value", ["0", "all", "-2"])
def test_a_wrong_number_of_ranks_is_refused(value: str) -> None:
    with pytest.raises(UsageProblem, match="NGPU"):
        from_environment(Request(), {"NGPU": value})


def test_a_dry_run_is_one_process_that_stands_for_all_ranks() -> None:
    overrides = ("--comm.mode", "fake_backend", "--parallelism.tensor_parallel_degree", "2")
    job = plan(Request(module="llama3", config="llama3_debugmodel", nproc=64, overrides=overrides))
    assert job.is_dry_run
    assert not job.starts_ranks
    assert job.environment["NGPU"] == "64"
    assert "NGPU=64" in job.shell()
    with pytest.raises(UsageProblem, match="does not divide 3 ranks"):
        plan(Request(module="llama3", config="llama3_debugmodel", nproc=3, overrides=overrides))


@pytest.mark.parametrize(
    ("degrees", "ranks"),
    [
        ({"tensor_parallel_degree": 2, "pipeline_parallel_degree": 4}, 16),
        ({"data_parallel_replicate_degree": 3, "data_parallel_shard_degree": 1}, 3),
        ({"tensor_parallel_degree": 2}, 2),
        ({"data_parallel_shard_degree": 6}, 6),
        ({}, 2),
    ],
)
def test_a_dry_run_without_a_number_of_ranks_takes_those_that_its_degrees_need(
    monkeypatch: pytest.MonkeyPatch, degrees: dict[str, int], ranks: int
) -> None:
    monkeypatch.setattr("workbench.launch.plan.gpu_count", lambda: 0)
    flags = [word for key, value in degrees.items() for word in (f"--parallelism.{key}", str(value))]
    overrides = ("--comm.mode", "fake_backend", *flags)
    job = plan(Request(module="llama3", config="llama3_debugmodel", overrides=overrides))
    assert job.environment["NGPU"] == str(ranks)
    assert any(note.startswith(f"{ranks} ranks") for note in job.notes) == (ranks != 2)


def test_the_process_of_a_dry_run_prints_its_own_notes() -> None:
    overrides = ("--comm.mode", "fake_backend", "--training.steps", "3")
    job = plan(Request(module="llama3", config="llama3_debugmodel", nproc=2, overrides=overrides))
    assert job.notes == ()


def test_a_command_without_a_job_names_each_variable(capsys: pytest.CaptureFixture[str]) -> None:
    variables = {"NGPU": "4", "COMM_MODE": "fake_backend", "CONFIG_FILE": "x.toml"}
    request = for_command(Request(), "estimate", variables)
    assert (request.nproc, request.config, request.overrides) == (4, "x.toml", ())
    said = capsys.readouterr().err
    assert all(name in said for name in variables)
    assert "COMM_MODE has no effect on estimate" in said
    assert for_command(Request(config="y.toml"), "parity", variables, reads=()) == Request(config="y.toml")
    assert "NGPU has no effect on parity" in capsys.readouterr().err
