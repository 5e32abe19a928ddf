"""Write the sentence about a problem of a trace file, one for each kind of problem."""

from analyzers.traces.reading.problems import Problem, ProblemKind
from analyzers.words import duration_ns, quantity

_SENTENCES = {
    ProblemKind.CUT_OFF: "The file is cut off; what was there has been read.",
    ProblemKind.REPLACED_TEXT: "Control characters, invalid text or non-finite numbers were replaced.",
    ProblemKind.UNKNOWN_EVENTS: "Left out {events} of unknown structure.",
    ProblemKind.ODD_ARGUMENTS: "Left out the arguments of {events}: they have unexpected types.",
    ProblemKind.IMPOSSIBLE_TIMES: "Left out {events} with impossible times.",
    ProblemKind.NO_DEVICE_EVENTS: "No device events were recorded: operators and host collectives are counted instead.",
    ProblemKind.NO_LAUNCH: "{count} of {total} device events have no launch in the file.",
    ProblemKind.LOST_KERNELS: "The kernels of {count} of {total} launches are missing.",
    ProblemKind.EARLY_KERNELS: "{kernels} started before the launch, by up to {most}: the clocks of host and device"
    " disagree.",
    ProblemKind.OVERLAPPING_EVENTS: "Of the device events, {count} overlap a different event of the same stream.",
    ProblemKind.SHARED_CORRELATION: "Of the device events, {count} share their correlation id with a different event,"
    " as the"
    " kernels of a CUDA graph do.",
    ProblemKind.OUTSIDE_STEPS: "{count} of {total} events belong to no step.",
    ProblemKind.CUT_STEPS: "{names} was cut off by the end of the recording.",
    ProblemKind.NO_STEPS: "There is no ProfilerStep: the whole recording counts as one step.",
    ProblemKind.OVERLAPPING_STEPS: "Steps overlap.",
    ProblemKind.FORWARD_ONLY_STEPS: "{count} of {total} steps have no backward pass, as in evaluation: they count as"
    " steps all the same.",
}


def problem_sentence(problem: Problem) -> str:
    """Return a problem as a sentence with its numbers."""
    return _SENTENCES[problem.kind].format(
        count=problem.count,
        events=quantity(problem.count, "event"),
        kernels=quantity(problem.count, "kernel"),
        total=problem.total,
        most=duration_ns(problem.most_ns),
        names=", ".join(problem.names),
    )
