# Completion of workbench for fish. The command itself says what may follow; where it has nothing to say, fish completes
# the names of files. Loaded by fish from vendor_completions.d, or by: source workbench.fish

function __workbench_complete
    set -lx _TYPER_COMPLETE_ARGS (commandline -cp)
    set -lx _TYPER_COMPLETE_FISH_ACTION get-args
    set -lx _WORKBENCH_COMPLETE complete_fish
    set -l answers (workbench 2>/dev/null)
    if test -n "$answers"
        printf '%s\n' $answers
    else
        __fish_complete_path (commandline -ct)
    end
end

complete --command workbench --no-files --arguments '(__workbench_complete)'
