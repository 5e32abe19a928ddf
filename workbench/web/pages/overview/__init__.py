"""The dashboard's first page: the verdict, a chart of its evidence, and charts of all steps."""
