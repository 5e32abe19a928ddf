"""Ask the installed torchtitan for the configuration that it derives from its options, before any rank starts.

    python -m workbench.launch.torchtitan_config --job.config_file x.toml --training.steps 3

This program runs in a separate process, because torchtitan imports torch. It prints one line of JSON.
"""

import json
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

MARK = "workbench-torchtitan: "
"""The beginning of the line with JSON; torchtitan and the modules that it imports print other lines."""


def main() -> None:
    """Print a line of JSON for the launcher: torchtitan's settings for the options in `sys.argv`, or what failed."""
    try:
        answer = settings(sys.argv[1:])
    except ImportError as error:
        answer = {"failed": "import", "name": error.name, "message": str(error)}
    except SystemExit:
        answer = {"failed": "options"}
    except Exception as error:  # noqa: BLE001
        answer = {"failed": "config", "message": f"{type(error).__name__}: {error}"}
    # A line end first, because the last line of an imported module may have none.
    print(f"\n{MARK}{json.dumps(answer)}", flush=True)


def settings(options: list[str]) -> dict[str, Any]:
    """Return the settings that the launcher needs from torchtitan's configuration for these options."""
    # As `python -m torchtitan.train` of the ranks has it: the working folder may hold a checkout.
    sys.path.insert(0, str(Path.cwd()))
    # All that a rank imports: torchtitan 0.3 hides a missing package behind "Cannot import config_registry".
    import_module("torchtitan.train")
    config = config_manager().parse_args(options)
    general = getattr(config, "job", config)
    model = getattr(config, "model", config)
    return {
        "dump_folder": general.dump_folder,
        "init_timeout_s": config.comm.init_timeout_seconds,
        "train_timeout_s": config.comm.train_timeout_seconds,
        "mode": getattr(config.comm, "mode", "default"),
        "assets": getattr(config, "hf_assets_path", getattr(model, "hf_assets_path", None)),
        "device": import_module("torch._utils")._get_available_device_type(),  # noqa: SLF001
    }


def config_manager() -> Any:
    """Return torchtitan's object that reads options; up to version 0.1, its module has another name."""
    try:
        return import_module("torchtitan.config").ConfigManager()
    except ModuleNotFoundError:
        return import_module("torchtitan.config_manager").ConfigManager()


if __name__ == "__main__":
    main()
