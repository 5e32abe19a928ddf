"""Call sites of two ranks that run the same lines under other lines."""

from analyzers.memory.rank_difference import aligned_values

LAYER = ("model.py:58 mlp", "model.py:74 layer")
STEADY = (*LAYER, "train.py:30 steady")
OTHER = (*LAYER, "train.py:12 other_loop")


def test_lines_below_another_loop_are_matched():
    assert aligned_values([OTHER], [OTHER], {STEADY: 7}) == {STEADY: 7, OTHER: 7}


def test_what_a_rank_runs_beside_the_common_loop_is_its_own():
    assert aligned_values([OTHER], [OTHER, STEADY], {STEADY: 7}) == {STEADY: 7}


def test_a_phase_of_a_schedule_is_matched_with_another_phase():
    warm_up = (*LAYER, "train.py:12 run_warmup")
    assert aligned_values([warm_up], [warm_up, STEADY], {STEADY: 7})[warm_up] == 7


def test_an_evaluation_is_not_matched_with_training():
    evaluation = (*LAYER, "train.py:12 evaluate")
    assert evaluation not in aligned_values([evaluation], [evaluation], {STEADY: 7})


def test_the_call_site_that_shares_most_lines_is_taken():
    near, far = (*LAYER, "train.py:30 steady"), ("model.py:58 mlp", "model.py:90 head")
    assert aligned_values([OTHER], [OTHER], {far: 3, near: 7})[OTHER] == 7


def test_lines_that_no_other_rank_has_are_not_matched():
    own = ("ema.py:5 update",)
    assert aligned_values([own], [own], {STEADY: 7}) == {STEADY: 7}
