"""The parts that pages are made of: charts, tables, links and the verdict."""
