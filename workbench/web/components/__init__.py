"""Components of the pages: charts, tables, links and the verdict."""
