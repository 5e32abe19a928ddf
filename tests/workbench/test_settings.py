"""Read the settings of a run from its run.json."""

import json
import sys

from workbench.run_settings import run_settings


def settings(run):
    return {one.key: one for one in run_settings(run.manifest())}


def test_each_setting_tells_its_origin(oom):
    """The origin is a flag, the function of the registry that the run was started with, or the default."""
    found = settings(oom)
    assert (found["faults.name"].value, found["faults.name"].origin) == ("oom", "flag --faults.name")
    assert found["training.seq_len"].origin == "llama3 llama3_debugmodel"
    assert found["optimizer.beta2"].origin == "default"
    assert found["world_size"].origin == "the run"


def test_older_names_are_told_as_explain_tells_them():
    """The keys are one that was translated, one without effect here, and an unknown one."""
    flags = ["--training.batch_size", "4", "--metrics.enable_wandb", "--training.bach_size", "4"]
    manifest = {"argv": ["x", *flags], "config": {"training": {"local_batch_size": 4}}}
    found = {one.key: one for one in run_settings(manifest)}
    assert found["training.local_batch_size"].cls == "translated"
    assert found["training.local_batch_size"].origin == "flag --training.batch_size"
    assert found["metrics.enable_wandb"].cls == "ignored"
    assert found["training.bach_size"].cls == "unknown"


def test_nothing_that_a_manifest_names_is_opened_or_imported(tmp_path):
    """A manifest may come from anybody, so the files and modules that its flags name are not read."""
    secret = tmp_path / "secret.toml"
    secret.write_text('[job]\ndescription = "hunter2"\n')
    module = tmp_path / "evil" / "config_registry.py"
    module.parent.mkdir()
    module.write_text("raise SystemExit('loaded')\n")
    sys.path.insert(0, str(tmp_path))
    argv = ["x", "--job.config_file", str(secret), "--config", str(secret), "--module", "evil"]
    told = json.dumps(run_settings({"argv": argv, "config": {}}))
    sys.path.remove(str(tmp_path))
    assert "hunter2" not in told
    assert "evil.config_registry" not in sys.modules


def test_whatever_stands_in_a_manifest_is_borne():
    for argv in (None, 7, [None, {}], ["--"], ["--training.steps", "many"], ["--a.b=c"]):
        run_settings({"argv": argv, "config": {"training": {"steps": 1}, "x": 3}})
