"""Parts that pages of the dashboard share: charts, tables, links and the verdict."""
