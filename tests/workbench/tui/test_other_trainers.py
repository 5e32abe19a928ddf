"""Step logs of other trainers in the terminal app: the views open, and say which column was read as which value."""

from pathlib import Path

import pytest

from terminal import app_on, press

RECORDED = Path(__file__).parents[2] / "fixtures" / "other_trainers"


@pytest.mark.parametrize(
    ("file", "column"),
    [("hf_state/trainer_state.json", "grad_norm"), ("lightning_csv/metrics.csv", "train_loss"), ("hf_console", "loss")],
)
async def test_the_views_open(file, column):
    app = app_on(RECORDED / file, "steps")
    async with app.run_test(size=(120, 40)) as pilot:
        assert "Median step time by rank" in await press(app, pilot, "")
        text = await press(app, pilot, "1")
        assert "Columns read from" in text
        assert column in text
        for key in "vVhs":
            await press(app, pilot, key)
        assert app.report.data.ranks[0].steps >= 12
