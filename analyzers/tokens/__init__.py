"""Read data sets of tokens, and find where labels and masks are wrong: is only the text of the assistant trained?

    files = tokens.find_files([Path("train.jsonl")], Path("model/tokenizer.json"))
    report = tokens.analyze(files)

A token is trained if it counts in the loss, that is, if its label is not masked (-100). `reading` turns rows of any
form into tokens, labels and numbers about each row (facts), `answers` finds which rows have which mistake, and
`findings` writes the sentences.
"""

from analyzers.tokens.files import DataFiles, find_files
from analyzers.tokens.model import Position, TokensData, TokenStatistics
from analyzers.tokens.report import analyze

__all__ = ["DataFiles", "Position", "TokenStatistics", "TokensData", "analyze", "find_files"]
